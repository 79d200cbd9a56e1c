"""A finished run as time series: names in base units with unit suffixes, bounded labels, companions to draw a band.

For a metric M of a case: `comm_regress_M` and, with the same labels, `comm_regress_low_M` and `comm_regress_high_M`
(over launches), `comm_regress_baseline_M`, `comm_regress_limit_M` where there are such, and
`comm_regress_verdict_code{metric="M"}`. For the run: `comm_regress_run_verdict_code`,
`comm_regress_run_end_timestamp_seconds`, and `comm_regress_run_info`, which alone carries the commit: as a label on
every series it would start them all anew with each commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from regress.record import Case, Run, Verdict
from regress.units import Unit

VERDICT_CODES = {Verdict.PASS: 0, Verdict.IMPROVEMENT: 1, Verdict.NO_BASELINE: 2, Verdict.INCONCLUSIVE: 3,
                 Verdict.REGRESSION: 4, Verdict.INVALID: 5}
"""Rising with how much it asks of a reader; the dashboard maps them back to words."""

RELEASE_BRANCH = re.compile(r"release([/_.-].*)?|v?\d+([._-]\d+|[._-]x)*")
_INVALID = re.compile(r"[^a-zA-Z0-9_]")
_LONGEST_LABEL = 128


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one series at one time; labels sorted by name, none empty."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float
    time_ms: int
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """What a point needs of a figure: its metric's name, unit and values. Missing ones are None."""

    metric: str
    unit: Unit
    value: float
    low: float
    high: float
    baseline: float | None
    limit: float | None
    verdict: Verdict | None


def time_ms(moment: str) -> int:
    """Milliseconds since the epoch of an ISO 8601 time; without a zone it is UTC."""
    time = datetime.fromisoformat(f"{moment[:-1]}+00:00" if moment.endswith("Z") else moment)
    if time.tzinfo is None:
        time = time.replace(tzinfo=timezone.utc)
    return round(time.timestamp() * 1000)


def branch_class(run: Run) -> str:
    """main, release or other: branch names themselves have no bound."""
    if run.commit.main:
        return "main"
    return "release" if run.commit.branch and RELEASE_BRANCH.fullmatch(run.commit.branch) else "other"


def metric_name(name: str) -> str:
    """A name every metrics server takes: letters, digits and underscores."""
    return "comm_regress_" + _INVALID.sub("_", name)


def run_labels(run: Run, repository: str) -> dict[str, str]:
    """What the machine and the branch contribute to every series; hosts and commits do not."""
    must = run.environment.must_match
    count = must.get("gpu_count")
    gpu = must.get("gpu_model")
    machine = gpu if gpu is not None else must.get("cpu_model")
    return _labels({"repo": repository, "branch": branch_class(run), "gpu": machine,
                    "gpus": count, "host_class": run.environment.fingerprint[:8]})


def case_labels(case: Case) -> dict[str, str]:
    """What a case contributes: its identity and, for selecting, the parts of it."""
    return _labels({"case": case.id, "workload": case.workload, "dtype": case.dtype, "ranks": case.world_size,
                    "device": case.device, "timing": case.timing.value, "message_bytes": case.message_size_bytes})


def points(run: Run, repository: str, cases: Sequence[tuple[Case, Sequence[Number]]]) -> list[Point]:
    """Every point of a run, all at the time it started; a series occurs once."""
    common = run_labels(run, repository)
    at = time_ms(run.started_at)
    found = list(_run_points(run, common, at))
    for case, numbers in cases:
        labels = common | case_labels(case)
        for number in numbers:
            found += _number_points(number, labels, at)
    return found


def _run_points(run: Run, common: dict[str, str], at: int) -> Iterator[Point]:
    seen = run.environment.reported
    info = _labels({"commit": run.commit.sha, "run_id": run.run_id, "attempt": run.attempt,
                    "branch_name": run.commit.branch, "tool_version": run.tool_version,
                    "torch": seen.get("torch_version"), "nccl": seen.get("nccl_version"),
                    "driver": seen.get("driver_version")})
    yield _point("run_info", common | info, 1.0, at)
    yield _point("run_verdict_code", common, float(VERDICT_CODES[run.verdict]), at)
    yield _point("run_end_timestamp_seconds", common, time_ms(run.ended_at) / 1000, at, Unit.SECONDS)


def _number_points(number: Number, labels: dict[str, str], at: int) -> Iterator[Point]:
    for prefix, value in (("", number.value), ("low_", number.low), ("high_", number.high),
                          ("baseline_", number.baseline), ("limit_", number.limit)):
        if value is not None:
            yield _point(prefix + number.metric, labels, value, at, number.unit)
    if number.verdict is not None:
        yield _point("verdict_code", labels | {"metric": number.metric}, float(VERDICT_CODES[number.verdict]), at)


def _point(name: str, labels: dict[str, str], value: float, at: int, unit: Unit | None = None) -> Point:
    return Point(metric_name(name), tuple(sorted(labels.items())), value, at, unit)


def _labels(facts: dict[str, object]) -> dict[str, str]:
    """Label values as text, without control characters and bounded in length; what is not known has no label."""
    return {name: "".join(c if c.isprintable() else " " for c in str(value))[:_LONGEST_LABEL]
            for name, value in facts.items() if value not in (None, "")}
