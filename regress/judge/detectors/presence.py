"""presence: is the series there at all, now and in the baseline?"""

from __future__ import annotations

import numpy as np

from regress.judge.detectors import Detector, Series, SeriesOptions
from regress.record import Finding, Verdict


def judge(series: Series, options: SeriesOptions) -> Finding | None:
    """Invalid when a metric that was measured before has vanished, no-baseline when there is nothing to compare with.

    None when both sides are there, and for a metric that is retired.
    """
    if not series.now and series.window and not options.retired:
        last = series.window[-1]
        return _finding(series, Verdict.INVALID,
                        f"{series.metric} was measured in {len(series.window)} baseline runs (last on "
                        f"{last.started_at}) and is missing now; if that is intended, write `retired: true`")
    if series.now and not series.window and not series.base:
        return _finding(series, Verdict.NO_BASELINE, "no earlier run to compare with; this one is recorded")
    return None


def _finding(series: Series, verdict: Verdict, reason: str) -> Finding:
    figure = float(np.median([m.value for m in series.now])) if series.now else None
    return Finding(case=series.case.id, metric=series.metric, unit=series.unit, detector="presence", verdict=verdict,
                   statistic="value", reason=reason, now=figure, launches=len(series.now),
                   baseline_runs=len(series.window))


PRESENCE = Detector("presence", "a metric that vanished, or one without a baseline", SeriesOptions, judge)
