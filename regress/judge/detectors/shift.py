"""shift: did the figure move against the baseline, by more than noise explains and by more than matters?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from regress.judge.detectors import ALPHA, Detector, Series
from regress.judge.scale import (
    STATISTICS,
    Scale,
    choose_statistic,
    comparable,
    default_effect,
    scale_of,
    values_of,
)
from regress.judge.statistics import (
    Comparison,
    compare_pairs,
    compare_with_window,
    launches_needed,
    sequential_p,
)
from regress.options import Effect, Form, option
from regress.record import Finding, Verdict
from regress.units import Unit, format_change, format_value

MISS = 0.10
"""`pass` means that a relevant change for the worse is less likely than this, not merely that none was proved."""


@dataclass(frozen=True, slots=True)
class ShiftOptions:
    """When a change against the baseline matters."""

    effect: Effect | None = option(None, form=Form.EFFECT,
                                   help="the change that matters, e.g. 10% or max(3us, 15%); default by device")
    statistic: str = option("auto", choices=STATISTICS,
                            help="the statistic of a launch that is judged; auto follows the recorded spread")


@dataclass(frozen=True, slots=True)
class _Evidence:
    """A comparison with what it was made against; p is corrected for looking more than once."""

    comparison: Comparison
    scale: Scale
    now: float
    baseline: float
    p_value: float
    runs: int
    against: str


@dataclass(frozen=True, slots=True)
class _Decision:
    effect: Effect
    verdict: Verdict
    significant: bool
    relevant: bool
    needed_launches: int | None


def judge(series: Series, options: ShiftOptions) -> Finding | None:
    """The case's launches against the interleaved base where there is one, else against the window.

    Regression or improvement: significant at ALPHA (before correction for the number of series) and the estimate
    beyond the effect. Pass: a relevant worsening has less than 10 % probability. Otherwise inconclusive, with the
    launches that would decide. None without a baseline: whether that is acceptable is not this detector's question.
    """
    if not series.now or not (series.base or series.window):
        return None
    statistic = choose_statistic(series, options.statistic)
    evidence = _evidence(series, statistic)
    if evidence is None:
        return _unknown(series, statistic)
    effect = options.effect or default_effect(series.unit, series.case.device)
    worse, better = (evidence.scale.bound(effect, evidence.baseline, side) for side in (True, False))
    gone_worse = evidence.comparison.estimate * evidence.scale.worse
    significant = evidence.p_value <= ALPHA
    relevant = gone_worse > worse or -gone_worse > better
    if significant and relevant:
        verdict = Verdict.REGRESSION if gone_worse > 0 else Verdict.IMPROVEMENT
    elif gone_worse + evidence.comparison.margin(MISS) <= worse:
        verdict = Verdict.PASS
    else:
        verdict = Verdict.INCONCLUSIVE
    needed = _needed(evidence, worse) if verdict is Verdict.INCONCLUSIVE else None
    return _finding(series, statistic, evidence, _Decision(effect, verdict, significant, relevant, needed))


def _evidence(series: Series, statistic: str) -> _Evidence | None:
    now, base = values_of(series.now, statistic), values_of(series.base, statistic)
    runs = [] if base else comparable(series.window, statistic)
    before = base or [value for run in runs for value in run]
    if not now or not before:
        return None
    scale = scale_of(series.unit, series.better, [*now, *before])
    least = scale.least_spread(float(np.median(before)))
    if base:
        count = min(len(now), len(base))
        comparison = compare_pairs(scale.of(now[:count]), scale.of(base[:count]), least)
        figure, baseline = float(np.median(now[:count])), float(np.median(base[:count]))
        against = f"{count} interleaved launches of the base"
    else:
        comparison = compare_with_window(scale.of(now), [scale.of(run) for run in runs], least)
        figure, baseline = float(np.median(now)), float(np.median([np.median(run) for run in runs]))
        against = f"{len(runs)} earlier run{'s' if len(runs) != 1 else ''} ({len(before)} launches)"
    if comparison is None:
        return None
    p_value = comparison.p_value
    if series.confirmed:
        p_value = sequential_p(p_value, comparison.launches)
    return _Evidence(comparison, scale, figure, baseline, p_value, len(runs), against)


def _needed(evidence: _Evidence, bound: float) -> int | None:
    """Interleaved pairs that would find a change of `bound` (on the scale); None where none would."""
    comparison = evidence.comparison
    spread = comparison.within or comparison.standard_error * math.sqrt(comparison.launches / 2)
    return launches_needed(spread, bound, ALPHA) if math.isfinite(bound) and bound > 0 else None


def _unknown(series: Series, statistic: str) -> Finding:
    runs = comparable(series.window, statistic)
    before = [value for run in runs for value in run]
    now = values_of(series.now, statistic)
    missing = not now or not before
    reason = (f"no launch {'of this run' if not now else 'of the baseline'} has the statistic {statistic}" if missing
              else f"{len(runs)} earlier run{'s' if len(runs) != 1 else ''} with {len(before)} launches in all say "
                   "nothing about the spread yet; 3 runs, or 2 launches a run, would")
    return Finding(case=series.case.id, metric=series.metric, unit=series.unit, detector="shift",
                   verdict=Verdict.INCONCLUSIVE, statistic=statistic, reason=reason, launches=len(now),
                   now=float(np.median(now)) if now else None, baseline=float(np.median(before)) if before else None,
                   baseline_runs=len(runs), needed_launches=3)


def _finding(series: Series, statistic: str, evidence: _Evidence, decision: _Decision) -> Finding:
    comparison, scale = evidence.comparison, evidence.scale
    low, high = (scale.change(side, evidence.baseline) for side in comparison.interval())
    finding = Finding(
        case=series.case.id, metric=series.metric, unit=series.unit, detector="shift", verdict=decision.verdict,
        statistic=statistic, now=evidence.now, baseline=evidence.baseline,
        change=scale.change(comparison.estimate, evidence.baseline),
        interval=None if low is None or high is None else (low, high),
        launches=comparison.launches, baseline_runs=evidence.runs, p_value=evidence.p_value,
        significant=decision.significant, relevant=decision.relevant, needed_launches=decision.needed_launches,
        reason="")
    return replace(finding, reason=_reason(finding, evidence, decision.effect))


def _reason(finding: Finding, evidence: _Evidence, effect: Effect) -> str:
    """By how much, against what, how sure; significance and size said apart."""
    unit, interval = finding.unit, finding.interval
    size = (f"{format_change(finding.change)} ({format_change(interval[0])} to {format_change(interval[1])} with 95 % "
            f"confidence)" if interval else format_value(evidence.now - evidence.baseline, unit))
    amount = effect.bound(evidence.baseline)
    matters = f"a change matters from {format_value(amount, unit)}"
    if unit is not Unit.RATIO and evidence.baseline:
        matters += f" ({amount / abs(evidence.baseline) * 100:.1f} %)"
    count = finding.launches
    text = (f"{finding.statistic} {format_value(evidence.now, unit)} against {format_value(evidence.baseline, unit)}: "
            f"{size}; {count} launch{'es' if count != 1 else ''} against {evidence.against}; "
            f"p = {evidence.p_value:.2g}; {matters}")
    if finding.needed_launches is not None:
        text += f"; about {finding.needed_launches} interleaved launches a side would decide"
    return text


SHIFT = Detector("shift", "a change against the baseline that is significant and relevant", ShiftOptions, judge)
