"""Gradients reduced in many small pieces."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regress.diagnose import CRITICAL, ONE_NUMBER_BYTES, SHARE, Need, Rule, follows
from regress.metrics.structure import COLLECTIVES
from regress.record import Diagnosis
from regress.trace.budget import exposed_shares, step_budgets
from regress.trace.intervals import intersection, union
from regress.trace.messages import MessageSize, message_sizes
from regress.trace.names import OPERATIONS
from regress.units import format_seconds, format_size

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis
    from regress.trace.lane import Lane

BUCKET_BYTES = 25 << 20
"""DDP's default bucket_cap_mb (torch.nn.parallel.DistributedDataParallel)."""
_TIMES_NEEDED = 3.0
_LEAST_PER_STEP = 8
_LEAST_EXPOSED = 0.05
_ALONE = 0.9
_FORWARD = 0.25
"""Forward is no less of what a step computes: backward takes twice as long, and may compute forward once more."""
_UNUSUAL = 4
"""A layer computes up to twice as long as the usual one between its reductions; forward as a whole takes longer."""
_SCATTERS = OPERATIONS.index("ReduceScatter")
_REDUCES = (OPERATIONS.index("AllReduce"), _SCATTERS)
"""What gradients are reduced with. Gathering parameters and moving activations is not cut into buckets."""
_LARGER_BUCKETS = (
    "raise bucket_cap_mb of DistributedDataParallel (leave it out for 25 MiB after a first bucket of 1 MiB), add "
    "gradient_as_bucket_view=True, and static_graph=True where every step uses the same parameters; or fuse the "
    "collectives into one")
_LARGER_UNITS = (
    "shard in larger units: FSDP's auto_wrap_policy, or fully_shard, on whole transformer blocks and not on single "
    "layers, or size_based_auto_wrap_policy with a larger min_num_params; with ZeRO raise reduce_bucket_size")


@dataclass(frozen=True, slots=True)
class _Reductions:
    """What one rank reduces, in a mean step. size: bytes of the gradients; scattered: how many are reduce-scatters.

    shortest: seconds of the shortest, waiting included: all that is known where ranks were not matched.
    """

    count: float
    size: float
    scattered: float
    shortest: float

    @property
    def needed(self) -> int:
        """Pieces of 25 MiB, and one more: DDP's first bucket is 1 MiB so that communication starts early, and its last
        one holds what is left over."""
        return math.ceil(self.size / BUCKET_BYTES) + 1


def _activations(analysis: Analysis) -> NDArray[np.uint64]:
    """Communicators that reduce what the next layer needs (tensor parallelism), by all ranks that are seen to use them.

    What a CPU backend's ranks compute is not seen, so theirs are none.
    """
    found: dict[int, bool] = {}
    for lane in analysis.lanes:
        table = lane.collectives
        reduces = table.in_steps & np.isin(table.operation, _REDUCES) & (table.size_bytes > ONE_NUMBER_BYTES)
        for communicator in np.unique(table.communicator[reduces]).tolist():
            mine = reduces & (table.communicator == communicator)
            found[communicator] = found.get(communicator, True) and _between_layers(lane, mine)
    return np.array([communicator for communicator, needed in found.items() if needed], np.uint64)


def _between_layers(lane: Lane, chosen: NDArray[np.bool_]) -> bool:
    """Whether nothing is computed beside these collectives, and nearly all that a step computes between them.

    Gradients are reduced in backward alone, however badly that overlaps: forward lies in one stretch. Where the device
    stands idle between steps for long, this cannot be told, and the answer is no.
    """
    table = lane.collectives
    held = union(table.start[chosen], table.end[chosen])
    gaps = np.sort(held.start[1:] - held.end[:-1])
    within = gaps[:len(gaps) - (lane.window.steps - 1)] if len(gaps) >= lane.window.steps else gaps[:0]
    if lane.on_host or len(within) == 0 or intersection(held, lane.exposed).total < _ALONE * held.total:
        return False
    near = int(within[within <= _UNUSUAL * np.median(within)].sum())
    return lane.in_window.span_ns - held.total - near <= _FORWARD * lane.in_window.compute_ns


def _reductions(analysis: Analysis, lane: Lane, activations: NDArray[np.uint64]) -> _Reductions | None:
    """None where a size is unknown. Single numbers and activations are no gradients."""
    table, steps = lane.collectives, lane.window.steps
    chosen = table.in_steps & np.isin(table.operation, _REDUCES) & ~np.isin(table.communicator, activations)
    if not steps or (table.size_bytes[chosen] < 0).any():
        return None
    chosen &= table.size_bytes > ONE_NUMBER_BYTES
    scatters = table.operation[chosen] == _SCATTERS
    # NCCL counts the part that a reduce-scatter leaves on one rank; what is reduced is that of all ranks.
    size = table.size_bytes[chosen] * np.where(scatters, _members(analysis, lane)[chosen], 1)
    shortest = float((table.end - table.start)[chosen].min()) / 1e9 if len(size) else 0.0
    return _Reductions(len(size) / steps, float(size.sum()) / steps, int(scatters.sum()) / steps, shortest)


