"""What the host does to the device: late launches, synchronisation, pageable copies, allocations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.metrics import Metric, Reading, worst
from regress.units import Better, Unit

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_RUNTIME = "runtime and driver calls (CUPTI_ACTIVITY_KIND_RUNTIME), whose synchronisation table is incomplete"


def _launch_gaps(analysis: Analysis) -> Reading | None:
    """detail: seconds of the worst rank by cause, and the longest late gap."""
    lanes = [lane for lane in analysis.device_lanes
             if lane.in_window.span_ns and lane.gaps.unknown_ns <= lane.gaps.late_ns + lane.gaps.queued_ns]
    if not lanes:
        return None
    by_rank = {lane.rank or 0: lane.gaps.late_ns / lane.in_window.span_ns for lane in lanes}
    lane = max(lanes, key=lambda one: one.gaps.late_ns / one.in_window.span_ns)
    detail = {"late_seconds": lane.gaps.late_ns / 1e9, "late_gaps": float(lane.gaps.late),
              "queued_seconds": lane.gaps.queued_ns / 1e9, "queued_gaps": float(lane.gaps.queued),
              "unknown_seconds": lane.gaps.unknown_ns / 1e9, "longest_late_seconds": lane.gaps.longest_late_ns / 1e9,
              "profiler_seconds": lane.gaps.profiler_ns / 1e9}
    return Reading(worst(by_rank, Better.LOWER), by_rank, detail=detail)


def _host_sync(analysis: Analysis) -> Reading | None:
    by_rank = {lane.rank or 0: lane.host_sync_ns / lane.host_ns for lane in analysis.device_lanes if lane.host_ns}
    return Reading(worst(by_rank, Better.LOWER), by_rank) if by_rank else None


def _pageable(analysis: Analysis) -> Reading | None:
    if not analysis.steps:
        return None
    by_rank = {lane.rank or 0: sum(copy.in_window_bytes for copy in lane.copies if copy.pageable) / lane.window.steps
               for lane in analysis.device_lanes}
    return Reading(worst(by_rank, Better.LOWER), by_rank) if by_rank else None


def _allocations(analysis: Analysis) -> Reading | None:
    from regress.trace.names import CallKind

    if not analysis.steps:
        return None
    by_rank = {lane.rank or 0: sum(call.in_steps for call in lane.calls if call.kind is CallKind.ALLOC)
               / lane.window.steps for lane in analysis.device_lanes}
    return Reading(worst(by_rank, Better.LOWER), by_rank) if by_rank else None


LAUNCH_GAPS = Metric("launch_gap_ratio", Unit.RATIO, Better.LOWER,
                     "share of the step window in which no kernel runs as the next one's launch call had not begun",
                     "gap after the running maximum of kernel ends; late where the launch call began after it",
                     collective=False, from_trace=_launch_gaps)
HOST_SYNC = Metric("host_sync_ratio", Unit.RATIO, Better.LOWER,
                   "share of the host's step ranges that threads which launch kernels there spend in calls that block "
                   "until the device is done", _RUNTIME,
                   collective=False, from_trace=_host_sync)
PAGEABLE = Metric("pageable_copy_bytes_per_step", Unit.BYTES, Better.LOWER,
                  "bytes a step copies between the device and host memory that is not pinned",
                  "copy records; such copies are staged and block (CUDA C++ best practices guide, pinned memory)",
                  collective=False, from_trace=_pageable)
ALLOCATIONS = Metric("device_allocs_per_step", Unit.COUNT, Better.LOWER,
                     "calls a step makes to allocate device memory; each may synchronise the device", _RUNTIME,
                     collective=False, from_trace=_allocations)
