"""Whom ranks wait for, over all steps of a trace: one rank, or each other in turn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from regress.trace.analysis import Analysis
from regress.trace.budget import step_budgets
from regress.trace.lane import Lane
from regress.trace.waits import waiting_by_step

_SHARE_OF_WAITING = 0.6
_LEAST_WAITING = 0.05
LEAST_IN_TURN = 0.10
_NEXT_TO_NOTHING = 0.25
"""Waiting for a rank in one step, of what it is in a mean one: a stall once is not made a habit by microseconds."""
_CONSTANT = 0.8
"""From this part of the steps on, being late is this rank's and not chance."""


def waiting_for(analysis: Analysis) -> dict[int, float]:
    """Seconds that the other ranks, on average, did nothing but wait for each rank, over all steps of the trace."""
    budgets = step_budgets(analysis)
    others = max(1, len(budgets) - 1)
    return {lane.rank or 0: sum(one.waiting_for.get(lane.rank or 0, 0.0) * one.steps for one in budgets) / others
            for lane in analysis.lanes}


@dataclass(frozen=True, slots=True)
class Late:
    """The rank that most waiting is for. share: its part of all waiting. cost: that waiting's part of the window.

    late_steps: in how many of the steps most waiting was for it, without those where that was next to nothing. steps:
    those with matched collectives.
    """

    rank: int
    share: float
    cost: float
    late_steps: int
    steps: int

    @property
    def pattern(self) -> str:
        """How often it is late: one stall can be all waiting of a trace. One step tells nothing of others."""
        if self.late_steps * 2 <= self.steps:
            return "seldom"
        return "constant" if self.late_steps >= _CONSTANT * self.steps and self.steps > 1 else "mostly"


@lru_cache(maxsize=2)
def late_rank(analysis: Analysis) -> Late | None:
    """The rank that others wait for; None where they wait in turn, or too little to tell."""
    blamed = waiting_for(analysis)
    total = sum(blamed.values())
    if not total:
        return None
    rank = max(blamed, key=lambda one: blamed[one])
    lane = next(lane for lane in analysis.lanes if lane.rank == rank)
    share, cost = blamed[rank] / total, blamed[rank] / span_seconds(lane)
    by_step = waiting_by_step(analysis)
    mine, everyone = by_step[rank], np.sum(list(by_step.values()), axis=0)
    often = (2 * mine > everyone) & (mine >= _NEXT_TO_NOTHING * mine.mean())
    late = Late(rank, share, cost, int(np.count_nonzero(often)), len(mine))
    least = LEAST_IN_TURN if late.pattern == "seldom" else _LEAST_WAITING
    return late if share >= _SHARE_OF_WAITING and cost >= least else None


def span_seconds(lane: Lane) -> float:
    """Seconds of the lane's window; on a CPU backend of its step ranges."""
    return (lane.in_window.span_ns or lane.window.host.total) / 1e9
