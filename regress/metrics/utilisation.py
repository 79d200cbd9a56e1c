"""Three different things called GPU utilisation, each under its own name, and NVLink's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from regress.metrics import Metric, Reading, worst
from regress.units import Better, Unit

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis
    from regress.trace.lane import Lane

_KERNELS = "union of a rank's kernels per process and device over the step window"
_SAMPLED = ("nsys GPU metrics, mean of the samples inside the step windows of the ranks on that GPU "
            "(Nsight Systems user guide, GPU metrics)")


def _fold(analysis: Analysis, better: Better, of_lane: Callable[[Lane], float | None]) -> Reading | None:
    by_rank = {lane.rank or 0: value for lane in analysis.device_lanes if (value := of_lane(lane)) is not None}
    return Reading(worst(by_rank, better), by_rank) if by_rank else None


def _compute(analysis: Analysis) -> Reading | None:
    return _fold(analysis, Better.HIGHER, lambda lane: lane.in_window.compute_ns / lane.in_window.span_ns
                 if lane.in_window.span_ns else None)


def _busy(analysis: Analysis) -> Reading | None:
    return _fold(analysis, Better.HIGHER, lambda lane: lane.in_window.busy_ns / lane.in_window.span_ns
                 if lane.in_window.span_ns else None)


def _sm_active(analysis: Analysis) -> Reading | None:
    return _fold(analysis, Better.HIGHER, lambda lane: _counter(lane, ("SMs Active", "SM Active")))


def _counter(lane: Lane, names: tuple[str, ...]) -> float | None:
    """A sampled percentage as a ratio; None where this GPU did not give it. `[Throughput %]` is newer nsys's suffix."""
    found = [value for name, value in lane.counters.items()
             if name.startswith(names) and (name in names or name.endswith("[Throughput %]"))]
    return found[0] / 100 if found else None


def _nvlink(direction: str) -> Callable[[Analysis], Reading | None]:
    def of_lane(lane: Lane) -> float | None:
        found = [value for name, value in lane.counters.items() if name.startswith(f"NVLink {direction} ")
                 and "User Data" in name]
        return sum(found) / 100 if found else None

    return lambda analysis: _fold(analysis, Better.HIGHER, of_lane)


COMPUTE = Metric("gpu_compute_ratio", Unit.RATIO, Better.HIGHER,
                 "share of the step window in which a kernel that is not communication runs", _KERNELS,
                 collective=False, from_trace=_compute, gated=True)
BUSY = Metric("gpu_busy_ratio", Unit.RATIO, Better.HIGHER,
              "share of the step window in which any kernel runs, waiting for other ranks included", _KERNELS,
              collective=False, from_trace=_busy)
SM_ACTIVE = Metric("sm_active_ratio", Unit.RATIO, Better.HIGHER,
                   "mean share of streaming multiprocessors with a resident warp", _SAMPLED,
                   collective=False, from_trace=_sm_active)
NVLINK_RX = Metric("nvlink_rx_ratio", Unit.RATIO, Better.HIGHER,
                   "mean user data received over NVLink, as a share of its peak", _SAMPLED,
                   collective=False, from_trace=_nvlink("RX"))
NVLINK_TX = Metric("nvlink_tx_ratio", Unit.RATIO, Better.HIGHER,
                   "mean user data sent over NVLink, as a share of its peak", _SAMPLED,
                   collective=False, from_trace=_nvlink("TX"))
