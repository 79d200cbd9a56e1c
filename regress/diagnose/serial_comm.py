"""Communication on the stream that computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.diagnose import INFO, SHARE, WARNING, Need, Rule, follows
from regress.record import Diagnosis

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_COMPUTES = 0.20
_COSTLY = 0.05


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    """The rank that loses most among those whose every communication kernel shares a stream with computation."""
    lanes = [lane for lane in analysis.device_lanes if lane.comm_kernels and lane.serial_comm == lane.comm_kernels
             and lane.in_window.compute_ns >= _COMPUTES * lane.in_window.span_ns]
    if not lanes:
        return []
    lane = max(lanes, key=lambda one: one.in_window.exposed_ns / one.in_window.span_ns)
    cost = lane.in_window.exposed_ns / lane.in_window.span_ns
    return [Diagnosis(
        "serial_comm", WARNING if cost >= _COSTLY else INFO,
        {"rank": lane.rank, "comm_kernels": lane.comm_kernels, "on_a_computing_stream": lane.serial_comm, SHARE: cost},
        f"all {lane.comm_kernels} communication kernels of rank {lane.rank} run on a stream that computes too, so none "
        f"can run beside computation of that stream: {cost:.0%} of the window is communication alone",
        "give communication a stream of its own (async_op=True, or a torch.cuda.Stream around it) where the result is "
        "not needed at once")]


RULE = Rule("serial_comm", "communication shares a stream with computation, so neither can hide the other",
            "kernels of one stream run in order (CUDA C++ programming guide, streams). Only where computation fills a "
            "fifth of the window: a benchmark of collectives alone has nothing to hide behind",
            _check, needs=(Need.DEVICE,), explains=follows("exposed_comm"))
