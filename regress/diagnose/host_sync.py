"""The host waits for the device in the middle of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.diagnose import CRITICAL, SHARE, WARNING, Need, Rule, follows
from regress.record import Diagnosis
from regress.trace.names import CallKind

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis
    from regress.trace.lane import CallTotal, Lane

_WHOLE_DEVICE = frozenset(("cudaDeviceSynchronize", "cudaThreadSynchronize", "cuCtxSynchronize"))
_STREAM = frozenset(("cudaStreamSynchronize", "cuStreamSynchronize"))
_BLOCKED, _STARVED = 0.10, 0.05


def _blocking(lane: Lane) -> list[CallTotal]:
    """Calls inside steps that wait for a device or stream, without those a pageable copy makes.

    Waiting for an event is left out: that is how a loop keeps the host from running far ahead.
    """
    pageable = sum(copy.in_window for copy in lane.copies if copy.pageable)
    found = []
    for call in lane.calls:
        if call.kind is not CallKind.SYNC or not call.in_steps:
            continue
        if call.plain_name in _WHOLE_DEVICE or (call.plain_name in _STREAM and call.in_steps > pageable):
            found.append(call)
    return found


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    """The rank that loses most: blocked long enough, and its device ran dry for it."""
    worst: tuple[float, float, Lane] | None = None
    for lane in analysis.device_lanes:
        if not lane.window.steps or not lane.host_ns:
            continue
        blocked = sum(call.in_steps_ns for call in _blocking(lane)) / lane.host_ns
        starved = lane.gaps.late_ns / lane.in_window.span_ns
        if blocked >= _BLOCKED and (worst is None or min(blocked, starved) > worst[0]):
            worst = min(blocked, starved), blocked, lane
    if worst is None:
        return []
    loss, blocked, lane = worst
    calls = sorted(_blocking(lane), key=lambda call: -call.in_steps_ns)
    count = sum(call.in_steps for call in calls) / lane.window.steps
    return [Diagnosis(
        "host_sync", CRITICAL if loss >= _STARVED else WARNING,
        {"rank": lane.rank, "call": calls[0].plain_name, "calls_per_step": count, "blocked_ratio": blocked,
         "launch_gap_ratio": lane.gaps.late_ns / lane.in_window.span_ns, SHARE: loss},
        f"rank {lane.rank} waits for its device {count:.0f} times a step ({calls[0].plain_name}, {blocked:.0%} of the "
        "step), and the device runs dry until the host has launched again",
        "remove synchronize() and .item() from the step: log losses every n steps, and copy with non_blocking=True")]


RULE = Rule("host_sync", "the host blocks on the device inside steps, and the device then runs dry",
            "runtime calls inside step ranges; launch gaps show the cost (CUDA best practices guide, asynchronous "
            "calls)", _check, needs=(Need.STEPS, Need.DEVICE), explains=follows("launch_gaps"))
