"""Gradients reduced in many small pieces."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from regress.diagnose import CRITICAL, SHARE, Rule
from regress.metrics.overlap import EXPOSED
from regress.metrics.structure import COLLECTIVES, MESSAGE_BYTES
from regress.record import Diagnosis
from regress.units import format_size

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

BUCKET_BYTES = 25 << 20
"""DDP's default bucket_cap_mb (torch.nn.parallel.DistributedDataParallel)."""
_TIMES_NEEDED = 3.0
_LEAST_PER_STEP = 8
_LEAST_EXPOSED = 0.05


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    """Many times more collectives a step than buckets of 25 MiB would need, of which some hold up the step."""
    per_step, size, exposed = (metric.from_trace(analysis) if metric.from_trace else None
                               for metric in (COLLECTIVES, MESSAGE_BYTES, EXPOSED))
    if per_step is None or size is None or exposed is None or exposed.value < _LEAST_EXPOSED:
        return []
    # One bucket more: DDP makes its first one small (1 MiB) so that communication starts early.
    needed = math.ceil(per_step.value * size.value / BUCKET_BYTES) + 1
    if per_step.value < _LEAST_PER_STEP or per_step.value < _TIMES_NEEDED * needed:
        return []
    evidence = {"collectives_per_step": per_step.value, "needed_per_step": needed,
                "message_bytes_mean": size.value, SHARE: exposed.value}
    before = COLLECTIVES.from_trace(against) if against is not None and COLLECTIVES.from_trace else None
    if before is not None:
        evidence["collectives_per_step_before"] = before.value
    return [Diagnosis(
        "small_collectives", CRITICAL, dict(evidence),
        f"a step makes {per_step.value:.0f} collectives of {format_size(round(size.value))} on average, where buckets "
        f"of 25 MiB would need {needed}: each pays its latency again and the link never fills",
        "raise bucket_cap_mb of DistributedDataParallel (25 is its default), or fuse the collectives into one")]


RULE = Rule("small_collectives", "gradients are reduced in many more pieces than their size needs",
            "each collective pays a fixed latency (NCCL's latency-bound range ends near 1 MiB); DDP buckets 25 MiB",
            _check)
