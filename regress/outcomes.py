"""From what the ranks left to one Launch record: correctness first, then every metric, folded over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from regress.measure.launch import LaunchResult
from regress.metrics import Metric
from regress.record import Case, CaseOutcome, Launch, Measurement, RankResult


def incorrectness(case: Case, results: Sequence[RankResult | None]) -> str | None:
    """Why this case of this launch is no measurement, or None: a missing rank, an error, a wrong value, too few calls.

    results: one for each rank, in order; None where the rank left nothing.
    """
    missing = [rank for rank, result in enumerate(results) if result is None]
    if missing:
        return f"rank {', '.join(map(str, missing))} left no result of this case"
    present = [result for result in results if result is not None]
    for result in present:
        if result.error is not None:
            return f"rank {result.rank}: {result.error}"
    for result in present:
        if result.wrong_elements:
            return (f"wrong result on rank {result.rank}: {result.wrong_elements} of {result.checked_elements} "
                    "elements differ from the only right answer")
    counts = [len(result.seconds.get(case.timing.value, ())) for result in present]
    if min(counts) == 0:
        return f"rank {counts.index(0)} measured no iteration in timing mode {case.timing.value}"
    if len(set(counts)) > 1:
        return f"ranks measured different numbers of iterations: {', '.join(map(str, counts))}"
    return None


def fold_case(case: Case, results: Sequence[RankResult | None], metrics: Mapping[str, Metric]) -> CaseOutcome:
    """One case of one launch: its measurements, or the reason that there are none."""
    present = tuple(result for result in results if result is not None)
    warnings = tuple(dict.fromkeys(f"rank {result.rank}: {text}" for result in present for text in result.warnings))
    error = incorrectness(case, results)
    if error is not None:
        return CaseOutcome(case, error=error, warnings=warnings)
    measured: list[Measurement] = []
    for metric in metrics.values():
        measurement = metric.from_ranks(metric, case, present) if metric.from_ranks is not None else None
        if measurement is not None:
            measured.append(measurement)
    return CaseOutcome(case, tuple(measured), warnings=warnings)


def fold_launch(result: LaunchResult, metrics: Mapping[str, Mapping[str, Metric]], session: int) -> Launch:
    """The record of a launch. metrics: by workload, by the name they have in it. session: which measuring session.

    An error of the launch as a whole stands on every case that it left without results.
    """
    outcomes = []
    for case, results in zip(result.cases, result.results, strict=True):
        outcome = fold_case(case, results, metrics[case.workload])
        if outcome.error is not None and result.error is not None and None in results:
            outcome = CaseOutcome(case, error=f"{outcome.error}: {result.error}", warnings=outcome.warnings)
        outcomes.append(outcome)
    return Launch(result.index, result.role, result.seed, result.started_at, result.wall_seconds,
                  result.rank_wall_seconds, tuple(outcomes), session, result.error, result.warnings)
