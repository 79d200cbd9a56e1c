"""Device memory allocated inside steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from regress.diagnose import SHARE, WARNING, Need, Rule, follows
from regress.record import Diagnosis
from regress.trace.names import CallKind

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis
    from regress.trace.lane import Lane

_LEAST_PER_STEP = 1.0
_FREES = frozenset(("cudaFree", "cuMemFree", "cuMemRelease"))
"""Calls that give device memory back and wait for the device before; cudaFreeAsync gives it back to a pool."""


@dataclass(frozen=True, slots=True)
class _Spent:
    """What a lane's steps spend on device memory, all of them together."""

    lane: Lane
    allocs: int
    allocs_ns: int
    frees: int
    frees_ns: int

    @property
    def share(self) -> float:
        """Part of the window, at most: a call that holds the host costs nothing while the device is busy."""
        window = self.lane.in_window
        return min(self.allocs_ns + self.frees_ns, window.span_ns - window.busy_ns) / window.span_ns


def _spent(lane: Lane) -> _Spent:
    """Asynchronous allocations come from a pool and are no fault."""
    allocs = [call for call in lane.calls if call.kind is CallKind.ALLOC and "Async" not in call.name]
    frees = [call for call in lane.calls if call.plain_name in _FREES]
    return _Spent(lane, sum(call.in_steps for call in allocs), sum(call.in_steps_ns for call in allocs),
                  sum(call.in_steps for call in frees), sum(call.in_steps_ns for call in frees))


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    """The rank that loses most."""
    found = [_spent(lane) for lane in analysis.device_lanes if lane.window.steps and lane.in_window.span_ns]
    worst = max((one for one in found if one.allocs >= _LEAST_PER_STEP * one.lane.window.steps),
                key=lambda one: one.share, default=None)
    if worst is None:
        return []
    steps, rank = worst.lane.window.steps, worst.lane.rank
    freed = f" and frees it {worst.frees / steps:.0f} times" if worst.frees >= steps else ""
    return [Diagnosis(
        "allocations", WARNING,
        {"rank": rank, "device_allocs_per_step": worst.allocs / steps,
         "alloc_seconds_per_step": worst.allocs_ns / steps / 1e9, "device_frees_per_step": worst.frees / steps,
         "free_seconds_per_step": worst.frees_ns / steps / 1e9, SHARE: worst.share},
        f"rank {rank} allocates device memory {worst.allocs / steps:.0f} times a step{freed}: the caching allocator "
        "does not hold what the step needs, and cudaMalloc and cudaFree wait for the device",
        "keep shapes constant, drop empty_cache() from the loop, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")]


RULE = Rule("allocations", "steps allocate device memory instead of reusing it",
            "cudaMalloc and cudaFree may synchronise the device (CUDA runtime API, memory management). They cost what "
            "they take, at most the time in which the device stands idle",
            _check, needs=(Need.STEPS, Need.DEVICE), explains=follows("launch_gaps", "host_sync", same_rank=True))
