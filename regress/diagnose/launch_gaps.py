"""A device that runs dry because the host does not launch in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.diagnose import MEDIUM, SHARE, WARNING, Need, Rule
from regress.record import Diagnosis
from regress.units import format_seconds

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_LEAST = 0.10


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    lanes = [lane for lane in analysis.device_lanes if lane.window.steps and lane.gaps.late]
    if not lanes:
        return []
    lane = max(lanes, key=lambda one: one.gaps.late_ns / one.in_window.span_ns)
    ratio = lane.gaps.late_ns / lane.in_window.span_ns
    if ratio < _LEAST:
        return []
    return [Diagnosis(
        "launch_gaps", WARNING,
        {"rank": lane.rank, "launch_gap_ratio": ratio, "late_gaps_per_step": lane.gaps.late / lane.window.steps,
         "mean_gap_seconds": lane.gaps.late_ns / lane.gaps.late / 1e9,
         "longest_gap_seconds": lane.gaps.longest_late_ns / 1e9, SHARE: ratio},
        f"rank {lane.rank}'s device stands idle {ratio:.0%} of the steps because the next kernel has not been launched "
        f"yet: {lane.gaps.late / lane.window.steps:.0f} gaps a step of "
        f"{format_seconds(lane.gaps.late_ns / lane.gaps.late / 1e9)}",
        "make fewer, bigger kernels: torch.compile (and look for its graph breaks: TORCH_LOGS=graph_breaks), fused "
        "optimisers, CUDA graphs, larger batches; load data in workers, ahead of the step", confidence=MEDIUM)]


RULE = Rule("launch_gaps", "the device runs dry because kernels are launched late",
            "gaps whose next launch call began after the device was done (NVIDIA's rule gpu_gaps sees only gaps of "
            "500 ms)", _check, needs=(Need.STEPS, Need.DEVICE))
