"""Device memory allocated inside steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.diagnose import SHARE, WARNING, Need, Rule, follows
from regress.record import Diagnosis
from regress.trace.names import CallKind

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_LEAST_PER_STEP = 1.0


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    """Asynchronous allocations come from a pool and are no fault."""
    worst = None
    for lane in analysis.device_lanes:
        calls = [call for call in lane.calls if call.kind is CallKind.ALLOC and "Async" not in call.name]
        count, took = sum(call.in_steps for call in calls), sum(call.in_steps_ns for call in calls)
        if lane.window.steps and count / lane.window.steps >= _LEAST_PER_STEP and (worst is None or took > worst[2]):
            worst = lane, count, took
    if worst is None:
        return []
    lane, count, took = worst
    per_step = count / lane.window.steps
    return [Diagnosis(
        "allocations", WARNING,
        {"rank": lane.rank, "device_allocs_per_step": per_step,
         "alloc_seconds_per_step": took / lane.window.steps / 1e9, SHARE: min(took / lane.in_window.span_ns, 1.0)},
        f"rank {lane.rank} allocates device memory {per_step:.0f} times a step: the caching allocator does not hold "
        "what the step needs, and cudaMalloc and cudaFree wait for the device",
        "keep shapes constant, drop empty_cache() from the loop, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")]


RULE = Rule("allocations", "steps allocate device memory instead of reusing it",
            "cudaMalloc and cudaFree may synchronise the device (CUDA runtime API, memory management)",
            _check, needs=(Need.STEPS, Need.DEVICE), explains=follows("launch_gaps", "host_sync", same_rank=True))
