"""How much of communication is hidden behind computation, and how much of the step it holds up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.metrics import Metric, Reading, worst
from regress.units import Better, Unit

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_SOURCE = ("unions of a rank's kernels per process and device over the step window; as the overlap of NVIDIA's recipe "
           "nccl_gpu_overlap_trace and of HolisticTraceAnalysis")


def _exposed(analysis: Analysis) -> Reading | None:
    by_rank = {lane.rank or 0: lane.in_window.exposed_ns / lane.in_window.span_ns
               for lane in analysis.device_lanes if lane.in_window.span_ns}
    return Reading(worst(by_rank, Better.LOWER), by_rank) if by_rank else None


def _overlap(analysis: Analysis) -> Reading | None:
    by_rank = {lane.rank or 0: lane.in_window.overlap_ns / lane.in_window.comm_ns
               for lane in analysis.device_lanes if lane.in_window.comm_ns}
    return Reading(worst(by_rank, Better.HIGHER), by_rank) if by_rank else None


EXPOSED = Metric("exposed_comm_ratio", Unit.RATIO, Better.LOWER,
                 "share of the step window in which communication kernels run and no compute kernel does", _SOURCE,
                 collective=False, from_trace=_exposed, gated=True)
OVERLAP = Metric("overlap_ratio", Unit.RATIO, Better.HIGHER,
                 "share of communication time during which a compute kernel runs too", _SOURCE,
                 collective=False, from_trace=_overlap)
