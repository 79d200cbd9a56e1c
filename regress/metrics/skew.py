"""Collectives matched across ranks: transfer, skew and span, kept apart because a kernel that waits looks slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.metrics import Metric, Reading
from regress.units import Better, Unit

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_SOURCE = ("k-th collective of each communicator matched across ranks; a NCCL kernel spins while it waits for a late "
           "rank (mixlayer/nccl-skew-analyzer, README)")


def _mean(analysis: Analysis, column: str, by_rank: dict[int, float]) -> Reading | None:
    """The mean over all matched collectives of the capture, in seconds."""
    values = analysis.matching.column(column)
    if len(values) == 0:
        return None
    return Reading(float(values.mean()) / 1e9, by_rank, samples=tuple((values / 1e9).tolist()))


def _transfer(analysis: Analysis) -> Reading | None:
    return _mean(analysis, "transfer_ns", {})


def _skew(analysis: Analysis) -> Reading | None:
    """by_rank: how late each rank is, on average, after the first."""
    from regress.trace.messages import arrivals

    return _mean(analysis, "skew_ns", {arrival.rank: arrival.late_seconds for arrival in arrivals(analysis)})


def _span(analysis: Analysis) -> Reading | None:
    return _mean(analysis, "span_ns", {})


TRANSFER = Metric("transfer_seconds", Unit.SECONDS, Better.LOWER,
                  "mean over matched collectives of the shortest rank's duration: it came last and waited for nobody",
                  _SOURCE, from_trace=_transfer)
SKEW = Metric("skew_seconds", Unit.SECONDS, Better.LOWER,
              "mean over matched collectives of the last start minus the first start", _SOURCE, from_trace=_skew)
SPAN = Metric("span_seconds", Unit.SECONDS, Better.LOWER,
              "mean over matched collectives of the last end minus the first start", _SOURCE, from_trace=_span)
