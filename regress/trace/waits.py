"""When each rank waits in a collective, for whom, and in which of its steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regress.trace.analysis import Analysis
from regress.trace.intervals import EMPTY, Intervals, union

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """The waits of one lane on its own clock, one row a wait [start, end) in ns, in no order.

    rank: whom it is for. step: in which of the steps that all lanes have, counted by collectives, as a host may run
    ahead of its device and a stall be longer than many steps. moving: when data moves.
    """

    start: Int64
    end: Int64
    rank: Int64
    step: Int64
    moving: Intervals

    def of(self, rank: int) -> Intervals:
        """When it waits for that rank."""
        return union(self.start[self.rank == rank], self.end[self.rank == rank])

    def exposed_ns(self, exposed: Intervals) -> Int64:
        """How much of each wait lies inside `exposed`."""
        return covered_before(exposed, self.end) - covered_before(exposed, self.start)


def covered_before(covered: Intervals, times: Int64) -> Int64:
    """How much of the set lies before each time, in ns."""
    index = np.searchsorted(covered.start, times, side="right")
    total = np.concatenate((np.zeros(1, np.int64), np.cumsum(covered.end - covered.start)))
    ends = np.concatenate((np.zeros(1, np.int64), covered.end))
    found: Int64 = total[index] - np.where(index > 0, np.maximum(ends[index] - times, 0), 0)
    return found


def lane_waits(analysis: Analysis, number: int) -> Waits:
    """The waits of a lane (by its number): from its kernel's start until data moves, for the rank that came last."""
    lane, matching = analysis.lanes[number], analysis.matching
    parts: list[tuple[Int64, Int64, Int64, NDArray[np.bool_]]] = []
    moving: list[Intervals] = []
    for group in matching.groups:
        if lane.rank not in group.ranks:
            continue
        column = group.ranks.index(lane.rank)
        start = group.start[:, column] - matching.shifts_ns[number]
        end = group.end[:, column] - matching.shifts_ns[number]
        arrived = end - group.transfer_ns
        moving.append(union(arrived, end))
        parts.append((start, arrived, np.array(group.ranks)[group.last], group.in_steps))
    if not parts:
        none = np.empty(0, np.int64)
        return Waits(none, none, none, none, EMPTY)
    start, arrived, rank = (np.concatenate([part[k] for part in parts]) for k in range(3))
    step = _steps(start, np.concatenate([part[3] for part in parts]), analysis.steps or 1)
    others = np.flatnonzero(rank != lane.rank)
    return Waits(start[others], arrived[others], rank[others], step[others], joined(moving))


def _steps(start: Int64, in_steps: NDArray[np.bool_], steps: int) -> Int64:
    """The step of each collective: as many in each, in order of start; those before and after belong to the nearest."""
    order = np.argsort(start, kind="stable")
    before: Int64 = np.cumsum(in_steps[order]) - in_steps[order]
    found = np.empty(len(start), np.int64)
    found[order] = np.minimum(before * steps // max(int(in_steps.sum()), 1), steps - 1)
    return found


def joined(parts: list[Intervals]) -> Intervals:
    """What any of the sets covers."""
    if not parts:
        return EMPTY
    return union(np.concatenate([part.start for part in parts]), np.concatenate([part.end for part in parts]))


def waiting_by_step(analysis: Analysis) -> dict[int, Int64]:
    """For each rank that is waited for, the waiting of all others for it in each step, in ns.

    Waiting beside computation is left out. Two collectives that wait at once count both.
    """
    found: dict[int, Int64] = {}
    for number, lane in enumerate(analysis.lanes):
        waits = lane_waits(analysis, number)
        waited = waits.exposed_ns(lane.exposed)
        for rank in np.unique(waits.rank).tolist():
            by_step = found.setdefault(int(rank), np.zeros(analysis.steps or 1, np.int64))
            mine = waits.rank == rank
            np.add.at(by_step, waits.step[mine], waited[mine])
    return found
