"""algbw and busbw with the definitions of nccl-tests."""

from __future__ import annotations

from regress.metrics import Metric, slowest_rank
from regress.record import Case, Measurement, RankResult, TimingMode
from regress.units import Better, Unit

_SOURCE = "NVIDIA/nccl-tests doc/PERFORMANCE.md"


def _mean_seconds(case: Case, results: tuple[RankResult, ...]) -> float | None:
    """Mean over iterations of the slowest rank's time, as `{workload}_seconds`."""
    slowest = slowest_rank(results, case.timing)
    return sum(slowest) / len(slowest) if slowest and case.timing is not TimingMode.STEP else None


def _algbw(metric: Metric, case: Case, results: tuple[RankResult, ...]) -> Measurement | None:
    seconds, size = _mean_seconds(case, results), results[0].work_bytes if results else None
    if not seconds or size is None:
        return None
    return Measurement(metric.name, metric.unit, metric.better, size / seconds)


def _busbw(metric: Metric, case: Case, results: tuple[RankResult, ...]) -> Measurement | None:
    seconds, size = _mean_seconds(case, results), results[0].work_bytes if results else None
    factor = results[0].bus_factor if results else None
    # One rank moves nothing over a bus: the factor is 0 and so is the figure, and it says nothing about a link.
    if not seconds or size is None or not factor:
        return None
    return Measurement(metric.name, metric.unit, metric.better, factor * size / seconds)


ALGBW = Metric("algbw_bytes_per_second", Unit.BYTES_PER_SECOND, Better.HIGHER,
               "Algorithm bandwidth: S over the mean time of a call; S is the total gathered size for allgather.",
               _SOURCE, collective=True, from_ranks=_algbw)
BUSBW = Metric("busbw_bytes_per_second", Unit.BYTES_PER_SECOND, Better.HIGHER,
               "Bus bandwidth: algbw times 2(n-1)/n for allreduce, (n-1)/n for allgather, reduce-scatter and "
               "all-to-all, 1 for broadcast and send/receive; not measured with one rank.",
               _SOURCE, collective=True, from_ranks=_busbw, gated=True)
