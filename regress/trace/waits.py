"""When each rank waits in a collective, for whom, and in which of its steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regress.trace.analysis import Analysis
from regress.trace.blame import Passed, passed_on
from regress.trace.collectives import Matched
from regress.trace.intervals import EMPTY, Intervals, covered_before, union

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


def lane_waits(analysis: Analysis, number: int) -> Waits:
    """The waits of a lane (by its number): from its kernel's start until data moves, for the rank that came last.

    For that rank, or for whom it had waited itself: see `blame`.
    """
    lane, matching = analysis.lanes[number], analysis.matching
    groups = [(group, passed) for group, passed in zip(matching.groups, passed_on(analysis), strict=True)
              if lane.rank in group.ranks]
    if not groups:
        none = np.empty(0, np.int64)
        return Waits(none, none, none, none, EMPTY)
    columns = [group.ranks.index(lane.rank or 0) for group, _ in groups]
    step = _steps(np.concatenate([group.start[:, column] for (group, _), column in zip(groups, columns, strict=True)]),
                  np.concatenate([group.in_steps for group, _ in groups]), analysis.steps or 1)
    parts, moving, first = [], [], 0
    for (group, passed), column in zip(groups, columns, strict=True):
        end = group.end[:, column] - matching.shifts_ns[number]
        moving.append(union(end - group.transfer_ns, end))
        start, stop, rank, row = _pieces(group, passed, column)
        parts.append((start - matching.shifts_ns[number], stop - matching.shifts_ns[number], rank, step[first + row]))
        first += len(end)
    start, stop, rank, step = (np.concatenate([part[k] for part in parts]) for k in range(4))
    others = np.flatnonzero(rank != lane.rank)
    return Waits(start[others], stop[others], rank[others], step[others], joined(moving))


def _pieces(group: Matched, passed: Passed | None, column: int) -> tuple[Int64, Int64, Int64, Int64]:
    """Start, end, rank and collective of each piece of one rank's waits: first what is for the last rank itself."""
    start, arrived = group.start[:, column], group.end[:, column] - group.transfer_ns
    last, row = np.array(group.ranks)[group.last], np.arange(len(start))
    if passed is None:
        return start, arrived, last, row
    ns = passed.ns[:, column]
    begin, length = (arrived - ns)[passed.row], ns[passed.row]
    # No rank waits for itself: it left that other collective together with the one that waited for it.
    rank = np.where(passed.rank == group.ranks[column], last[passed.row], passed.rank)
    return (np.concatenate((start, begin + np.rint(passed.low * length).astype(np.int64))),
            np.concatenate((arrived - ns, begin + np.rint(passed.high * length).astype(np.int64))),
            np.concatenate((last, rank)), np.concatenate((row, passed.row)))


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
    """For each rank that is waited for, the waiting of all others for it in each step with matched collectives, in ns.

    Waiting beside computation is left out. Two collectives that wait at once count both.
    """
    found = np.zeros((1 + max((lane.rank or 0 for lane in analysis.lanes), default=0), analysis.steps or 1), np.int64)
    matched = np.zeros(found.shape[1], np.bool_)
    for number, lane in enumerate(analysis.lanes):
        waits = lane_waits(analysis, number)
        np.add.at(found, (waits.rank, waits.step), waits.exposed_ns(lane.exposed))
        matched[waits.step] = True
    return {rank: found[rank, matched] for rank in np.flatnonzero(found.any(axis=1)).tolist()}
