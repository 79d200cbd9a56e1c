"""Runs made up for tests: small, valid and different from each other."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from regress.record import (
    Case,
    CaseOutcome,
    Commit,
    Environment,
    Finding,
    Launch,
    Measurement,
    Run,
    TimingMode,
    Verdict,
)
from regress.units import Better, Unit

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
ALLREDUCE = Case("allreduce", "float32", 2, "cpu", TimingMode.ISOLATED, 2**20)
ALLGATHER = Case("allgather", "float32", 2, "cpu", TimingMode.ISOLATED, 2**20)
HERE = Environment({"gpu": "H200", "gpu_count": 2}, {"nccl": "2.30.7"})
ELSEWHERE = Environment({"gpu": "A100", "gpu_count": 2}, {"nccl": "2.30.7"})


def moment(number: int) -> str:
    return (START + timedelta(hours=number)).isoformat()


def measurement(value: float, metric: str = "allreduce_seconds") -> Measurement:
    return Measurement(metric, Unit.SECONDS, Better.LOWER, value, (value, value * 1.5, value * 0.5))


def launch(index: int, value: float, role: str = "head", started_at: str = moment(0)) -> Launch:
    outcomes = (CaseOutcome(ALLREDUCE, (measurement(value),)),
                CaseOutcome(ALLGATHER, (measurement(value * 2, "allgather_seconds"),)))
    return Launch(index, role, 7, started_at, 2.0, 1.5, outcomes)


def run(number: int, *, run_id: str | None = None, main: bool = True, environment: Environment = HERE,
        value: float = 0.001, sha: str | None = None, started_at: str | None = None) -> Run:
    """Run `number` starts that many hours after START; its launches measure value times 1, 1.1 and 1.2."""
    begin = started_at or moment(number)
    launches = tuple(launch(i, value * (1 + i / 10), started_at=begin) for i in range(3))
    finding = Finding(ALLREDUCE.id, "allreduce_seconds", Unit.SECONDS, "shift", Verdict.PASS, "p50", "steady",
                      now=value * 1.1, baseline=value)
    return Run(run_id or f"run{number:05d}", begin, begin,
               Commit(sha or f"{number:040x}", "a change", "someone", begin, "main" if main else "topic", main=main),
               environment, launches, Verdict.PASS, {ALLREDUCE.id: Verdict.PASS}, (finding,))


def big_run(number: int, series: int, samples: int = 20) -> Run:
    """One launch with `series` cases, each with one metric of `samples` samples."""
    outcomes = tuple(
        CaseOutcome(replace(ALLREDUCE, message_size_bytes=1024 * (place + 1)),
                    (Measurement("allreduce_seconds", Unit.SECONDS, Better.LOWER, 1e-3 + place * 1e-6,
                                 tuple(1e-3 + place * 1e-6 + i * 1.37e-7 + number * 1.1e-9 for i in range(samples))),))
        for place in range(series))
    return replace(run(number), launches=(replace(launch(0, 1e-3), outcomes=outcomes),), findings=())
