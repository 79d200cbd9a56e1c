"""Time per operation, from the ranks' own clocks, without a tracer."""

from __future__ import annotations

from regress.metrics import Metric, slowest_rank
from regress.record import Case, Measurement, RankResult, TimingMode
from regress.units import Better, Unit

_SLOWEST = "every iteration is folded over ranks by its slowest rank (DESIGN: words, iteration)"


def _measured(metric: Metric, case: Case, samples: tuple[float, ...], statistic: str) -> Measurement | None:
    if not samples:
        return None
    whole = Measurement(metric.name_for(case.workload), metric.unit, metric.better, 0.0, samples)
    value = whole.statistics[statistic]
    # Quantiles are read from the same samples as the mean: they are stored once, with the mean.
    kept = samples if statistic == "mean" else ()
    return Measurement(whole.metric, whole.unit, whole.better, value, kept,
                       whole.statistics if statistic == "mean" else {})


def _mean(metric: Metric, case: Case, results: tuple[RankResult, ...]) -> Measurement | None:
    return _measured(metric, case, slowest_rank(results, case.timing), "mean")


def _p50(metric: Metric, case: Case, results: tuple[RankResult, ...]) -> Measurement | None:
    return _measured(metric, case, slowest_rank(results, case.timing), "p50")


def _p95(metric: Metric, case: Case, results: tuple[RankResult, ...]) -> Measurement | None:
    return _measured(metric, case, slowest_rank(results, case.timing), "p95")


def _pipelined(metric: Metric, case: Case, results: tuple[RankResult, ...]) -> Measurement | None:
    return _measured(metric, case, slowest_rank(results, TimingMode.PIPELINED), "mean")


def _samples_per_second(metric: Metric, case: Case, results: tuple[RankResult, ...]) -> Measurement | None:
    samples = slowest_rank(results, case.timing)
    per_step = results[0].samples_per_step if results else None
    if not samples or per_step is None:
        return None
    return Measurement(metric.name, metric.unit, metric.better, per_step * len(samples) / sum(samples))


def _init(metric: Metric, _case: Case, results: tuple[RankResult, ...]) -> Measurement | None:
    seconds = [result.init_seconds for result in results if result.init_seconds is not None]
    if len(seconds) < len(results) or not seconds:
        return None
    return Measurement(metric.name, metric.unit, metric.better, max(seconds))


MEAN = Metric("{workload}_seconds", Unit.SECONDS, Better.LOWER,
              "Mean time of one call over the measured iterations, in the case's timing mode.",
              _SLOWEST, collective=True, from_ranks=_mean, gated=True)
P50 = Metric("{workload}_p50_seconds", Unit.SECONDS, Better.LOWER,
             "Median time of one call over the measured iterations.", _SLOWEST, collective=True, from_ranks=_p50)
P95 = Metric("{workload}_p95_seconds", Unit.SECONDS, Better.LOWER,
             "95th percentile of the time of one call: the tail.", _SLOWEST, collective=True, from_ranks=_p95)
PIPELINED = Metric("pipelined_seconds", Unit.SECONDS, Better.LOWER,
                   "Time of one call in a back-to-back batch that is synchronised once, as nccl-tests reports it.",
                   "NVIDIA/nccl-tests doc/PERFORMANCE.md: time over the loop, divided by the calls",
                   collective=True, from_ranks=_pipelined)
STEP = Metric("step_seconds", Unit.SECONDS, Better.LOWER,
              "Mean time of one training step (forward, backward, optimizer) over the measured steps.",
              _SLOWEST, collective=False, from_ranks=_mean, gated=True)
SAMPLES = Metric("samples_per_second", Unit.PER_SECOND, Better.HIGHER,
                 "Training samples of all ranks per second of measured steps.", "samples per step over mean step time",
                 collective=False, from_ranks=_samples_per_second)
INIT = Metric("init_seconds", Unit.SECONDS, Better.LOWER,
              "Making the communicator and its first collective, slowest rank.",
              "first calls set up connections and are no part of the steady state (NVIDIA/nccl#1487)",
              from_ranks=_init)
