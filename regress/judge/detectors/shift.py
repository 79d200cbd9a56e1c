"""shift: did the figure move against the baseline, by more than noise explains and by more than matters?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from regress.judge.decision import Decision, decide
from regress.judge.detectors import Detector, Series
from regress.judge.scale import STATISTICS, Scale, choose_statistic, comparable, default_effect, scale_of, values_of
from regress.options import Effect, Form, option
from regress.record import Finding, Verdict
from regress.units import Better, Unit, format_change, format_value


@dataclass(frozen=True, slots=True)
class ShiftOptions:
    """When a change against the baseline matters."""

    effect: Effect | None = option(None, form=Form.EFFECT,
                                   help="the change that matters, e.g. 10% or max(3us, 15%); default by device")
    statistic: str = option("auto", choices=STATISTICS,
                            help="the statistic of a launch that is judged; auto follows the recorded spread")


def judge(series: Series, options: ShiftOptions) -> Finding | None:
    """The case's launches against the interleaved base where there is one, else against the window.

    See `regress.judge.decision.decide`. None without a baseline: whether that is acceptable is not this detector's
    question.
    """
    if not series.now or not (series.base or series.window):
        return None
    statistic = choose_statistic(series, options.statistic)
    now, base = values_of(series.now, statistic), values_of(series.base, statistic)
    runs = [] if base else comparable(series.window, statistic)
    before = base or [value for run in runs for value in run]
    if not now or not before:
        return _unknown(series, statistic, f"no launch {'of the baseline' if now else 'of this run'} has the "
                                           f"statistic {statistic}")
    scale = scale_of(series.unit, series.better, [*now, *before])
    effect = options.effect or default_effect(series.unit, series.case.device)
    decision = decide(now, runs, base, scale, effect, confirmed=series.confirmed)
    if decision is None and len({*now, *before}) == 1:
        return _same(series, statistic, now, before)
    if decision is None and series.unit is Unit.COUNT and len({*now}) == len({*before}) == 1:
        return _counted(series, statistic, now, before, effect)
    if decision is None:
        return _unknown(series, statistic, _too_little(len(now), len(base), len(runs), len(before)))
    return _finding(series, statistic, decision, scale, _Context(effect, len(runs), len(base), len(before)))


@dataclass(frozen=True, slots=True)
class _Context:
    """What the decision was made against, for the wording."""

    effect: Effect
    runs: int
    base: int
    before: int

    @property
    def against(self) -> str:
        if self.base:
            return f"{self.base} interleaved launches of the base"
        return f"{self.runs} earlier run{'s' if self.runs != 1 else ''} ({self.before} launches)"


def _too_little(now: int, base: int, runs: int, before: int) -> str:
    if base:
        return f"{min(now, base)} pairs of interleaved launches are too few; 3 would do"
    return (f"{runs} earlier run{'s' if runs != 1 else ''} with {before} launches in all say nothing about the spread "
            "yet; 3 runs, or 2 launches a run, would")


def _same(series: Series, statistic: str, now: list[float], before: list[float]) -> Finding:
    """A count that is what it always was needs no spread: measured durations are never equal to the last bit."""
    return Finding(case=series.case.id, metric=series.metric, unit=series.unit, detector="shift", verdict=Verdict.PASS,
                   statistic=statistic, now=now[0], baseline=before[0], change=0.0, launches=len(now),
                   baseline_runs=len(series.window),
                   reason=f"{statistic} {format_value(now[0], series.unit)} in every launch, now and before")


def _counted(series: Series, statistic: str, now: list[float], before: list[float], effect: Effect) -> Finding:
    """A count that was one number in every launch, and is another in every launch now, has no spread to wait for.

    Like any other suspicion it must show again in a fresh launch.
    """
    here, there = now[0], before[0]
    amount = effect.bound(there)
    relevant = abs(here - there) > amount
    worse = (here > there) is (series.better is Better.LOWER)
    verdict = Verdict.PASS if not relevant else Verdict.REGRESSION if worse else Verdict.IMPROVEMENT
    return Finding(case=series.case.id, metric=series.metric, unit=series.unit, detector="shift", verdict=verdict,
                   statistic=statistic, now=here, baseline=there, change=here / there - 1 if there else None,
                   launches=len(now), baseline_runs=len(series.window), significant=True, relevant=relevant,
                   reason=f"{format_value(here, series.unit)} in every launch, {format_value(there, series.unit)} in "
                          f"every one before; a change matters from {format_value(amount, series.unit)}")


def _unknown(series: Series, statistic: str, reason: str) -> Finding:
    before = [value for run in comparable(series.window, statistic) for value in run]
    now = values_of(series.now, statistic)
    return Finding(case=series.case.id, metric=series.metric, unit=series.unit, detector="shift",
                   verdict=Verdict.INCONCLUSIVE, statistic=statistic, reason=reason, launches=len(now),
                   now=float(np.median(now)) if now else None, baseline=float(np.median(before)) if before else None,
                   baseline_runs=len(series.window), needed_launches=3)


def _finding(series: Series, statistic: str, decision: Decision, scale: Scale, context: _Context) -> Finding:
    low, high = (scale.change(side, decision.baseline) for side in decision.comparison.interval())
    finding = Finding(
        case=series.case.id, metric=series.metric, unit=series.unit, detector="shift", verdict=decision.verdict,
        statistic=statistic, now=decision.now, baseline=decision.baseline,
        change=scale.change(decision.comparison.estimate, decision.baseline),
        interval=None if low is None or high is None else (low, high), launches=decision.comparison.launches,
        baseline_runs=context.runs, p_value=decision.p_value, significant=decision.significant,
        relevant=decision.relevant, needed_launches=decision.needed_launches, reason="")
    return replace(finding, reason=_reason(finding, decision, context))


def _reason(finding: Finding, decision: Decision, context: _Context) -> str:
    """By how much, against what, how sure; significance and size said apart."""
    unit, interval, baseline = finding.unit, finding.interval, decision.baseline
    size = (f"{format_change(finding.change)} ({format_change(interval[0])} to {format_change(interval[1])} with 95 % "
            f"confidence)" if interval else f"{format_value(decision.now - baseline, unit)} apart")
    amount = context.effect.bound(baseline)
    matters = f"a change matters from {format_value(amount, unit)}"
    if unit is not Unit.RATIO and baseline:
        matters += f" ({amount / abs(baseline) * 100:.1f} %)"
    count = finding.launches
    text = (f"{finding.statistic} {format_value(decision.now, unit)} against {format_value(baseline, unit)}: {size}; "
            f"{count} launch{'es' if count != 1 else ''} against {context.against}; p = {decision.p_value:.2g} "
            f"({'significant' if decision.significant else 'not significant'}); {matters}")
    if finding.needed_launches is not None:
        text += f"; about {finding.needed_launches} interleaved launches a side would decide"
    return text


SHIFT = Detector("shift", "a change against the baseline that is significant and relevant", ShiftOptions, judge)
