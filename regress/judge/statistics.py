"""The judge's arithmetic: how far apart two sets of launches are, and how sure one may be of it.

All functions take plain numbers, on the scale they are to be compared on (the judge takes logarithms first, so a
difference is a relative change). Launches are the independent samples; launches of one run share its session.

Sources: shift of two samples: Hodges and Lehmann 1963. Spread: Shamos 1976. Degrees of freedom of
a sum of variances: Satterthwaite 1946. Several series: Holm 1979. Error spending: Lan and DeMets 1983.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

SHAMOS = 0.9538726
"""Median of |x - y| of two standard normal values: sqrt(2) times the upper quartile of the standard normal."""

WIDE_SHARE = 0.6
WIDE = 1.1902322
"""The 60 % quantile of |x - y| of two standard normal values: sqrt(2) times the normal quantile of 0.8."""

SHIFT_ERROR = 1.05
"""Standard error of the Hodges-Lehmann shift over that of a difference of means: 1.023 in the limit for normal values
(Lehmann 1963), rounded up for few of them."""

PRIOR_RUNS = 4.0
"""How many runs' worth of weight "half of the variance is shared by a session" has against the window's own spread."""

LEAST_SPREAD = 1e-3
"""No series is trusted to spread less than 0.1 % (log scale): identical figures are a coarse clock, not certainty."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference now minus before, on the scale the values were given in, and its uncertainty.

    standard_error and degrees describe a t distribution around `estimate`; launches counts those of `now`.
    between, within: standard deviations between runs and between launches of one run; None where not separated.
    """

    estimate: float
    standard_error: float
    degrees: float
    launches: int
    between: float | None = None
    within: float | None = None

    @property
    def p_value(self) -> float:
        """Two-sided probability of a difference at least this large when nothing changed."""
        if self.standard_error == 0:
            return 1.0 if self.estimate == 0 else 0.0
        return float(2 * stats.t.sf(abs(self.estimate) / self.standard_error, self.degrees))

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Two-sided confidence interval of the difference."""
        half = self.margin((1 - confidence) / 2)
        return self.estimate - half, self.estimate + half

    def margin(self, tail: float) -> float:
        """Distance from the estimate to the bound that is crossed with probability `tail`."""
        return float(stats.t.isf(tail, self.degrees)) * self.standard_error


def median_variance(count: int) -> float:
    """Variance of the median of `count` standard normal values: exact up to 2, else its large-sample form pi/(2n).

    The form is above the exact value for every finite odd count (0.449 for 3), so it errs towards caution.
    """
    return 1 / count if count <= 2 else math.pi / (2 * count)


def pairwise_spread(groups: Sequence[Sequence[float]]) -> float | None:
    """Standard deviation within groups from the median of all pairwise distances inside each; None without a pair.

    Half of the pairs may be arbitrarily far apart before it breaks; 86 % efficient for normal values.
    """
    distances = _distances(groups)
    return float(np.median(distances)) / SHAMOS if len(distances) else None


