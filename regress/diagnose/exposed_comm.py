"""Communication that holds up the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.diagnose import SHARE, WARNING, Rule
from regress.metrics.overlap import EXPOSED, OVERLAP
from regress.record import Diagnosis
from regress.trace.messages import arrivals

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_LEAST = 0.20


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    exposed, overlap = (metric.from_trace(analysis) if metric.from_trace else None for metric in (EXPOSED, OVERLAP))
    if analysis.steps is None or exposed is None or overlap is None or exposed.value < _LEAST:
        return []
    rank = max(exposed.by_rank, key=lambda r: exposed.by_rank[r])
    lane = next(lane for lane in analysis.device_lanes if lane.rank == rank)
    waiting = next((one.waiting_seconds * one.collectives for one in arrivals(analysis) if one.rank == rank), 0.0)
    waited = min(1.0, waiting * 1e9 / lane.in_window.comm_ns) if lane.in_window.comm_ns else 0.0
    mostly_waiting = waited > 0.5
    return [Diagnosis(
        "exposed_comm", WARNING,
        {"rank": rank, "exposed_comm_ratio": exposed.value, "overlap_ratio": overlap.value,
         "waiting_share_of_comm": waited, SHARE: exposed.value},
        f"on rank {rank} communication runs alone for {exposed.value:.0%} of the step; " + (
            f"{waited:.0%} of its communication time is waiting for a late rank, not transfer" if mostly_waiting else
            "the messages take longer than the computation that could hide them"),
        "find out why another rank is late (see skew_seconds by rank)" if mostly_waiting else
        "start communication earlier, send less (bf16 gradients, no_sync while accumulating), or use a faster link")]


RULE = Rule("exposed_comm", "communication runs with no computation beside it for much of the step",
            "exposed communication is the part of the step that a faster network would win back", _check)
