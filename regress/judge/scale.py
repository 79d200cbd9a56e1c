"""The scale a series is compared on, the effect that matters on it, and the statistic of a launch that is judged.

Times, sizes and rates are compared as logarithms: a difference is then a relative change and noise is even. Ratios
from 0 to 1, counts, and anything that can be zero are compared as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regress.judge.detectors import RunValues, Series
from regress.judge.statistics import LEAST_SPREAD, pairwise_spread
from regress.options import Effect
from regress.record import Measurement
from regress.units import Better, Unit

STATISTICS = ("auto", "value", "min", "p10", "p25", "p50", "p75", "p90", "p95", "mean")

LEARNED_LAUNCHES = 20
"""Recorded launches before their spread may overrule the first choice of statistic."""

CLEARLY_LESS = 0.5
"""A statistic replaces the one in use only when it spreads less than half as much: the choice must not flicker."""


@dataclass(frozen=True, slots=True)
class Scale:
    """log: whether values are compared as logarithms. worse: +1 where larger is worse, -1 where smaller is."""

    log: bool
    worse: int

    def of(self, values: Sequence[float]) -> list[float]:
        """The values on this scale."""
        return [math.log(value) for value in values] if self.log else list(values)

    def back(self, value: float) -> float:
        """A value on this scale in the metric's unit."""
        return math.exp(value) if self.log else value

    def change(self, difference: float, baseline: float) -> float | None:
        """A difference on this scale as now/baseline - 1; None where the baseline is zero."""
        if self.log:
            return math.expm1(min(difference, 700.0))
        return difference / abs(baseline) if baseline else None

    def bound(self, effect: Effect, baseline: float, worse: bool = True) -> float:
        """The distance on this scale from which a change for the worse (or better) is relevant; always positive.

        An effect that comes to nothing (5 % of a baseline of zero) is raised to ten times the least believed spread.
        """
        amount = effect.bound(baseline)
        if not self.log:
            return max(amount, 10 * self.least_spread(baseline))
        grows = (self.worse > 0) == worse
        if grows:
            return math.log1p(amount / baseline)
        return -math.log1p(-amount / baseline) if amount < baseline else math.inf

    def least_spread(self, baseline: float) -> float:
        """The smallest spread between launches that is believed, on this scale."""
        return LEAST_SPREAD if self.log else max(LEAST_SPREAD * abs(baseline), 1e-12)


def scale_of(unit: Unit, better: Better, values: Sequence[float]) -> Scale:
    """The scale for a unit, given all values that take part (in the metric's unit)."""
    log = unit not in (Unit.RATIO, Unit.COUNT) and min(values, default=0.0) > 0
    return Scale(log, 1 if better is Better.LOWER else -1)


def default_effect(unit: Unit, device: str) -> Effect:
    """The change that matters where the policy names none.

    5 % with a floor of 3 us on GPUs and 30 % with a floor of 30 us on a CPU host: about twice the spread of a
    three-launch run in the recorded histories (docs/quality.md), so that an unchanged build seldom needs
    re-measuring. Shares of time and other ratios: 2 points on GPUs, 10 on a CPU host. Counts: any whole one.
    """
    cuda = device == "cuda"
    if unit is Unit.RATIO:
        return Effect(absolute=0.02 if cuda else 0.10)
    if unit is Unit.COUNT:
        return Effect(absolute=0.5)
    floor = (3e-6 if cuda else 30e-6) if unit is Unit.SECONDS else 0.0
    return Effect(relative=0.05 if cuda else 0.30, absolute=floor)


def values_of(measurements: Sequence[Measurement], statistic: str) -> list[float]:
    """That statistic of each launch, in order; launches that lack it are left out."""
    found = (measurement.statistic(statistic) for measurement in measurements)
    return [value for value in found if value is not None]


def comparable(window: Sequence[RunValues], statistic: str) -> list[list[float]]:
    """The statistic's values by run, oldest first; runs that lack it are left out."""
    runs = (values_of(run.launches, statistic) for run in window)
    return [run for run in runs if run]


def choose_statistic(series: Series, wished: str) -> str:
    """The statistic of a launch to judge: `wished`, or for "auto" the one whose recorded spread calls for it.

    Only a mean over iterations is replaced; a metric that is itself a quantile, a rate or a share is judged on its own
    value. First choice is the quartile on the quiet side (p25 of times, p75 of rates): no worse than any other on
    every recorded machine, and four times better for small messages on a busy host. From 20 recorded launches on, the
    candidate with the least spread between launches takes over when it halves the spread of the one in use.
    """
    if wished != "auto":
        return wished
    everything = [*series.now, *(m for run in series.window for m in run.launches)]
    if not everything or not all(_is_mean(m) for m in everything):
        return "value"
    quiet = "p25" if series.better is Better.LOWER else "p75"
    used = next((run.statistic for run in reversed(series.window) if run.statistic), None)
    chosen = used if used in (quiet, "p50", "value") else quiet
    if sum(len(run.launches) for run in series.window) < LEARNED_LAUNCHES:
        return chosen
    spreads = {name: _spread(series, name) for name in (quiet, "p50", "value")}
    least = min(spreads, key=lambda name: spreads[name])
    return least if spreads[least] < CLEARLY_LESS * spreads[chosen] else chosen


def _is_mean(measurement: Measurement) -> bool:
    mean = measurement.statistics.get("mean")
    return mean is not None and math.isclose(mean, measurement.value, rel_tol=1e-6, abs_tol=1e-15)


def _spread(series: Series, statistic: str) -> float:
    """Spread of all recorded launches around their common median, relative; infinite where it cannot be told."""
    values = [value for run in comparable(series.window, statistic) for value in run]
    centre = abs(float(np.median(values))) if values else 0.0
    spread = pairwise_spread([values])
    return spread / centre if spread is not None and centre else math.inf
