"""The gate's JSON: what every reader outside this process sees of a run. It has a published JSON Schema.

Values are in base units; `change` is now/baseline - 1; `null` means "not measured" or "no baseline".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec

from regress.record import SEVEREST_FIRST, Case, Diagnosis, Environment, Finding, Measurement, Run, Verdict

RESULT_SCHEMA = 1

@dataclass(frozen=True, slots=True)
class MetricRow:
    """One judged metric of one case: its most serious finding."""

    metric: str
    unit: str
    statistic: str
    now: float | None
    baseline: float | None
    change: float | None
    interval: tuple[float, float] | None
    launches: int
    verdict: Verdict
    reason: str
    detector: str
    severity: str
    needed_launches: int | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One metric that was measured and not judged: its median over launches."""

    metric: str
    unit: str
    now: float
    launches: int


@dataclass(frozen=True, slots=True)
class CaseRow:
    """One case. rerun: the command that measures exactly this case again."""

    case: str
    verdict: Verdict
    metrics: tuple[MetricRow, ...]
    measured: tuple[MeasuredRow, ...]
    findings: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]
    rerun: str


@dataclass(frozen=True, slots=True)
class GateResult:
    """The whole of it; `run` identifies it in the history, `environment` has the two sets of facts."""

    verdict: Verdict
    exit_status: int
    run: dict[str, Any]
    environment: Environment
    cases: tuple[CaseRow, ...]
    warnings: tuple[str, ...]
    artifacts: Mapping[str, str]
    schema: int = RESULT_SCHEMA


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """What a gate came to. environment_changes: reported facts that differ from the newest baseline run."""

    run: Run
    result: GateResult
    exit_status: int
    environment_changes: tuple[str, ...]


def severity_rank(verdict: Verdict) -> int:
    """0 for the worst verdict; for sorting."""
    return SEVEREST_FIRST.index(verdict)


def rerun_command(case_id: str) -> str:
    """The shell command that measures exactly this case again."""
    return f"pytest --comm-regress 'comm-regress::{case_id}'"


def worst_first(findings: tuple[Finding, ...]) -> list[Finding]:
    """Findings by verdict, then by the size of the change."""
    return sorted(findings, key=lambda f: (severity_rank(f.verdict), -abs(f.change or 0.0)))


def explanation(diagnosis: Diagnosis) -> dict[str, Any]:
    """A rule's finding as JSON shows it everywhere: rule, severity, confidence, evidence, cause, try.

    What follows from it is under `consequences`, in the same form, where there is something.
    """
    found: dict[str, Any] = {
        "rule": diagnosis.rule, "severity": diagnosis.severity, "confidence": diagnosis.confidence,
        "evidence": diagnosis.evidence, "cause": diagnosis.cause, "try": diagnosis.suggestion}
    if diagnosis.consequences:
        found["consequences"] = [explanation(one) for one in diagnosis.consequences]
    return found


def _metric_rows(findings: tuple[Finding, ...]) -> tuple[MetricRow, ...]:
    rows: dict[str, MetricRow] = {}
    for f in worst_first(findings):
        # Worst first: the first finding of a metric is the one that decides about it.
        rows.setdefault(f.metric, MetricRow(
            f.metric, f.unit.value, f.statistic, f.now, f.baseline, f.change, f.interval, f.launches, f.verdict,
            f.reason, f.detector, f.severity, f.needed_launches, f.warnings))
    first_seen = list(dict.fromkeys(f.metric for f in findings))
    # Of equally serious metrics the change decides nothing: they keep the order that they were judged in.
    return tuple(sorted(rows.values(), key=lambda row: (severity_rank(row.verdict), first_seen.index(row.metric))))


def _measured_rows(run: Run, case: Case, judged: set[str]) -> tuple[MeasuredRow, ...]:
    found: dict[str, list[Measurement]] = {}
    for launch in run.launches:
        for outcome in launch.outcomes:
            if outcome.case == case and launch.role != "base":
                for measurement in outcome.measurements:
                    if measurement.metric not in judged:
                        found.setdefault(measurement.metric, []).append(measurement)
    return tuple(MeasuredRow(name, series[0].unit.value, median([m.value for m in series]), len(series))
                 for name, series in found.items())


def cases_of(run: Run) -> list[Case]:
    """Every case some launch of the run knows, in the order of its verdicts, which is that of the thresholds file."""
    seen = {outcome.case: None for launch in run.launches for outcome in launch.outcomes}
    order = {case_id: place for place, case_id in enumerate(run.verdicts)}
    return sorted(seen, key=lambda case: order.get(case.id, len(order)))


def _case_row(run: Run, case: Case) -> CaseRow:
    metrics = _metric_rows(tuple(f for f in run.findings if f.case == case.id))
    warnings = dict.fromkeys(
        text for launch in run.launches for outcome in launch.outcomes if outcome.case == case
        for text in (*outcome.warnings, *([outcome.error] if outcome.error else [])))
    explanations = tuple(explanation(d) for d in run.diagnoses if d.case in (None, case.id))
    # The verdict on correctness gives the first launch's error as its reason; it need not be read twice.
    untold = tuple(text for text in warnings if not any(row.reason.endswith(text) for row in metrics))
    return CaseRow(case.id, run.verdicts.get(case.id, Verdict.INVALID), metrics,
                   _measured_rows(run, case, {row.metric for row in metrics}), explanations, untold,
                   rerun_command(case.id))


def _size(row: CaseRow) -> float:
    """How big the change is that gave the case its verdict; 0 where the verdict is not about a change."""
    if row.verdict not in (Verdict.REGRESSION, Verdict.IMPROVEMENT):
        return 0.0
    return max((abs(metric.change or 0.0) for metric in row.metrics if metric.verdict is row.verdict), default=0.0)


def gate_result(run: Run, exit_status: int) -> GateResult:
    """The published form of a run, cases worst first."""
    rows = [_case_row(run, case) for case in cases_of(run)]
    rows.sort(key=lambda row: (severity_rank(row.verdict), -_size(row)))
    identity = {"id": run.run_id, "attempt": run.attempt, "started_at": run.started_at, "ended_at": run.ended_at,
                "commit": msgspec.to_builtins(run.commit), "partial": run.partial, "tool_version": run.tool_version,
                "launches": sum(launch.role == "head" for launch in run.launches),
                "health": run.health}
    return GateResult(run.verdict, exit_status, identity, run.environment, tuple(rows), run.warnings, run.artifacts)


def result_json(result: GateResult) -> bytes:
    """Indented JSON, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"


def result_schema() -> dict[str, Any]:
    """The JSON Schema of `--comm-regress-json`."""
    return msgspec.json.schema(GateResult)
