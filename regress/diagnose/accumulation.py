"""Gradients reduced in every micro-batch of an accumulated step."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from regress.diagnose import CRITICAL, SHARE, WARNING, Need, Rule, follows
from regress.record import Diagnosis
from regress.trace.budget import step_budgets
from regress.trace.names import OPERATIONS

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis
    from regress.trace.collectives import Matched
    from regress.trace.lane import LaneCollectives

_ALL_REDUCE = OPERATIONS.index("AllReduce")
_LEAST_BYTES = 1 << 20
_USUAL = 0.8
_COSTLY = 0.10
"""From this part of the step on the finding is more than a remark."""


def repeats(sizes: list[int]) -> int:
    """How often the shortest period of `sizes` fits into it; 1 where it does not repeat."""
    for period in range(1, len(sizes) // 2 + 1):
        if len(sizes) % period == 0 and sizes == sizes[:period] * (len(sizes) // period):
            return len(sizes) // period
    return 1


def _repeated(table: Matched | LaneCollectives, steps: int) -> int:
    """How often a step repeats one sequence of all-reduces of differing sizes; 1 where it does not.

    Two buckets that were started at almost the same time may change places in a trace, so one step in five may differ.
    """
    inside = table.in_steps & (table.operation == _ALL_REDUCE)
    sizes = table.size_bytes[inside].tolist()
    if len(sizes) < 2 * steps or len(sizes) % steps or min(sizes) < 0 or sum(sizes) < _LEAST_BYTES * len(sizes):
        return 1
    per_step = len(sizes) // steps
    usual, count = Counter(tuple(sizes[k:k + per_step]) for k in range(0, len(sizes), per_step)).most_common(1)[0]
    # Equal sizes throughout are what tensor parallelism does in every layer: no evidence of micro-batches.
    return repeats(list(usual)) if len(set(usual)) > 1 and count >= _USUAL * steps else 1


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    steps = analysis.steps
    if steps is None:
        return []
    # A rank's own sequence too: what could not be matched across ranks is missing from the groups.
    tables: list[Matched | LaneCollectives] = [*analysis.matching.groups]
    tables += [lane.collectives for lane in analysis.lanes]
    times = max((_repeated(table, steps) for table in tables), default=1)
    if times < 2:
        return []
    # Waiting for a late rank would be there with one reduction too.
    exposed = max((budget.transfer / budget.step for budget in step_budgets(analysis) if budget.step), default=0.0)
    cost = exposed * (times - 1) / times
    return [Diagnosis(
        "accumulation", CRITICAL if cost >= _COSTLY else WARNING, {"reductions_per_step": times, SHARE: cost},
        f"every step reduces the same gradients {times} times: in each micro-batch, where once at the end would do",
        "wrap all micro-batches but the last in DistributedDataParallel.no_sync()")]


RULE = Rule("accumulation", "accumulated gradients are reduced in every micro-batch",
            "the step's all-reduces repeat one sequence of sizes; DistributedDataParallel.no_sync avoids all but one. "
            "Critical from 10 % of the step on",
            _check, needs=(Need.STEPS, Need.SIZES, Need.RANKS), explains=follows("small_collectives", "exposed_comm"))
