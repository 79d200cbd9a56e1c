"""Copies between the device and host memory that is not pinned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.diagnose import CRITICAL, PAGEABLE_BYTES_PER_STEP, SHARE, WARNING, Need, Rule, follows
from regress.record import Diagnosis
from regress.units import format_size

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis
    from regress.trace.lane import Lane

_COSTLY = 0.05


def _cost(lane: Lane) -> tuple[int, int]:
    """Bytes and device time of the lane's pageable copies inside the window."""
    return (sum(copy.in_window_bytes for copy in lane.copies if copy.pageable),
            sum(copy.in_window_ns for copy in lane.copies if copy.pageable))


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    lanes = [lane for lane in analysis.device_lanes
             if lane.window.steps and _cost(lane)[0] >= PAGEABLE_BYTES_PER_STEP * lane.window.steps]
    if not lanes:
        return []
    lane = max(lanes, key=lambda one: _cost(one)[1] / one.in_window.span_ns)
    size, took = _cost(lane)
    per_step = size / lane.window.steps
    copying = took / lane.in_window.span_ns
    # Such a copy blocks the host as well: what the device then lacks is part of its cost.
    loss = max(copying, lane.gaps.late_ns / lane.in_window.span_ns) if copying >= _COSTLY else copying
    return [Diagnosis(
        "pageable_copies", CRITICAL if copying >= _COSTLY else WARNING,
        {"rank": lane.rank, "pageable_copy_bytes_per_step": per_step, "copy_seconds_per_step":
         took / lane.window.steps / 1e9, "bytes_per_second": size / (took / 1e9) if took else None, SHARE: loss},
        f"rank {lane.rank} copies {format_size(round(per_step))} a step from or to memory that is not pinned: the "
        "driver stages it through a buffer of its own and the call blocks",
        "load data with pin_memory=True and copy with non_blocking=True")]


RULE = Rule("pageable_copies", "data moves between the device and host memory that is not pinned",
            "pageable copies are staged and cannot overlap (CUDA best practices guide, pinned memory)",
            _check, needs=(Need.STEPS, Need.DEVICE), explains=follows("launch_gaps", "host_sync"))
