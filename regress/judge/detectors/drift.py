"""drift: did many small steps, each too small to be seen, add up since the last accepted run?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regress.judge.detectors import ALPHA, Detector, Series
from regress.judge.scale import choose_statistic, comparable, default_effect, scale_of, values_of
from regress.judge.statistics import compare_with_window
from regress.options import Effect, Form, option
from regress.record import Finding, Verdict
from regress.units import format_change, format_value

RECENT_RUNS = 10
"""Runs at the end of the window that stand for "now": a lone good or bad run does not make a drift."""

FEWEST_RUNS = 5
"""Below this many runs after the anchor there is no trend to speak of; shift has the say."""


@dataclass(frozen=True, slots=True)
class DriftOptions:
    """When the distance from the last accepted run matters."""

    drift_effect: Effect | None = option(None, form=Form.EFFECT,
                                         help="the distance from the last accepted run that matters; default: as "
                                              "`effect` has by device")


def judge(series: Series, options: DriftOptions) -> Finding | None:
    """Regression when the recent runs and this one both lie beyond the effect from the anchor, significantly.

    The anchor is one run, so its own session counts in full: it is placed against the recent runs as a new run would
    be. Pass in all other cases: drift adds an alarm to shift and takes none away. None below 5 runs after the anchor.
    """
    if series.anchor is None or not series.now:
        return None
    runs_after = [run for run in series.window if run.run_id != series.anchor.run_id][-RECENT_RUNS:]
    statistic = choose_statistic(series, "auto")
    anchor, recent = values_of(series.anchor.launches, statistic), comparable(runs_after, statistic)
    now = values_of(series.now, statistic)
    if len(recent) < FEWEST_RUNS or not anchor or not now:
        return None
    scale = scale_of(series.unit, series.better, [*anchor, *now, *(v for run in recent for v in run)])
    start = float(np.median(anchor))
    comparison = compare_with_window(scale.of(anchor), [scale.of(run) for run in recent], scale.least_spread(start))
    if comparison is None:
        return None
    effect = options.drift_effect or default_effect(series.unit, series.case.device)
    bound = scale.bound(effect, start)
    moved = -comparison.estimate
    own = float(np.median(scale.of(now)) - np.median(scale.of(anchor)))
    relevant = min(moved * scale.worse, own * scale.worse) > bound
    significant = comparison.p_value <= ALPHA
    regressed = relevant and significant
    change = scale.change(moved, start)
    sides = [scale.change(-side, start) for side in reversed(comparison.interval())]
    level = float(np.median([np.median(run) for run in recent]))
    return Finding(
        case=series.case.id, metric=series.metric, unit=series.unit, detector="drift",
        verdict=Verdict.REGRESSION if regressed else Verdict.PASS, statistic=statistic, now=level, baseline=start,
        change=change, interval=None if sides[0] is None or sides[1] is None else (sides[0], sides[1]),
        launches=len(now), baseline_runs=len(recent), p_value=comparison.p_value, significant=significant,
        relevant=relevant,
        reason=(f"the last {len(recent)} runs are at {format_value(level, series.unit)}, {format_change(change)} from "
                f"{format_value(start, series.unit)} of run {series.anchor.run_id} ({series.anchor.started_at}), where "
                f"the baseline began; p = {comparison.p_value:.2g}; a distance matters from "
                f"{format_value(effect.bound(start), series.unit)}"))


DRIFT = Detector("drift", "many small steps since the last accepted run", DriftOptions, judge)
