"""The shelf of sinks and renderers: a finished run in, bytes for one destination out.

A sink is one `Sink` value in a file beside this one. Its `render` is pure; its `send` is the only thing that writes.
A sink that fails never changes a verdict: what it could not send goes to the spool (`regress.publish.spool`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, TypeVar

from regress.delivery import Payload
from regress.delivery.series import Number, Point, points
from regress.record import SEVEREST_FIRST, Case, Finding, Measurement, Run, Verdict
from regress.units import Better, Unit

OptionsT = TypeVar("OptionsT")


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of one case of a finished run.

    value, low, high: median, smallest and largest over launches, in the metric's unit. findings: every detector's
    opinion, worst first. baseline: what it was judged against; limit: its absolute bound; None where there is none.
    """

    metric: str
    unit: Unit
    better: Better
    value: float
    low: float
    high: float
    launches: int
    findings: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> Verdict | None:
        """The worst finding's verdict; None where the metric was not judged."""
        return self.findings[0].verdict if self.findings else None

    @property
    def baseline(self) -> float | None:
        """The first baseline that a finding names."""
        return next((f.baseline for f in self.findings if f.baseline is not None), None)

    @property
    def limit(self) -> float | None:
        """The first absolute bound that a finding names."""
        return next((f.limit for f in self.findings if f.limit is not None), None)


@dataclass(frozen=True, slots=True)
class CaseFigures:
    """One case of a finished run with all its figures, by metric name."""

    case: Case
    verdict: Verdict | None
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run as every sink sees it. repository: its name, such as "org/project"; empty where unknown."""

    run: Run
    repository: str = ""

    def cases(self) -> tuple[CaseFigures, ...]:
        """Every case in the order it was first measured.

        Head launches count; a metric that only profiled launches give is taken from those; base launches never count.
        """
        gathered: dict[Case, dict[str, dict[str, list[Measurement]]]] = {}
        for launch in self.run.launches:
            for outcome in launch.outcomes if launch.role != "base" else ():
                metrics = gathered.setdefault(outcome.case, {})
                for measurement in outcome.measurements:
                    metrics.setdefault(measurement.metric, {}).setdefault(launch.role, []).append(measurement)
        return tuple(CaseFigures(case, self.run.verdicts.get(case.id), tuple(
            self._figure(case, roles.get("head") or roles["traced"]) for _, roles in sorted(metrics.items())))
            for case, metrics in gathered.items())

    def points(self) -> list[Point]:
        """The run as time series, for every sink that speaks of such."""
        return points(self.run, self.repository, [(group.case, [
            Number(f.metric, f.unit, f.value, f.low, f.high, f.baseline, f.limit, f.verdict) for f in group.figures])
            for group in self.cases()])

    def _figure(self, case: Case, measured: list[Measurement]) -> Figure:
        first = measured[0]
        ordered = sorted(m.value for m in measured)
        findings = [f for f in self.run.findings if f.case == case.id and f.metric == first.metric]
        findings.sort(key=lambda f: SEVEREST_FIRST.index(f.verdict))
        return Figure(first.metric, first.unit, first.better, median(ordered), ordered[0], ordered[-1], len(ordered),
                      tuple(findings))


@dataclass(frozen=True, slots=True)
class Sink(Generic[OptionsT]):
    """One destination.

    options: frozen dataclass of options (`regress.options.option`); secrets are named there as environment variables
        and read in `send` only.
    render: what to send, as values; nothing for a run that this sink does not want. Never raises for a valid run.
    send: sends one payload and returns what was done in a few words. Raises PublishError: `RefusedError` when trying
        again would not help, `UnreachableError` when it may.
    destination: where it goes, without secrets: kept payloads find their sink again by it.
    verify: reads one value of the result back and returns what was found; PublishError when it is not there.
    """

    name: str
    summary: str
    options: type[OptionsT]
    render: Callable[[Result, OptionsT], tuple[Payload, ...]]
    send: Callable[[Payload, OptionsT], str]
    destination: Callable[[OptionsT], str]
    verify: Callable[[Result, OptionsT], str] | None = field(default=None)
