"""Where did the level of a history change? For the report only: a change point informs and fails no build.

Own, and not Otava or ruptures: with its defaults Otava reports a change in 5 % of unchanged series of 100 points, in
21 % with 5 % spikes and in 66 % with autocorrelation 0.5; ruptures finds the best places for changes but has no say on
whether there are any. What a chart needs is small. Recursive bisection (Scott and Knott 1974) at the largest shift of
medians nominates places. Each is tested between its neighbours, with a spread that spikes do not move, a sample size
cut for autocorrelation (n (1-r)/(1+r), Bayley and Hammersley 1946) and Bonferroni's correction for all places; the
least certain is dropped and the rest tested anew until all that are left stand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from regress.judge.baseline import Baseline
from regress.judge.statistics import LEAST_SPREAD
from regress.record import Run

ALPHA = 0.001
"""How often a whole unchanged history may show a change point, before the corrections' own error (docs/quality.md)."""

SHORTEST = 5
"""Runs a level must last: of fewer, half may be spikes, and their median would be one."""

CANDIDATE = 0.01
"""Level of the first pass, which takes no notice of autocorrelation: several steps look like it to one another."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal values: sqrt(pi/2)."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Step:
    """A new level from `index` on. change: new over old minus 1; None where the old level is zero."""

    index: int
    before: float
    after: float
    change: float | None
    p_value: float


def change_points(values: Sequence[float], *, least_change: float = 0.0, alpha: float = ALPHA) -> tuple[Step, ...]:
    """The steps of a series in order of time; none shorter than five values, none smaller than `least_change`.

    Positive values are compared as logarithms, others as they are.
    """
    series = np.asarray(values, dtype=float)
    log = bool(len(series)) and float(series.min()) > 0
    placed = np.log(series) if log else series
    places = _settled(placed, _split(placed, 0, len(placed)))
    while True:
        edges = [0, *places, len(placed)]
        tested = [(place, _test(placed, edges[i], place, edges[i + 2])) for i, place in enumerate(places)]
        steps = [_step(series, edges[i], place, edges[i + 2], p) for i, (place, p) in enumerate(tested)]
        kept = [s for s in steps if s.p_value * len(placed) <= alpha and _large(s, least_change)]
        if len(kept) == len(places):
            return tuple(kept)
        weakest = max((s for s in steps if s not in kept), key=lambda s: s.p_value)
        places = _settled(placed, [place for place in places if place != weakest.index])


def run_change_points(runs: Sequence[Run], case_id: str, metric: str, *, least_change: float = 0.02
                      ) -> tuple[tuple[str, Step], ...]:
    """The steps of one metric of one case over stored runs in order, each with the run that it begins at.

    Runs that did not measure the metric are left out; those that regressed are kept: that is what a step is made of.
    """
    every = Baseline(tuple(runs), limit=len(runs))
    found = [(run.run_id, values) for run in runs if (values := every.measured(run, case_id, metric))]
    steps = change_points([float(np.median(values)) for _, values in found], least_change=least_change)
    return tuple((found[step.index][0], step) for step in steps)


def _split(values: Values, start: int, end: int) -> list[int]:
    """Candidates: bisection as long as the halves differ at all; the second pass has the say."""
    place = _largest_shift(values[start:end])
    if place is None or _test(values, start, start + place, end, inflated=False) > CANDIDATE:
        return []
    middle = start + place
    return [*_split(values, start, middle), middle, *_split(values, middle, end)]


def _settled(values: Values, places: Sequence[int]) -> list[int]:
    """Each place moved to where two medians between its neighbours leave the least absolute deviation."""
    settled = sorted(places)
    for i, place in enumerate(settled):
        start = settled[i - 1] if i else 0
        end = settled[i + 1] if i + 1 < len(settled) else len(values)
        if min(place - start, end - place) >= SHORTEST:
            costs = {k: _deviation(values[start:k]) + _deviation(values[k:end])
                     for k in range(start + SHORTEST, end - SHORTEST + 1)}
            settled[i] = min(costs, key=lambda k: costs[k])
    return settled


def _deviation(values: Values) -> float:
    return float(np.sum(np.abs(values - np.median(values))))


def _largest_shift(values: Values) -> int | None:
    """Where the medians of both sides differ most, weighted for a fair chance of every place; None when too short."""
    count = len(values)
    if count < 2 * SHORTEST:
        return None
    places = range(SHORTEST, count - SHORTEST + 1)
    weights = [abs(float(np.median(values[:k]) - np.median(values[k:]))) * math.sqrt(k * (count - k)) for k in places]
    return SHORTEST + int(np.argmax(weights))


def _test(values: Values, start: int, middle: int, end: int, *, inflated: bool = True) -> float:
    """Two-sided p of the shift of medians at `middle`, for one place; inflated: corrected for autocorrelation."""
    left, right = values[start:middle], values[middle:end]
    if min(len(left), len(right)) < SHORTEST:
        return 1.0
    shift = float(np.median(right) - np.median(left))
    rest = np.concatenate([left - np.median(left), right - np.median(right)])
    # 1.4826 turns the median absolute deviation of normal values into their standard deviation (Hampel 1974).
    spread = max(1.4826 * float(np.median(np.abs(rest))) * math.sqrt(len(rest) / max(1, len(rest) - 2)), LEAST_SPREAD)
    inflation = _inflation(np.clip(rest / spread, -3, 3)) if inflated else 1.0
    error = MEDIAN_ERROR * spread * math.sqrt(inflation * (1 / len(left) + 1 / len(right)))
    degrees = max(1.0, len(rest) / inflation - 2)
    return float(2 * stats.t.sf(abs(shift) / error, degrees))


def _inflation(rest: Values) -> float:
    """How many times the variance of a mean grows by the lag-1 correlation of what is left, at least 1.

    The correlation of a short series comes out too small by about (1 + 4 r)/n (Kendall 1954); that is put back.
    """
    count = len(rest)
    power = float(np.dot(rest, rest))
    if count < 8 or power == 0:
        return 1.0
    raw = float(np.dot(rest[1:], rest[:-1])) / power
    correlation = min(0.95, max(0.0, raw + (1 + 4 * max(raw, 0.0)) / count))
    return (1 + correlation) / (1 - correlation)


def _step(series: Values, start: int, middle: int, end: int, p_value: float) -> Step:
    before, after = float(np.median(series[start:middle])), float(np.median(series[middle:end]))
    return Step(middle, before, after, after / before - 1 if before else None, p_value)


def _large(step: Step, least_change: float) -> bool:
    return step.change is None or abs(step.change) >= least_change
