"""The sweep view: one figure against message size, now, at the baseline and at the anchor, under the link's ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from regress.publish.html.ceiling import nominal_bytes_per_second
from regress.record import Case
from regress.trend import Point, RunFacts, Series, Trend
from regress.units import Unit

SWEPT_UNITS = (Unit.SECONDS, Unit.BYTES_PER_SECOND)
FEWEST_SIZES = 2
BUSBW = "busbw_bytes_per_second"


@dataclass(frozen=True, slots=True)
class Sweep:
    """One metric over message sizes, ascending; all columns have one entry a size.

    now, baseline, anchor: base unit; None where not measured, without baseline, or before any accepted run.
    ceiling: the link's nominal rate in bytes per second, only for busbw; share: now over ceiling.
    """

    title: str
    metric: str
    unit: str
    sizes: tuple[int, ...]
    now: tuple[float | None, ...]
    baseline: tuple[float | None, ...]
    anchor: tuple[float | None, ...]
    ceiling: float | None
    share: tuple[float | None, ...]


def sweeps(trend: Trend) -> list[Sweep]:
    """A sweep for each workload and metric that the latest environment has at two sizes or more."""
    if trend.latest is None:
        return []
    environment = trend.latest.environment
    fingerprint = environment.fingerprint
    groups: dict[tuple[Case, str], list[Series]] = {}
    for series in trend.series:
        if series.fingerprint == fingerprint and series.case.message_size_bytes and series.unit in SWEPT_UNITS:
            groups.setdefault((replace(series.case, message_size_bytes=None), series.metric), []).append(series)
    made = [_sweep(trend, case, group, nominal_bytes_per_second(environment, case) if metric == BUSBW else None)
            for (case, metric), group in groups.items() if len(group) >= FEWEST_SIZES]
    return sorted(made, key=lambda sweep: (sweep.metric != BUSBW, sweep.title, sweep.metric))


def _sweep(trend: Trend, case: Case, group: Sequence[Series], ceiling: float | None) -> Sweep:
    ordered = sorted(group, key=lambda series: series.case.message_size_bytes or 0)
    now = tuple(_now(series, trend.latest_index) for series in ordered)
    return Sweep(
        title=case.id,
        metric=ordered[0].metric,
        unit=ordered[0].unit.value,
        sizes=tuple(series.case.message_size_bytes or 0 for series in ordered),
        now=now,
        baseline=tuple(series.latest.baseline if series.latest else None for series in ordered),
        anchor=tuple(_anchor(series, trend.runs) for series in ordered),
        ceiling=ceiling,
        share=tuple(value / ceiling if value is not None and ceiling else None for value in now),
    )


def _now(series: Series, latest: int | None) -> float | None:
    return next((point.value for point in reversed(series.points) if point.run == latest), None)


def _anchor(series: Series, runs: Sequence[RunFacts]) -> float | None:
    return next((point.value for point in reversed(series.points) if _accepts(series, point, runs)), None)


def _accepts(series: Series, point: Point, runs: Sequence[RunFacts]) -> bool:
    accepted = runs[point.run].accepted
    return accepted is not None and (accepted.cases is None or series.case.id in accepted.cases)
