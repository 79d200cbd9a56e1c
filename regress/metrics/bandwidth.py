"""algbw and busbw with the definitions of nccl-tests."""

from __future__ import annotations

from regress.metrics import Metric, slowest_rank
from regress.record import QUANTILES, Case, Measurement, RankResult, TimingMode, quantile
from regress.units import Better, Unit

_SOURCE = "NVIDIA/nccl-tests doc/PERFORMANCE.md"


def _rate(metric: Metric, case: Case, results: tuple[RankResult, ...], factor: float | None) -> Measurement | None:
    """factor times S over the mean time of a call; its quantiles from those of the times, the quick calls on top.

    So the judge can leave out slow calls of a busy host here as it does for the times. The mean stays the figure.
    """
    slowest, size = sorted(slowest_rank(results, case.timing)), results[0].work_bytes if results else None
    if not slowest or case.timing is TimingMode.STEP or size is None or not factor or slowest[0] == 0:
        return None
    work = factor * size
    value = work * len(slowest) / sum(slowest)
    statistics = {name: work / quantile(slowest, 1 - q) for name, q in QUANTILES}
    return Measurement(metric.name, metric.unit, metric.better, value,
                       statistics={**statistics, "mean": value, "n": float(len(slowest))})


def _algbw(metric: Metric, case: Case, results: tuple[RankResult, ...]) -> Measurement | None:
    return _rate(metric, case, results, 1.0)


def _busbw(metric: Metric, case: Case, results: tuple[RankResult, ...]) -> Measurement | None:
    # One rank moves nothing over a bus: the factor is 0 and so is the figure, and it says nothing about a link.
    return _rate(metric, case, results, results[0].bus_factor if results else None)


ALGBW = Metric("algbw_bytes_per_second", Unit.BYTES_PER_SECOND, Better.HIGHER,
               "Algorithm bandwidth: S over the mean time of a call; S is the total gathered size for allgather.",
               _SOURCE, collective=True, from_ranks=_algbw)
BUSBW = Metric("busbw_bytes_per_second", Unit.BYTES_PER_SECOND, Better.HIGHER,
               "Bus bandwidth: algbw times 2(n-1)/n for allreduce, (n-1)/n for allgather, reduce-scatter and "
               "all-to-all, 1 for broadcast and send/receive; not measured with one rank.",
               _SOURCE, collective=True, from_ranks=_busbw, gated=True)
