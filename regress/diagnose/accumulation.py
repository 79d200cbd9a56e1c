"""Gradients reduced in every micro-batch of an accumulated step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regress.diagnose import CRITICAL, ONE_NUMBER_BYTES, SHARE, WARNING, Need, Rule, follows
from regress.record import Diagnosis
from regress.trace.budget import step_budgets
from regress.trace.names import OPERATIONS

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis
    from regress.trace.collectives import Matched
    from regress.trace.lane import LaneCollectives

_ALL_REDUCE, _SCATTER = OPERATIONS.index("AllReduce"), OPERATIONS.index("ReduceScatter")
_LEAST_BYTES = 1 << 20
_FEW_NUMBERS_BYTES = 1 << 10
"""Some numbers for the log. A bucket may be as small, and be all that tells a sequence's sizes apart."""
_USUAL = 0.8
_COSTLY = 0.10
"""From this part of the step on the finding is more than a remark."""
_SUGGESTIONS = {
    _ALL_REDUCE: "wrap all micro-batches but the last in DistributedDataParallel.no_sync()",
    _SCATTER: "call set_requires_gradient_sync(False) of fully_shard before all micro-batches but the last, or wrap "
              "them in FullyShardedDataParallel.no_sync(), where memory holds the gradients unsharded until then"}


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Reductions of one operation in steps, in order, without single numbers (a loss, the norm of all gradients).

    size_bytes: of all that is reduced, -1 where unknown. length_ns: their transfer, with waiting where it is not known.
    """

    operation: int
    size_bytes: NDArray[np.int64]
    length_ns: NDArray[np.int64]

    def times(self, steps: int) -> int:
        """How often a step repeats one sequence of differing sizes; 1 where it does not."""
        if (self.size_bytes < 0).any():
            return 1
        return max(_repeated(self.size_bytes[self.size_bytes > least].tolist(), steps)
                   for least in (ONE_NUMBER_BYTES, _FEW_NUMBERS_BYTES))


def repeats(sizes: list[int]) -> int:
    """How often the shortest period of `sizes` fits into it; 1 where it does not repeat."""
    for period in range(1, len(sizes) // 2 + 1):
        if len(sizes) % period == 0 and sizes == sizes[:period] * (len(sizes) // period):
            return len(sizes) // period
    return 1


def _repeated(sizes: list[int], steps: int) -> int:
    """`repeats` of the sequence that most steps have.

    Two buckets that were started at almost the same time may change places in a trace, so one step in five may differ.
    """
    if len(sizes) < 2 * steps or len(sizes) % steps or sum(sizes) < _LEAST_BYTES * len(sizes):
        return 1
    per_step = len(sizes) // steps
    usual, count = Counter(tuple(sizes[k:k + per_step]) for k in range(0, len(sizes), per_step)).most_common(1)[0]
    # Equal sizes throughout are what tensor parallelism does in every layer: no evidence of micro-batches.
    return repeats(list(usual)) if len(set(usual)) > 1 and count >= _USUAL * steps else 1


def _sequences(analysis: Analysis) -> Iterator[_Sequence]:
    """Of each communicator, then each rank's own: what could not be matched across ranks is missing from the groups."""
    everyone = len(analysis.lanes)
    tables: list[tuple[Matched | LaneCollectives, NDArray[np.int64], int]] = [
        (group, group.transfer_ns, len(group.ranks)) for group in analysis.matching.groups]
    tables += [(lane.collectives, lane.collectives.end - lane.collectives.start, lane.world_size or everyone)
               for lane in analysis.lanes]
    for table, length, ranks in tables:
        for operation in _SUGGESTIONS:
            chosen = table.in_steps & (table.operation == operation)
            chosen &= (table.size_bytes > ONE_NUMBER_BYTES) | (table.size_bytes < 0)
            size = table.size_bytes[chosen]
            # NCCL counts the part that a reduce-scatter leaves on one rank.
            whole = np.where(size > 0, size * ranks, size) if operation == _SCATTER else size
            yield _Sequence(operation, whole, length[chosen])


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    steps = analysis.steps
    if steps is None:
        return []
    every = [(one.times(steps), one.operation == _SCATTER, one) for one in _sequences(analysis)]
    # Hybrid sharding all-reduces between nodes what it has scattered: its way out is that of the scattering.
    times, scattered, found = max(every, key=lambda one: one[:2])
    if times < 2:
        return []
    # At most what nothing hides; and waiting for a late rank would be there with one reduction too.
    moved = float(found.length_ns.sum()) / steps / 1e9
    exposed = max((min(moved, one.transfer) / one.step for one in step_budgets(analysis) if one.step), default=0.0)
    cost = exposed * (times - 1) / times
    return [Diagnosis(
        "accumulation", CRITICAL if cost >= _COSTLY and not scattered else WARNING,
        {"operation": OPERATIONS[found.operation], "reductions_per_step": times, SHARE: cost},
        f"every step reduces the same gradients {times} times: in each micro-batch, where once at the end would do",
        _SUGGESTIONS[found.operation])]


RULE = Rule("accumulation", "accumulated gradients are reduced in every micro-batch",
            "the step's all-reduces, or its reduce-scatters, repeat one sequence of sizes, single numbers and the like "
            "left out; DistributedDataParallel.no_sync and fully_shard's set_requires_gradient_sync avoid all but one. "
            "Critical from 10 % of the step on for all-reduces: sharded gradients may be reduced early to save memory",
            _check, needs=(Need.STEPS, Need.SIZES, Need.RANKS), explains=follows("small_collectives", "exposed_comm"))
