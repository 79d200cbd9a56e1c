"""Where the time of a step goes, on each rank, in parts that add up to it.

    step = compute + transfer + waiting + host + idle

compute: a kernel that is not communication runs. transfer, waiting: communication runs alone, and data moves, or the
rank's kernel spins until a late rank arrives (the part of its duration beyond the shortest rank's). host: nothing runs
as the next kernel had not been launched yet. idle: nothing runs for another reason (queued behind a copy or another
stream, launch not recorded, the profiler's own stops).

A CPU backend shows its collectives only: host and idle are then 0, and compute is the time without a collective.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from regress.trace.analysis import Analysis
from regress.trace.intervals import difference, intersection
from regress.trace.lane import Lane
from regress.trace.waits import lane_waits


@dataclass(frozen=True, slots=True)
class StepBudget:
    """One rank's mean step in seconds. waiting_for: waiting by the rank it is for; its sum is `waiting`."""

    rank: int
    steps: int
    compute: float
    transfer: float
    waiting_for: dict[int, float]
    host: float
    idle: float

    @property
    def waiting(self) -> float:
        """All waiting, whoever it was for."""
        return sum(self.waiting_for.values())

    @property
    def step(self) -> float:
        """The whole step: the sum of its parts."""
        return self.compute + self.transfer + self.waiting + self.host + self.idle


@lru_cache(maxsize=2)  # every rule asks, of this run and of the one before
def step_budgets(analysis: Analysis) -> tuple[StepBudget, ...]:
    """The budget of each rank, in order of rank; empty where the trace has no steps."""
    return tuple(_budget(analysis, number, lane) for number, lane in enumerate(analysis.lanes) if lane.window.steps)


def _budget(analysis: Analysis, number: int, lane: Lane) -> StepBudget:
    steps = lane.window.steps
    waited = exposed_waiting(analysis, number)
    alone = lane.exposed.total
    whole = lane.span_ns
    host = 0 if lane.on_host else lane.gaps.late_ns
    idle = 0 if lane.on_host else whole - lane.in_window.busy_ns - host
    compute = whole - alone - host - idle
    scale = steps * 1e9
    return StepBudget(lane.rank or 0, steps, compute / scale, (alone - sum(waited.values())) / scale,
                      {rank: ns / scale for rank, ns in sorted(waited.items()) if ns}, host / scale, idle / scale)


def exposed_waiting(analysis: Analysis, number: int) -> dict[int, int]:
    """Nanoseconds of its window that a lane (by its number) did nothing but wait, by the rank that it waited for.

    That is who came last, or whom that one had waited for itself (see `blame`). Where one collective waits while
    another moves data on another stream, that time is transfer; and so is what a rank that came last itself takes
    beyond the shortest.
    """
    lane, waits = analysis.lanes[number], lane_waits(analysis, number)
    left = difference(lane.exposed, waits.moving)
    found: dict[int, int] = {}
    for rank in np.unique(waits.rank).tolist():
        mine = waits.of(rank)
        found[rank] = intersection(left, mine).total
        left = difference(left, mine)
    return found


def exposed_shares(analysis: Analysis) -> dict[int, float]:
    """For each rank the part of its window in which communication runs alone (a CPU backend: in which any runs)."""
    spans = {lane.rank or 0: (lane.span_ns, lane.exposed.total)
             for lane in analysis.lanes}
    return {rank: alone / span for rank, (span, alone) in spans.items() if span}
