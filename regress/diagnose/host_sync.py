"""The host waits for the device in the middle of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from regress.diagnose import CRITICAL, PAGEABLE_BYTES_PER_STEP, SHARE, WARNING, Need, Rule, follows
from regress.record import Diagnosis
from regress.trace.budget import step_budgets
from regress.trace.names import CallKind
from regress.trace.timeline import CopyKind

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis
    from regress.trace.lane import Lane

_WHOLE_DEVICE = frozenset(("cudaDeviceSynchronize", "cudaThreadSynchronize", "cuCtxSynchronize"))
_STREAM = frozenset(("cudaStreamSynchronize", "cuStreamSynchronize"))
_BLOCKED, _STARVED = 0.10, 0.05


@dataclass(frozen=True, slots=True)
class _Waits:
    """Calls of one name that hold the host up inside steps, and the time they take."""

    call: str
    count: int
    took_ns: int


def _blocking(lane: Lane) -> list[_Waits]:
    """Calls of launching threads inside steps that wait for a device or stream, longest first.

    A copy to pageable memory (`loss.cpu()`) waits inside the copying call, and the wait for its stream finds it done.
    A copy from pageable memory (`batch.to(device)`) waits for its stream: that is left to the copies where they are a
    fault by their bytes, and else is a way to wait for the device.
    Waiting for an event is left out: that is how a loop keeps the host from running far ahead.
    """
    uploaded = sum(copy.in_window_bytes for copy in lane.copies
                   if copy.pageable and copy.kind is CopyKind.HOST_TO_DEVICE)
    left_out = uploaded >= PAGEABLE_BYTES_PER_STEP * lane.window.steps
    found = []
    for call in lane.calls:
        if call.plain_name not in _WHOLE_DEVICE | _STREAM and call.kind is not CallKind.COPY:
            continue
        of_copies = left_out and call.plain_name not in _WHOLE_DEVICE
        count = call.launching - call.uploading * of_copies
        if count:
            found.append(_Waits(call.plain_name, count, call.launching_ns - call.uploading_ns * of_copies))
    return sorted(found, key=lambda one: -one.took_ns)


@dataclass(frozen=True, slots=True)
class _Loss:
    """What a lane loses, as parts of its window: at most, and without what it blocks while its device waits itself."""

    lane: Lane
    blocked_ns: int
    waiting_ns: float

    @property
    def at_most(self) -> float:
        """Blocked, and the device ran dry."""
        return min(self.blocked_ns, self.lane.gaps.late_ns) / self.lane.in_window.span_ns

    @property
    def its_own(self) -> float:
        """The host also blocks while a collective on the device waits for a late rank: that is the late rank's loss."""
        own = max(self.blocked_ns - self.waiting_ns, 0.0)
        return min(own, self.lane.gaps.late_ns) / self.lane.in_window.span_ns


def _worst(analysis: Analysis) -> _Loss | None:
    """The rank that loses most of those blocked long enough."""
    waiting = {budget.rank: budget.waiting * budget.steps * 1e9 for budget in step_budgets(analysis)}
    found = [_Loss(lane, sum(one.took_ns for one in _blocking(lane)), waiting.get(lane.rank or 0, 0.0))
             for lane in analysis.device_lanes if lane.window.steps and lane.host_ns]
    return max((one for one in found if one.blocked_ns >= _BLOCKED * one.lane.host_ns),
               key=lambda one: (one.its_own, one.at_most), default=None)


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    """Critical where the device runs dry for it, beyond what its rank waits for a late one."""
    worst = _worst(analysis)
    if worst is None:
        return []
    lane, blocked = worst.lane, worst.blocked_ns / worst.lane.host_ns
    blocking = _blocking(lane)
    call, count = blocking[0].call, sum(one.count for one in blocking) / lane.window.steps
    waits = worst.its_own < worst.at_most / 2
    return [Diagnosis(
        "host_sync", CRITICAL if worst.its_own >= _STARVED else WARNING,
        {"rank": lane.rank, "call": call, "calls_per_step": count, "blocked_ratio": blocked,
         "launch_gap_ratio": lane.gaps.late_ns / lane.in_window.span_ns,
         "waiting_seconds_per_step": worst.waiting_ns / lane.window.steps / 1e9, SHARE: worst.at_most},
        f"rank {lane.rank} waits for its device {count:.0f} times a step ({call}, {blocked:.0%} of the "
        "step), and the device runs dry until the host has launched again"
        + ("; meanwhile the device itself waits for a late rank" if waits else ""),
        "remove synchronize(), .item(), .cpu() and torch.tensor(..., device=...) from the step: add up loss.detach() "
        "on the device and read it every n steps; what must cross in each step goes through pinned memory with "
        "non_blocking=True")]


RULE = Rule("host_sync", "the host blocks on the device inside steps, and the device then runs dry",
            "runtime calls inside step ranges, of threads that launch kernels there; launch gaps show the cost (CUDA "
            "best practices guide, asynchronous calls). Critical from 5 % of the step on, beyond what the rank's "
            "device waits for a late rank",
            _check, needs=(Need.STEPS, Need.DEVICE), explains=follows("launch_gaps"))
