"""The decision on one series in plain numbers: significant, relevant, excluded or open.

`shift` words it and `perf/` and the quality suite measure it; all of them run exactly this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regress.judge.detectors import ALPHA
from regress.judge.scale import Scale
from regress.judge.statistics import (
    FRESH_LOOKS,
    PAIRED_LOOKS,
    Comparison,
    compare_sides,
    compare_with_window,
    launches_needed,
    sequential_p,
)
from regress.options import Effect
from regress.record import Verdict

MISS = 0.10
"""`pass` means that a relevant change for the worse is less likely than this, not merely that none was proved."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the launches say, before other series and the machine's health have their say.

    p_value: two-sided, corrected for looking more than once. needed_launches: pairs of interleaved launches that
    would decide, only where the verdict is inconclusive. now, baseline: in the metric's unit.
    """

    verdict: Verdict
    comparison: Comparison
    p_value: float
    significant: bool
    relevant: bool
    now: float
    baseline: float
    needed_launches: int | None


def decide(now: Sequence[float], runs: Sequence[Sequence[float]], base: Sequence[float], scale: Scale,
           effect: Effect, *, confirmed: bool = False) -> Decision | None:
    """The launches of this run against interleaved base launches where there are any, else against earlier runs.

    Regression or improvement: significant at ALPHA and the estimate beyond the effect. Pass: a relevant worsening has
    less than 10 % probability. Else inconclusive. confirmed: `now` are fresh launches, judged look by look.
    None where the data cannot even tell the spread.
    """
    if base:
        baseline = float(np.median(base))
        comparison = compare_sides(scale.of(now), scale.of(base), scale.least_spread(baseline))
    else:
        baseline = float(np.median([np.median(run) for run in runs]))
        comparison = compare_with_window(scale.of(now), [scale.of(run) for run in runs], scale.least_spread(baseline))
    if comparison is None:
        return None
    looks = PAIRED_LOOKS if base else FRESH_LOOKS
    p_value = sequential_p(comparison.p_value, comparison.launches, looks) if confirmed else comparison.p_value
    worse, better = (scale.bound(effect, baseline, side) for side in (True, False))
    gone_worse = comparison.estimate * scale.worse
    significant = p_value <= ALPHA
    relevant = gone_worse > worse or -gone_worse > better
    needed = None
    if significant and relevant:
        verdict = Verdict.REGRESSION if gone_worse > 0 else Verdict.IMPROVEMENT
    elif gone_worse + comparison.margin(MISS) <= worse:
        verdict = Verdict.PASS
    else:
        verdict, needed = Verdict.INCONCLUSIVE, _needed(comparison, worse)
    return Decision(verdict, comparison, p_value, significant, relevant, float(np.median(now)), baseline, needed)


def _needed(comparison: Comparison, bound: float) -> int | None:
    """Interleaved pairs that would find a change of `bound` (on the scale); None where no number would."""
    spread = comparison.within or comparison.standard_error * math.sqrt(comparison.launches / 2)
    return launches_needed(spread, bound, ALPHA) if math.isfinite(bound) and bound > 0 else None
