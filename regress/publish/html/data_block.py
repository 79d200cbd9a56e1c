"""The data embedded in a report: documented JSON, its bulky parts packed as base64 of gzip of JSON.

docs/report-data.md describes every key for readers of the block.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from regress.publish.html.sweep import Sweep
from regress.publish.html.views import Limits, TraceView
from regress.record import Environment, Scalar, Verdict
from regress.trend import ChangePoint, Point, Series, Trend

FORMAT = "comm-regress-report"
SCHEMA_VERSION = 1
VERDICTS = (Verdict.PASS, Verdict.REGRESSION, Verdict.IMPROVEMENT, Verdict.INCONCLUSIVE, Verdict.NO_BASELINE,
            Verdict.INVALID)
UNJUDGED = "-"
RESOLUTION = 1e-4
"""Values are stored as whole multiples of a step of at most this share of the smallest one: finer than any noise."""
FINEST = 1e-30
"""No second, byte or ratio that was measured is as small; below it floats run out of digits of their own."""
CHANGE_STEP = 1e-3
TRACE_DIGITS = 9
"""Trace times are rounded to the nanosecond, the clock of every tracer."""


def pack(value: object) -> str:
    """Base64 of gzip of compact JSON; the same bytes for the same value."""
    return base64.b64encode(gzip.compress(msgspec.json.encode(value), 9, mtime=0)).decode("ascii")


def series_id(series: Series) -> str:
    """A short name that stays the same from report to report, for links to one chart."""
    text = "\0".join((*series.key, series.fingerprint))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def data_block(
    trend: Trend,
    *,
    commit_url_template: str | None,
    change_points: Mapping[tuple[str, str], Sequence[ChangePoint]],
    limits: Mapping[tuple[str, str], Limits],
    sweeps: Sequence[Sweep],
    trace: TraceView | None,
) -> dict[str, Any]:
    """Everything the page draws, ready for JSON."""
    places = {facts.run_id: i for i, facts in enumerate(trend.runs)}
    latest_fingerprint = trend.latest.environment.fingerprint if trend.latest else None
    return {
        "format": FORMAT,
        "schema": SCHEMA_VERSION,
        "commit_url": commit_url_template,
        "verdicts": [verdict.value for verdict in VERDICTS],
        "latest": trend.latest_index,
        "runs": pack(_runs(trend)),
        "environments": pack(_environments(trend.environments)),
        "environment_changes": [asdict(change) for change in trend.changes],
        "restless_facts": dict(trend.restless),
        "series": [_series(series, limits.get(series.key),
                           change_points.get(series.key, ()) if series.fingerprint == latest_fingerprint else (),
                           places) for series in trend.series],
        "sweeps": [asdict(sweep) for sweep in sweeps],
        "trace": _trace(trace) if trace else None,
    }


def _runs(trend: Trend) -> dict[str, list[Any]]:
    runs = trend.runs
    return {
        "run_id": [r.run_id for r in runs],
        "started_at": [r.started_at for r in runs],
        "x": [r.x for r in runs],
        "environment": [r.environment for r in runs],
        "verdict": [VERDICTS.index(r.verdict) for r in runs],
        "sha": [r.commit.sha for r in runs],
        "subject": [r.commit.subject for r in runs],
        "author": [r.commit.author for r in runs],
        "time": [r.commit.time for r in runs],
        "branch": [r.commit.branch for r in runs],
        "dirty": [int(r.commit.dirty) for r in runs],
        "main": [int(r.commit.main) for r in runs],
        "accepted": [{"reason": r.accepted.reason, "who": r.accepted.who, "when": r.accepted.when,
                      "cases": r.accepted.cases} if r.accepted else None for r in runs],
    }


def _environments(environments: Sequence[Environment]) -> dict[str, Any]:
    """Must-match sets once each; reported facts as columns of places in a list of values, -1 where one is absent."""
    sets: dict[str, int] = {}
    distinct: list[dict[str, Any]] = []
    which: list[int] = []
    for environment in environments:
        fingerprint = environment.fingerprint
        if fingerprint not in sets:
            sets[fingerprint] = len(distinct)
            distinct.append({"fingerprint": fingerprint, "must_match": environment.must_match})
        which.append(sets[fingerprint])
    facts = dict.fromkeys(fact for environment in environments for fact in environment.reported)
    return {"sets": distinct, "set": which, "reported": {fact: _column(fact, environments) for fact in facts}}


def _column(fact: str, environments: Sequence[Environment]) -> dict[str, list[Any]]:
    # Keyed by type as well: True and 1 are equal in Python and are not the same fact.
    places: dict[tuple[type, Scalar], int] = {}
    at: list[int] = []
    for environment in environments:
        if fact not in environment.reported:
            at.append(-1)
            continue
        value = environment.reported[fact]
        at.append(places.setdefault((type(value), value), len(places)))
    return {"values": [value for _, value in places], "at": at}


def _series(series: Series, limits: Limits | None, steps: Sequence[ChangePoint],
            places: Mapping[str, int]) -> dict[str, Any]:
    step = value_step(series.points)
    return {
        "id": series_id(series),
        "case": series.case.id,
        "metric": series.metric,
        "unit": series.unit.value,
        "better": series.better.value,
        "fingerprint": series.fingerprint,
        "statistic": series.statistic,
        "count": len(series.points),
        "step": step,
        "change_step": CHANGE_STEP,
        "limits": [limits.minimum, limits.maximum] if limits else [None, None],
        "change_points": [{"run": places[s.run_id], "change": s.change} for s in steps if s.run_id in places],
        "points": pack(pack_points(series.points, step)),
    }


def value_step(points: Sequence[Point]) -> float:
    """The power of ten, or 2 or 5 times one, that values are stored in multiples of."""
    smallest = min((abs(value) for point in points for value in (point.value, *point.launches) if value), default=1.0)
    largest = max((abs(value) for point in points for value in (point.value, *point.launches)), default=1.0)
    fine = max(smallest * RESOLUTION, largest * 1e-12, FINEST)
    power = 10.0 ** math.floor(math.log10(fine))
    return max(power * factor for factor in (1, 2, 5) if factor == 1 or power * factor <= fine)


def pack_points(points: Sequence[Point], step: float) -> dict[str, Any]:
    """Points as columns of small whole numbers; docs/report-data.md says how to read them back."""
    whole = [round(point.value / step) for point in points]
    return {
        "run": _steps([point.run for point in points]),
        "value": _steps(whole),
        "launch_count": [len(point.launches) for point in points],
        "launches": [round(launch / step) - value for point, value in zip(points, whole, strict=True)
                     for launch in point.launches],
        "verdict": "".join(UNJUDGED if p.verdict is None else str(VERDICTS.index(p.verdict)) for p in points),
        "baseline": _steps([None if p.baseline is None else round(p.baseline / step) for p in points]),
        "change": [None if p.change is None else round(p.change / CHANGE_STEP) for p in points],
        "low": [_offset(p, 0) for p in points],
        "high": [_offset(p, 1) for p in points],
    }


def _steps(values: Sequence[int] | Sequence[int | None]) -> list[int | None]:
    """Each number less the one before it, the first as it is; None stays and is stepped over."""
    before = 0
    steps: list[int | None] = []
    for value in values:
        steps.append(None if value is None else value - before)
        before = before if value is None else value
    return steps


def _offset(point: Point, side: int) -> int | None:
    if point.interval is None or point.change is None:
        return None
    return round(point.interval[side] / CHANGE_STEP) - round(point.change / CHANGE_STEP)


def _trace(trace: TraceView) -> dict[str, Any]:
    return {
        "title": trace.title,
        "strips": [{"rank": strip.rank, "compute": _rounded(strip.compute),
                    "communication": _rounded(strip.communication)} for strip in trace.strips],
        "collectives": [asdict(collective) for collective in trace.collectives],
        "findings": [asdict(finding) for finding in trace.findings],
    }


def _rounded(intervals: Sequence[tuple[float, float]]) -> list[list[float]]:
    return [[round(start, TRACE_DIGITS), round(end, TRACE_DIGITS)] for start, end in intervals]
