"""Ranks that meet for nothing inside every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from regress.diagnose import CRITICAL, INFO, ONE_NUMBER_BYTES, SHARE, WARNING, Need, Rule
from regress.record import Diagnosis
from regress.trace.intervals import intersection, union
from regress.trace.late import late_rank
from regress.trace.names import OPERATIONS
from regress.trace.waits import lane_waits
from regress.units import format_seconds

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_BARRIER = OPERATIONS.index("Barrier")
_LEAST_PER_STEP = 0.5
_COSTLY, _NOTED = 0.05, 0.005


def _counted(per_step: float, named_so: bool) -> str:
    what = "barrier" if named_so else "collective of a single number"
    return f"{per_step:.0f} {what.replace(' of', 's of') if ' of' in what else what + 's'}" if per_step >= 1.5 else (
        f"a {what}")


@dataclass(frozen=True, slots=True)
class _Held:
    """What one lane spends in barriers in its steps, in ns, and the part of that in which it waits for a late rank."""

    rank: int
    span_ns: int
    steps: int
    count: int
    named: bool
    total_ns: int
    waiting_ns: int

    @property
    def share(self) -> float:
        """Part of the window that goes without the barriers: who waits for a late rank waits in the next collective."""
        return min((self.total_ns - self.waiting_ns) / self.span_ns, 1.0)


def _held(analysis: Analysis, number: int, late: int | None) -> _Held | None:
    """None where the lane has no barrier in every other step. NCCL has none: torch reduces one element instead."""
    lane = analysis.lanes[number]
    table, steps = lane.collectives, lane.window.steps
    named = table.in_steps & (table.operation == _BARRIER)
    tiny = named | (table.in_steps & (table.size_bytes > 0) & (table.size_bytes <= ONE_NUMBER_BYTES))
    span = lane.span_ns
    count = int(np.count_nonzero(tiny))
    if not steps or not span or count < _LEAST_PER_STEP * steps:
        return None
    waiting = 0 if late is None else intersection(union(table.start[tiny], table.end[tiny]),
                                                  lane_waits(analysis, number).of(late)).total
    return _Held(lane.rank or 0, span, steps, count, bool(named.any()), int((table.end - table.start)[tiny].sum()),
                 waiting)


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    """The rank that spends most time in them, what it waits there for a late rank left to that."""
    late = late_rank(analysis)
    held = [one for number in range(len(analysis.lanes))
            if (one := _held(analysis, number, None if late is None else late.rank)) is not None]
    worst = max(held, key=lambda one: one.share, default=None)
    if worst is None or worst.share < _NOTED:
        return []
    each, waited = worst.share * worst.span_ns / 1e9, sum(one.waiting_ns for one in held)
    beyond = f" beyond the waiting for rank {late.rank}" if late is not None and waited else ""
    return [Diagnosis(
        "barriers", (CRITICAL if worst.named else WARNING) if worst.share >= _COSTLY else INFO,
        {"rank": worst.rank, "per_step": worst.count / worst.steps, "seconds_each": each / worst.count,
         "waiting_share_of_barriers": waited / max(sum(one.total_ns for one in held), 1), SHARE: worst.share},
        f"every step has {_counted(worst.count / worst.steps, worst.named)}, holding rank {worst.rank} for "
        f"{format_seconds(each / worst.steps)} of it{beyond}: all ranks wait for the slowest there, though the "
        "gradients' own collectives do that already",
        "remove dist.barrier() from the step, and reduce losses for the log every n steps, with others in one tensor")]


RULE = Rule("barriers", "a barrier, or the reduction of a single number, inside every step",
            "a collective moves no data that is not needed elsewhere and still waits for the last rank; NCCL's barrier "
            "is an all-reduce of one element (torch ProcessGroupNCCL). Critical from 5 % of the step on, without the "
            "waiting for a rank that is late: without the barrier it is waited for in the next collective",
            _check, needs=(Need.STEPS,))
