"""Ranks that meet for nothing inside every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from regress.diagnose import CRITICAL, INFO, SHARE, WARNING, Need, Rule
from regress.record import Diagnosis
from regress.trace.names import OPERATIONS
from regress.units import format_seconds

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_BARRIER = OPERATIONS.index("Barrier")
_ONE_NUMBER_BYTES = 8
_LEAST_PER_STEP = 0.5
_COSTLY, _NOTED = 0.05, 0.005


def _counted(per_step: float, named_so: bool) -> str:
    what = "barrier" if named_so else "collective of a single number"
    return f"{per_step:.0f} {what.replace(' of', 's of') if ' of' in what else what + 's'}" if per_step >= 1.5 else (
        f"a {what}")


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    """The rank that spends most time in them. NCCL has no barrier: torch reduces one element instead."""
    worst: tuple[float, int, int, bool] | None = None
    for lane in analysis.lanes:
        table, steps = lane.collectives, lane.window.steps
        named = table.in_steps & (table.operation == _BARRIER)
        tiny = named | (table.in_steps & (table.size_bytes > 0) & (table.size_bytes <= _ONE_NUMBER_BYTES))
        span = lane.window.host.total if lane.on_host else lane.in_window.span_ns
        count = int(np.count_nonzero(tiny))
        if not steps or not span or count < _LEAST_PER_STEP * steps:
            continue
        share = float((table.end - table.start)[tiny].sum()) / span
        if worst is None or share > worst[0]:
            worst = min(share, 1.0), lane.rank or 0, count, bool(named.any())
    if worst is None or worst[0] < _NOTED:
        return []
    share, rank, count, named_so = worst
    lane = next(lane for lane in analysis.lanes if lane.rank == rank)
    span = lane.window.host.total if lane.on_host else lane.in_window.span_ns
    per_step = count / lane.window.steps
    return [Diagnosis(
        "barriers", (CRITICAL if named_so else WARNING) if share >= _COSTLY else INFO,
        {"rank": rank, "per_step": per_step, "seconds_each": share * span / count / 1e9, SHARE: share},
        f"every step has {_counted(per_step, named_so)}, holding rank {rank} for "
        f"{format_seconds(share * span / lane.window.steps / 1e9)} of it: all ranks wait for the slowest there, "
        "though the gradients' own collectives do that already",
        "remove dist.barrier() from the step, and reduce losses for the log every n steps, with others in one tensor")]


RULE = Rule("barriers", "a barrier, or the reduction of a single number, inside every step",
            "a collective moves no data that is not needed elsewhere and still waits for the last rank; NCCL's barrier "
            "is an all-reduce of one element (torch ProcessGroupNCCL). Critical from 5 % of the step on",
            _check, needs=(Need.STEPS,))
