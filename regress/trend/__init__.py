"""A history folded into series over commits: what charts, sparklines and tables of trends are drawn from.

`regress.trend.fold` reads each run once and keeps only its facts and its numbers, so ten thousand runs can stream
through. `regress.trend.overview` orders the series worst first and puts the latest run into words.
Values stay in base units; nothing here judges: verdicts, changes and baselines are those the runs carry.
"""

from __future__ import annotations

from dataclasses import dataclass

from regress.record import Acceptance, Case, Commit, Environment, Finding, Run, Scalar, Verdict
from regress.units import Better, Unit


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A step in a series: run_id is the first run of the new level, change its size, new over old minus 1."""

    run_id: str
    change: float


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What remains of a run beside its numbers.

    environment: index into Trend.environments. x: its place on the commit axis; a whole number for each commit in
    git order, runs of one commit in one environment spread around it by less than half.
    """

    run_id: str
    started_at: str
    commit: Commit
    environment: int
    verdict: Verdict
    x: float
    accepted: Acceptance | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One series in one run.

    run: index into Trend.runs. launches: the judged statistic of each launch, in order; value: their median.
    verdict: None where no detector looked. baseline, change, interval: the headline finding's; change is relative.
    """

    run: int
    value: float
    launches: tuple[float, ...]
    verdict: Verdict | None = None
    baseline: float | None = None
    change: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one case in one matching environment, points in the order of Trend.runs.

    statistic: which figure of a launch its points show ("value", "p25"). latest: the latest run's headline finding,
    None where that run was not judged on it or belongs to another environment.
    """

    case: Case
    metric: str
    unit: Unit
    better: Better
    fingerprint: str
    statistic: str
    points: tuple[Point, ...]
    latest: Finding | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Case id and metric."""
        return self.case.id, self.metric


@dataclass(frozen=True, slots=True)
class EnvironmentChange:
    """A reported fact that differs from the previous run of the same matching environment; run: index of the later."""

    run: int
    fact: str
    before: Scalar
    after: Scalar


@dataclass(frozen=True, slots=True)
class Trend:
    """The whole history: runs in git order (start time where git cannot tell), series in order of first sight.

    latest: the newest run as it was stored, None for an empty history; latest_index: its place in runs.
    environments: the distinct ones. restless: facts that change so often that they mark nothing, with how often.
    """

    runs: tuple[RunFacts, ...] = ()
    environments: tuple[Environment, ...] = ()
    series: tuple[Series, ...] = ()
    latest: Run | None = None
    latest_index: int | None = None
    changes: tuple[EnvironmentChange, ...] = ()
    restless: tuple[tuple[str, int], ...] = ()
