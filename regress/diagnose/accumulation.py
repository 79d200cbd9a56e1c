"""Gradients reduced in every micro-batch of an accumulated step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.diagnose import CRITICAL, SHARE, WARNING, Need, Rule, follows
from regress.record import Diagnosis
from regress.trace.budget import exposed_shares
from regress.trace.names import OPERATIONS

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis
    from regress.trace.collectives import Matched

_ALL_REDUCE = OPERATIONS.index("AllReduce")
_LEAST_BYTES = 1 << 20
_COSTLY = 0.10
"""From this part of the step on the finding is more than a remark."""


def repeats(sizes: list[int]) -> int:
    """How often the shortest period of `sizes` fits into it; 1 where it does not repeat."""
    for period in range(1, len(sizes) // 2 + 1):
        if len(sizes) % period == 0 and sizes == sizes[:period] * (len(sizes) // period):
            return len(sizes) // period
    return 1


def _repeated(group: Matched, steps: int) -> int:
    """How often every step repeats one sequence of all-reduces of differing sizes; 1 where it does not."""
    inside = group.in_steps & (group.operation == _ALL_REDUCE)
    sizes = group.size_bytes[inside].tolist()
    if len(sizes) < 2 * steps or len(sizes) % steps or min(sizes) < 0 or sum(sizes) < _LEAST_BYTES * len(sizes):
        return 1
    per_step = len(sizes) // steps
    first = sizes[:per_step]
    # Equal sizes throughout are what tensor parallelism does in every layer: no evidence of micro-batches.
    if len(set(first)) < 2 or any(sizes[k:k + per_step] != first for k in range(0, len(sizes), per_step)):
        return 1
    return repeats(first)


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    steps, exposed = analysis.steps, exposed_shares(analysis)
    if steps is None or not exposed:
        return []
    times = max((_repeated(group, steps) for group in analysis.matching.groups), default=1)
    if times < 2:
        return []
    cost = max(exposed.values()) * (times - 1) / times
    return [Diagnosis(
        "accumulation", CRITICAL if cost >= _COSTLY else WARNING, {"reductions_per_step": times, SHARE: cost},
        f"every step reduces the same gradients {times} times: in each micro-batch, where once at the end would do",
        "wrap all micro-batches but the last in DistributedDataParallel.no_sync()")]


RULE = Rule("accumulation", "accumulated gradients are reduced in every micro-batch",
            "the step's all-reduces repeat one sequence of sizes; DistributedDataParallel.no_sync avoids all but one. "
            "Critical from 10 % of the step on",
            _check, needs=(Need.STEPS, Need.SIZES, Need.RANKS), explains=follows("small_collectives", "exposed_comm"))
