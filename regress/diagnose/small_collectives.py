"""Gradients reduced in many small pieces."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from regress.diagnose import CRITICAL, SHARE, Need, Rule, follows
from regress.metrics.structure import COLLECTIVES, MESSAGE_BYTES
from regress.record import Diagnosis
from regress.trace.budget import exposed_shares
from regress.trace.messages import message_sizes
from regress.units import format_seconds, format_size

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

BUCKET_BYTES = 25 << 20
"""DDP's default bucket_cap_mb (torch.nn.parallel.DistributedDataParallel)."""
_TIMES_NEEDED = 3.0
_LEAST_PER_STEP = 8
_LEAST_EXPOSED = 0.05
_ONE_NUMBER_BYTES = 8


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    """Many times more collectives a step than buckets of 25 MiB would need, of which some hold up the step."""
    per_step, size = (metric.from_trace(analysis) if metric.from_trace else None
                      for metric in (COLLECTIVES, MESSAGE_BYTES))
    exposed = max(exposed_shares(analysis).values(), default=0.0)
    if per_step is None or size is None or exposed < _LEAST_EXPOSED:
        return []
    # Two small pieces are no fault: DDP's first bucket is 1 MiB so that communication starts early, and its last one
    # holds what is left over.
    needed = math.ceil(per_step.value * size.value / BUCKET_BYTES) + 1
    if per_step.value < _LEAST_PER_STEP or per_step.value < _TIMES_NEEDED * needed:
        return []
    rows = [row for row in message_sizes(analysis) if row.size_bytes and row.size_bytes > _ONE_NUMBER_BYTES]
    fixed = min((row.transfer_seconds for row in rows), default=0.0)
    transfer = sum(row.count * row.transfer_seconds for row in rows)
    saved = (per_step.value - needed) * fixed
    evidence: dict[str, float | int | str | bool | None] = {
        "collectives_per_step": per_step.value, "needed_per_step": needed, "message_bytes_mean": size.value,
        "message_bytes_min": min((row.size_bytes or 0 for row in rows), default=None),
        "message_bytes_max": max((row.size_bytes or 0 for row in rows), default=None),
        "fixed_seconds_each_at_most": fixed,
        "fixed_share_of_transfer_at_most": fixed * sum(row.count for row in rows) / transfer if transfer else None,
        "saved_seconds_per_step_at_most": saved, SHARE: exposed}
    before = COLLECTIVES.from_trace(against) if against is not None and COLLECTIVES.from_trace else None
    if before is not None:
        evidence["collectives_per_step_before"] = before.value
    return [Diagnosis(
        "small_collectives", CRITICAL, evidence,
        f"a step makes {per_step.value:.0f} collectives of {format_size(round(size.value))} on average, where buckets "
        f"of 25 MiB would need {needed}: each pays its latency again and the link never fills. The shortest takes "
        f"{format_seconds(fixed)}, so bucketing saves up to {format_seconds(saved)} a step of transfer, and launches",
        "raise bucket_cap_mb of DistributedDataParallel (leave it out for 25 MiB after a first bucket of 1 MiB), add "
        "gradient_as_bucket_view=True, and static_graph=True where every step uses the same parameters; or fuse the "
        "collectives into one")]


RULE = Rule("small_collectives", "gradients are reduced in many more pieces than their size needs",
            "each collective pays a fixed latency (NCCL's latency-bound range ends near 1 MiB); DDP buckets 25 MiB, so "
            "eight or more pieces that are three times what that needs are not the default's doing",
            _check, needs=(Need.STEPS, Need.SIZES), explains=follows("exposed_comm"))
