"""Runs made of plain numbers, for the judge's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from regress.judge.detectors import SeriesOptions
from regress.judge.detectors.drift import DriftOptions
from regress.judge.detectors.limit import LimitOptions
from regress.judge.detectors.shift import ShiftOptions
from regress.judge.verdict import Policies
from regress.record import (
    Acceptance,
    Case,
    CaseOutcome,
    Commit,
    Environment,
    Launch,
    Measurement,
    Run,
    Scalar,
    TimingMode,
    Verdict,
)
from regress.units import Better, Unit

METRIC = "allreduce_seconds"


def case(workload: str = "allreduce", device: str = "cuda", size: int = 2**24) -> Case:
    """A collective of two ranks."""
    return Case(workload=workload, dtype="float32", world_size=2, device=device, timing=TimingMode.ISOLATED,
                message_size_bytes=size)


CASE = case()


def measurement(value: float, metric: str = METRIC, unit: Unit = Unit.SECONDS,
                better: Better = Better.LOWER) -> Measurement:
    """A figure without samples, judged on its value."""
    return Measurement(metric=metric, unit=unit, better=better, value=value)


def launches(values: Sequence[float], *, role: str = "head", session: int = 0, of: Case = CASE,
             metric: str = METRIC, unit: Unit = Unit.SECONDS, better: Better = Better.LOWER) -> tuple[Launch, ...]:
    """One launch for each value."""
    return tuple(
        Launch(index=i, role=role, seed=i, started_at="2026-01-01T00:00:00+00:00", wall_seconds=2.0,
               rank_wall_seconds=1.9, session=session,
               outcomes=(CaseOutcome(of, (measurement(value, metric, unit, better),)),))
        for i, value in enumerate(values))


def run(values: Sequence[float], number: int = 0, *, sha: str | None = "", main: bool = True,
        verdict: Verdict = Verdict.PASS, verdicts: Mapping[str, Verdict] | None = None, partial: bool = False,
        facts: Mapping[str, Scalar] | None = None, accepted: Acceptance | None = None, day: int | None = None,
        made: tuple[Launch, ...] | None = None, dirty: bool = False) -> Run:
    """An earlier run; each has a commit of its own unless told otherwise."""
    at = f"2026-01-{(number if day is None else day) + 1:02d}T00:00:00+00:00"
    return Run(run_id=f"run{number}", started_at=at, ended_at=at,
               commit=Commit(sha=f"sha{number}" if sha == "" else sha, main=main, dirty=dirty), partial=partial,
               environment=Environment(dict(facts or {"gpu": "H200"})), launches=made or launches(values),
               verdict=verdict, verdicts=dict(verdicts or {CASE.id: verdict}), accepted=accepted)


def policies(*pairs: tuple[Case, str], shift: ShiftOptions | None = None, limit: LimitOptions | None = None,
             standing: SeriesOptions | None = None, drift: DriftOptions | None = None) -> Policies:
    """One policy with every detector for each series."""
    policy: dict[str, object] = {"presence": standing or SeriesOptions(), "limit": limit or LimitOptions(),
                                 "shift": shift or ShiftOptions(), "drift": drift or DriftOptions()}
    return {(of.id, metric): policy for of, metric in pairs or ((CASE, METRIC),)}
