"""limit: is the figure beyond an absolute ceiling or floor from thresholds.yaml?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from regress.judge.detectors import Detector, Series
from regress.judge.scale import STATISTICS, scale_of, values_of
from regress.options import Form, option
from regress.record import Finding, Verdict
from regress.units import format_value

DOUBT = 0.05
"""Two-sided: the figure is taken to be beyond the limit when 97.5 % sure of the side, on the launches of this run."""


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """An absolute bound in the metric's unit, on the metric's own value unless another statistic is named."""

    max: float | None = option(None, help="the metric must not be above this", form=Form.METRIC)
    min: float | None = option(None, help="the metric must not be below this", form=Form.METRIC)
    limit_statistic: str = option("value", help="the statistic of a launch that the limit is for",
                                  choices=STATISTICS[1:])


def judge(series: Series, options: LimitOptions) -> Finding | None:
    """Beyond a limit: regression when the launches agree, inconclusive when they do not; None without a limit.

    The figure is the median over this run's launches; its interval is Student's, on the log scale for positive
    values. One launch has no interval and is taken at its word: re-measuring is the verdict's business.
    """
    values = values_of(series.now, options.limit_statistic)
    if (options.max is None and options.min is None) or not values:
        return None
    figure = float(np.median(values))
    low, high = _interval(series, values)
    worst, sure = Verdict.PASS, True
    for limit, beyond, clear in ((options.max, figure > (options.max or 0), low > (options.max or 0)),
                                 (options.min, figure < (options.min or 0), high < (options.min or 0))):
        if limit is not None and beyond:
            worst, sure = (Verdict.REGRESSION if clear else Verdict.INCONCLUSIVE), clear
    return Finding(case=series.case.id, metric=series.metric, unit=series.unit, detector="limit", verdict=worst,
                   statistic=options.limit_statistic, now=figure, launches=len(values), significant=sure,
                   relevant=worst is not Verdict.PASS, reason=_reason(series, options, figure, (low, high), worst),
                   needed_launches=2 * len(values) + 1 if worst is Verdict.INCONCLUSIVE else None,
                   limit=options.max if options.max is not None else options.min)


def _interval(series: Series, values: list[float]) -> tuple[float, float]:
    scale = scale_of(series.unit, series.better, values)
    placed = scale.of(values)
    if len(placed) < 2:
        return values[0], values[0]
    half = float(stats.t.isf(DOUBT / 2, len(placed) - 1)) * float(np.std(placed, ddof=1)) / len(placed) ** 0.5
    centre = float(np.median(placed))
    return scale.back(centre - half), scale.back(centre + half)


def _reason(series: Series, options: LimitOptions, figure: float, interval: tuple[float, float],
            verdict: Verdict) -> str:
    unit = series.unit
    bounds = [f"{word} {format_value(limit, unit)}" for word, limit in
              (("at most", options.max), ("at least", options.min)) if limit is not None]
    side = "within" if verdict is Verdict.PASS else "beyond"
    text = f"{format_value(figure, unit)} is {side} the limit ({' and '.join(bounds)})"
    if verdict is Verdict.INCONCLUSIVE:
        low, high = interval
        text += (f", but {len(series.now)} launches only place it between {format_value(low, unit)} and "
                 f"{format_value(high, unit)}")
    return text


LIMIT = Detector("limit", "an absolute ceiling or floor", LimitOptions, judge)