def _distances(groups: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    """Distances between any two values of the same group."""
    inside = [np.abs(np.subtract.outer(g, g))[np.triu_indices(len(g), 1)] for g in groups]
    return np.concatenate(inside) if inside else np.empty(0)


def compare_with_window(now: Sequence[float], window: Sequence[Sequence[float]],
                        least_spread: float = LEAST_SPREAD) -> Comparison | None:
    """This run's launches against earlier runs: a prediction for a new run's median, not an interval of a mean.

    A run's median varies by the session (between) and by the launch (within); only the latter shrinks with more
    launches, so a shared session counts once. Until the window can tell, half of the variance is taken to be the
    session's. None where nothing is known of the spread: fewer than two repeated launches and fewer than three runs.
    """
    runs = [list(run) for run in window if len(run) > 0]
    if not now or not runs:
        return None
    within_degrees = sum(len(run) - 1 for run in [*runs, list(now)])
    if within_degrees < 2 and len(runs) < 3:
        return None
    medians = [float(np.median(run)) for run in runs]
    launch_share = float(np.mean([median_variance(len(run)) for run in runs]))
    spread = pairwise_spread([*runs, list(now)])
    run_spread = pairwise_spread([medians])
    within = max(spread or 0.0, least_spread) ** 2 if within_degrees >= 2 else 0.0
    between = 0.0 if run_spread is None else max(0.0, run_spread**2 - within * launch_share)
    own = len(runs) - 1
    prior = PRIOR_RUNS if within else 0.0
    between = max((prior * within + own * between) / (prior + own), least_spread**2)
    session_part = between * (1 + 1 / len(runs))
    launch_part = within * (median_variance(len(now)) + launch_share / len(runs))
    variance = session_part + launch_part
    degrees = variance**2 / (session_part**2 / (prior + own)
                             + (launch_part**2 / within_degrees if within_degrees else 0.0))
    return Comparison(float(np.median(now) - np.median(medians)), math.sqrt(variance), degrees, len(now),
                      math.sqrt(between), math.sqrt(within) if within else None)


def compare_sides(now: Sequence[float], before: Sequence[float],
                  least_spread: float = LEAST_SPREAD) -> Comparison | None:
    """Two sets measured side by side: Hodges and Lehmann's shift with a t interval from the spread inside each side.

    Meant for launches of head and base in random order: what the machine shares over both cancels, and the order makes
    what it does not share look alike on both sides. None below three values a side.
    The median of all differences between the sides withstands 29 % of wild launches. The spread is the 60 % quantile
    of the distances inside a side, scaled to a normal's standard deviation: the median would stay inside one mode of a
    bimodal series, the upper quartile gives way to two spikes in ten. With one degree of freedom a launch of the
    smaller side the error measured for normal, skewed, spiky and bimodal noise stays near or below the nominal one
    (docs/quality.md).
    """
    fewest = min(len(now), len(before))
    return None if fewest < 3 else _shift(now, before, fewest - 1, least_spread)


def compare_levels(now: Sequence[float], before: Sequence[float],
                   least_spread: float = LEAST_SPREAD) -> Comparison | None:
    """Two stretches of one history, a figure a run: as `compare_sides`, and both sides vouch for one spread.

    So a few new runs may be set against many old ones: 86 % (Shamos' efficiency) of the pooled degrees of freedom.
    None below two values a side or five in all.
    """
    total = len(now) + len(before)
    if min(len(now), len(before)) < 2 or total < 5:
        return None
    return _shift(now, before, 0.86 * (total - 2), least_spread)


def _shift(now: Sequence[float], before: Sequence[float], degrees: float, least_spread: float) -> Comparison:
    shift = float(np.median(np.subtract.outer(now, before)))
    spread = max(float(np.quantile(_distances([now, before]), WIDE_SHARE)) / WIDE, least_spread)
    error = SHIFT_ERROR * spread * math.sqrt(1 / len(now) + 1 / len(before))
    return Comparison(shift, error, degrees, len(now), within=spread)


def rank_test(now: Sequence[float], before: Sequence[float]) -> float:
    """Two-sided p of the Mann-Whitney test: exact up to 50 values without ties, else normal with tie correction."""
    exact = len(now) + len(before) <= 50 and len({*now, *before}) == len(now) + len(before)
    return float(stats.mannwhitneyu(now, before, alternative="two-sided",
                                    method="exact" if exact else "asymptotic").pvalue)


def bootstrap_ratio(now: Sequence[float], before: Sequence[float], seed: int, confidence: float = 0.95,
                    resamples: int = 2000) -> tuple[float, float]:
    """Percentile bootstrap interval of median(now)/median(before) for positive values (Efron 1979); seeded."""
    rng = np.random.default_rng(seed)
    medians = [np.median(rng.choice(np.asarray(side, dtype=float), (resamples, len(side))), axis=1)
               for side in (now, before)]
    low, high = np.quantile(medians[0] / medians[1], [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: rejecting those at most alpha keeps the family's error at alpha."""
    count = len(p_values)
    adjusted = [0.0] * count
    running = 0.0
    for rank, index in enumerate(sorted(range(count), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


PAIRED_LOOKS = {5: 0.1, 10: 0.4, 15: 0.15, 20: 0.2, 30: 0.15}
"""Interleaved launches a side after which a confirmation may stop, and the share of the error each look may spend.

Most of it comes at 10: at 5 a t test has too few degrees of freedom to use more. What is left keeps a chance for
effects near the bound, and the look at 30 is for busy hosts, whose launches spread by 20 %. The shares add up to 1, so
by the union bound the sequence keeps its error however its looks depend on each other (the Bonferroni form of Lan and
DeMets 1983)."""

FRESH_LOOKS = {5: 0.2, 10: 0.8}
"""The same for fresh launches against the window. More than 10 add little: the spread between sessions stays."""


def sequential_p(p_value: float, launches: int, looks: Mapping[int, float]) -> float:
    """A look's p made comparable with the error of the whole sequence: divided by the look's share of it.

    Between looks, where a budget ended early, the next look's share is used in its place.
    """
    share = next((share for look, share in looks.items() if launches <= look), min(looks.values()))
    return min(1.0, p_value / share)


def launches_needed(spread: float, effect: float, alpha: float, power: float = 0.9) -> int:
    """Pairs (or launches a side) that find `effect` with this power at two-sided `alpha`; at least 3.

    spread: standard deviation of one launch. Normal theory, n = 2 (z_alpha/2 + z_power)^2 (spread/effect)^2, plus
    z^2/4 for the t distribution's wider tail (Guenther 1981).
    """
    if effect <= 0 or spread <= 0:
        return 3
    z_alpha, z_power = stats.norm.isf(alpha / 2), stats.norm.isf(1 - power)
    count = 2 * ((z_alpha + z_power) * spread / effect) ** 2 + z_alpha**2 / 4
    return max(3, min(1_000_000, math.ceil(count)))