def _members(analysis: Analysis, lane: Lane) -> NDArray[np.int64]:
    """Ranks of each of the lane's collectives: of those that not all traced ranks share, the ones that do."""
    everyone = len(analysis.lanes)
    parts = {group.communicator: len(group.ranks) for group in analysis.matching.groups if len(group.ranks) < everyone}
    whole = lane.world_size or everyone
    return np.array([parts.get(one, whole) for one in lane.collectives.communicator.tolist()], np.int64)


def _most(analysis: Analysis) -> _Reductions | None:
    """Of the rank that makes most; None where no rank's are known."""
    activations = _activations(analysis)
    found = [one for lane in analysis.lanes if (one := _reductions(analysis, lane, activations)) is not None]
    return max(found, key=lambda one: one.count, default=None)


def _sizes(analysis: Analysis) -> list[MessageSize]:
    """The rows of gradients in the table of message sizes; none where nothing is matched."""
    activations, names = _activations(analysis).tolist(), [OPERATIONS[code] for code in _REDUCES]
    groups = tuple(group for group in analysis.matching.groups if group.communicator not in activations)
    gradients = replace(analysis, matching=replace(analysis.matching, groups=groups))
    return [row for row in message_sizes(gradients)
            if row.operation in names and row.size_bytes and row.size_bytes > ONE_NUMBER_BYTES]


def _cost(analysis: Analysis, saved: float) -> float:
    """Part of the step that so many seconds are, of the rank that loses most.

    At most its exposed transfer: what is hidden costs nothing, and waiting for a late rank is no piece's doing.
    """
    return max((min(saved, budget.transfer) / budget.step for budget in step_budgets(analysis) if budget.step),
               default=0.0)


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    """Many times more reductions a step than pieces of 25 MiB would be, of which some hold up the step."""
    most, exposed = _most(analysis), max(exposed_shares(analysis).values(), default=0.0)
    if most is None or exposed < _LEAST_EXPOSED:
        return []
    if most.count < _LEAST_PER_STEP or most.count < _TIMES_NEEDED * most.needed:
        return []
    rows = _sizes(analysis)
    fixed = min((row.transfer_seconds for row in rows), default=most.shortest)
    transfer = sum(row.count * row.transfer_seconds for row in rows)
    saved = (most.count - most.needed) * fixed
    evidence: dict[str, float | int | str | bool | None] = {
        **_counts(analysis, ""), "needed_per_step": most.needed, "reduced_bytes_per_step": most.size,
        "message_bytes_min": min((row.size_bytes or 0 for row in rows), default=None),
        "message_bytes_max": max((row.size_bytes or 0 for row in rows), default=None),
        "fixed_seconds_each_at_most": fixed,
        "fixed_share_of_transfer_at_most": fixed * sum(row.count for row in rows) / transfer if transfer else None,
        "saved_seconds_per_step_at_most": saved, SHARE: _cost(analysis, saved),
        **(_counts(against, "_before") if against is not None else {})}
    return [Diagnosis(
        "small_collectives", CRITICAL, evidence,
        f"a step makes {most.count:.0f} collectives that reduce {format_size(round(most.size / most.count))} on "
        f"average, where pieces of 25 MiB would need {most.needed}: each pays its latency again and the link never "
        f"fills. The shortest takes {format_seconds(fixed)}, so bucketing saves up to {format_seconds(saved)} a step "
        "of transfer, and launches",
        # Reduce-scatters beside as many all-reduces are hybrid sharding, which all-reduces what it has scattered.
        _LARGER_UNITS if 2 * most.scattered >= most.count else _LARGER_BUCKETS)]


def _counts(analysis: Analysis, suffix: str) -> dict[str, float]:
    """Collectives of a step, and those of them that reduce; absent where unknown."""
    every, most = COLLECTIVES.from_trace(analysis) if COLLECTIVES.from_trace else None, _most(analysis)
    return {**({f"collectives_per_step{suffix}": every.value} if every is not None else {}),
            **({f"reductions_per_step{suffix}": most.count} if most is not None else {})}


RULE = Rule("small_collectives", "gradients are reduced in many more pieces than their size needs",
            "all-reduces and reduce-scatters of more than one number, a reduce-scatter with the bytes of all ranks, "
            "but not of a communicator that layers wait for throughout the step, as tensor parallelism does. "
            "Each pays a fixed latency (NCCL's latency-bound range ends near 1 MiB); DDP buckets 25 MiB, so eight or "
            "more pieces that are three times what that needs are not the default's doing. They cost the shortest's "
            "transfer for each that is too many, at most the transfer that nothing hides",
            _check, needs=(Need.STEPS, Need.SIZES), explains=follows("exposed_comm"))
