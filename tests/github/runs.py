"""Results to publish: small ones, hostile ones and huge ones."""

from __future__ import annotations

from dataclasses import replace

from regress.record import (
    Case,
    CaseOutcome,
    Commit,
    Diagnosis,
    Environment,
    Finding,
    Launch,
    Measurement,
    Run,
    TimingMode,
    Verdict,
)
from regress.result import CaseRow, GateResult, MetricRow, gate_result, result_json
from regress.units import Better, Unit

SHA = "a" * 40
HOSTILE = ("| </code></details><script>alert(1)</script> @octocat #12 [x](javascript:1) `$(id)` ${{ github.token }}\r\n"
           "::error::owned\n\n# heading https://evil.example \u202egnp.exe \x1b[31m www.evil.example")
SLOW = Case("allreduce", "float32", 2, "cpu", TimingMode.ISOLATED, 16 * 2**20)
STEADY = Case("allgather", "float32", 2, "cpu", TimingMode.ISOLATED, 2**20)
NEW = Case("ddp_step", "float32", 2, "cpu", TimingMode.STEP)
NOISY = Case("allgather", "float32", 2, "cpu", TimingMode.PIPELINED, 4096)


def measured(case: Case, metric: str, values: tuple[float, ...]) -> tuple[Launch, ...]:
    return tuple(Launch(index, "head", 1, "2026-03-01T10:00:00+00:00", 2.0, 1.5, (
        CaseOutcome(case, (Measurement(metric, Unit.SECONDS, Better.LOWER, value),)),))
        for index, value in enumerate(values))


def finding(case: Case, metric: str, verdict: Verdict, now: float, baseline: float | None = None,
            *, interval: tuple[float, float] | None = None, severity: str = "fail") -> Finding:
    change = None if baseline is None else now / baseline - 1
    return Finding(case.id, metric, Unit.SECONDS, "shift", verdict, "value", f"made to be {verdict.value}", now=now,
                   baseline=baseline, change=change, interval=interval, launches=3, severity=severity,
                   needed_launches=14 if verdict is Verdict.INCONCLUSIVE else None)


def recorded_run() -> Run:
    """One regression, one undecided, one unchanged, one new; with an explanation from a trace."""
    findings = (
        finding(SLOW, "allreduce_seconds", Verdict.REGRESSION, 0.0123456, 0.0098765, interval=(0.21, 0.29)),
        finding(NOISY, "allgather_seconds", Verdict.INCONCLUSIVE, 123.4e-6, 120.1e-6, interval=(-0.04, 0.09)),
        finding(STEADY, "allgather_seconds", Verdict.PASS, 0.00234567, 0.00235, interval=(-0.012, 0.009)),
        finding(NEW, "step_seconds", Verdict.NO_BASELINE, 0.0345678),
    )
    launches = (*measured(SLOW, "allreduce_seconds", (0.0123, 0.0123456, 0.0124)),
                *measured(NOISY, "allgather_seconds", (122e-6, 123.4e-6, 125e-6)),
                *measured(STEADY, "allgather_seconds", (0.0023, 0.00234567, 0.0024)),
                *measured(NEW, "step_seconds", (0.034, 0.0345678, 0.035)))
    return Run(
        "f00dcafe", "2026-03-01T10:00:00.000+00:00", "2026-03-01T10:01:00.000+00:00",
        Commit(SHA, "Bucket gradients by arrival", "someone", "2026-03-01T09:00:00+00:00", "topic"),
        Environment({"backend": "gloo", "gpu_count": 0}, {"torch_version": "2.13.0"}), launches, Verdict.REGRESSION,
        {SLOW.id: Verdict.REGRESSION, NOISY.id: Verdict.INCONCLUSIVE, STEADY.id: Verdict.PASS,
         NEW.id: Verdict.NO_BASELINE}, findings,
        (Diagnosis("small_collectives", "warning", {"count": 3}, "three collectives where one would do", "bucket them",
                   SLOW.id),), tool_version="0.1.0", warnings=("clocks were not locked",))


def recorded_json() -> bytes:
    return result_json(gate_result(recorded_run(), 1))


def quiet_json(verdict: Verdict = Verdict.PASS) -> bytes:
    run = replace(recorded_run(), findings=(finding(STEADY, "allgather_seconds", verdict, 0.0023, 0.0023),),
                  launches=measured(STEADY, "allgather_seconds", (0.0023,)), verdict=verdict, diagnoses=(),
                  verdicts={STEADY.id: verdict}, warnings=())
    return result_json(gate_result(run, 0))


def made_row(number: int, verdict: Verdict, text: str = "slower") -> MetricRow:
    change = 0.1 + number / 1000
    interval = (change - 0.05, change + 0.05)
    return MetricRow("allreduce_seconds", "seconds", "p50", 1.0 + change, 1.0, change, interval, 3, verdict, text,
                     "shift", "fail", warnings=(text,))


def big_result(cases: int, text: str = "slower", verdict: Verdict = Verdict.REGRESSION) -> GateResult:
    """`cases` cases of one row each, change rising with the number; every text in it is `text`."""
    rows = tuple(CaseRow(f"{text}[{number}]", verdict, (made_row(number, verdict, text),), (), (
        {"rule": text, "severity": "warning", "evidence": {}, "cause": f"{text} {number}", "try": text},),
        (text,), text) for number in range(cases))
    return GateResult(verdict, 1, {"id": text, "commit": {"sha": SHA, "subject": text}, "launches": 3},
                      Environment({text: text}), rows, (text,), {text: text})
