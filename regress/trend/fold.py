"""Runs in, series out: one pass, newest run first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import msgspec

from regress.record import Case, Environment, Finding, Measurement, Run, Scalar, Verdict
from regress.trend import EnvironmentChange, Point, RunFacts, Series, Trend

WORST_FIRST = (Verdict.REGRESSION, Verdict.INVALID, Verdict.INCONCLUSIVE, Verdict.IMPROVEMENT, Verdict.NO_BASELINE,
               Verdict.PASS)
RESTLESS_CHANGES = 8
RESTLESS_SHARE = 50
SPREAD = 0.6
"""How much of a commit's slot its runs may take, so that two commits never touch."""


def fold(runs: Iterable[Run], git_order: Sequence[str] | None = None) -> Trend:
    """The history as series. `runs` newest first (by start); `git_order` full hashes, oldest first.

    A commit that git_order does not name stands right after the commit that was measured before it. Only the newest
    run and one record a run are kept, never the samples of all runs.
    """
    folding = _Folding()
    latest: Run | None = None
    for run in runs:
        latest = latest or run
        folding.take(run)
    if latest is None:
        return Trend()
    facts, position = _in_order(folding, git_order)
    changes, restless = _environment_changes(facts, folding.environments)
    fingerprint = folding.fingerprints[folding.facts[0].environment]
    return Trend(
        runs=facts,
        environments=tuple(folding.environments),
        series=tuple(_series(found, position, latest if found.fingerprint == fingerprint else None)
                     for found in folding.series.values()),
        latest=latest,
        latest_index=position[0],
        changes=changes,
        restless=restless,
    )


def headline_findings(run: Run) -> dict[tuple[str, str], Finding]:
    """For each case and metric the one finding that speaks for it: the worst, and of those one that has a change."""
    best: dict[tuple[str, str], Finding] = {}
    for finding in run.findings:
        key = (finding.case, finding.metric)
        if key not in best or _weight(finding) < _weight(best[key]):
            best[key] = finding
    return best


def _weight(finding: Finding) -> tuple[int, bool]:
    return WORST_FIRST.index(finding.verdict), finding.change is None


@dataclass(slots=True)
class _Found:
    """A series while it is being collected; points newest first, their run counting arrivals."""

    case: Case
    measurement: Measurement
    fingerprint: str
    statistic: str
    points: list[Point] = field(default_factory=list)


@dataclass(slots=True)
class _Folding:
    facts: list[RunFacts] = field(default_factory=list)
    environments: list[Environment] = field(default_factory=list)
    fingerprints: list[str] = field(default_factory=list)
    series: dict[tuple[str, str, str], _Found] = field(default_factory=dict)
    _known: dict[bytes, int] = field(default_factory=dict)
    _ids: dict[Case, str] = field(default_factory=dict)

    def take(self, run: Run) -> None:
        """Keep the facts and numbers of one run, older than all before it."""
        arrival, environment = len(self.facts), self._environment(run.environment)
        self.facts.append(RunFacts(run.run_id, run.started_at, run.commit, environment, run.verdict, 0.0, run.accepted))
        findings = headline_findings(run)
        for (case, metric), measured in self._measured(run).items():
            finding = findings.get((self._ids[case], metric))
            self._add(arrival, case, measured, self.fingerprints[environment], finding)

    def _environment(self, environment: Environment) -> int:
        key = msgspec.json.encode((environment.must_match, environment.reported), order="sorted")
        if key not in self._known:
            self._known[key] = len(self.environments)
            self.environments.append(environment)
            self.fingerprints.append(environment.fingerprint)
        return self._known[key]

    def _measured(self, run: Run) -> dict[tuple[Case, str], list[Measurement]]:
        """By case and metric, one measurement a launch: of head launches, else of the traced one."""
        found: dict[str, dict[tuple[Case, str], list[Measurement]]] = {"traced": {}, "head": {}}
        for launch in run.launches:
            for outcome in launch.outcomes if launch.role in found else ():
                self._ids.setdefault(outcome.case, outcome.case.id)
                for measurement in outcome.measurements:
                    found[launch.role].setdefault((outcome.case, measurement.metric), []).append(measurement)
        return found["traced"] | found["head"]

    def _add(self, arrival: int, case: Case, measured: list[Measurement], fingerprint: str,
             finding: Finding | None) -> None:
        key = (fingerprint, self._ids[case], measured[0].metric)
        found = self.series.get(key)
        if found is None:
            statistic = finding.statistic if finding else "value"
            found = self.series[key] = _Found(case, measured[0], fingerprint, statistic)
        values = [value for m in measured if (value := m.statistic(found.statistic)) is not None]
        if values:
            found.points.append(Point(arrival, median(values), tuple(values), finding.verdict if finding else None,
                                      finding.baseline if finding else None, finding.change if finding else None,
                                      finding.interval if finding else None))


def _series(found: _Found, position: Sequence[int], latest: Run | None) -> Series:
    points = sorted((replace(point, run=position[point.run]) for point in found.points), key=lambda p: p.run)
    kind = found.measurement
    finding = headline_findings(latest).get((found.case.id, kind.metric)) if latest else None
    return Series(found.case, kind.metric, kind.unit, kind.better, found.fingerprint, found.statistic, tuple(points),
                  finding)


def _in_order(folding: _Folding, git_order: Sequence[str] | None) -> tuple[tuple[RunFacts, ...], list[int]]:
    """Facts in git order with their x, and for each arrival its place among them."""
    slots = _slots(folding.facts, git_order)
    oldest_first = range(len(folding.facts) - 1, -1, -1)
    order = sorted(oldest_first, key=lambda arrival: slots[arrival])
    position = [0] * len(order)
    together: dict[tuple[int, str], list[int]] = {}
    for place, arrival in enumerate(order):
        position[arrival] = place
        fingerprint = folding.fingerprints[folding.facts[arrival].environment]
        together.setdefault((slots[arrival], fingerprint), []).append(arrival)
    offset = {arrival: SPREAD * ((i + 0.5) / len(group) - 0.5)
              for group in together.values() for i, arrival in enumerate(group)}
    facts = tuple(replace(folding.facts[a], x=round(slots[a] + offset[a], 6)) for a in order)
    return facts, position


def _slots(newest_first: Sequence[RunFacts], git_order: Sequence[str] | None) -> list[int]:
    """The place of each arrival's commit on the axis: 0, 1, 2 … without holes."""
    known: Mapping[str, int] = {sha: i for i, sha in enumerate(git_order or ())}
    keys: list[tuple[int, int]] = []
    seen: dict[str, tuple[int, int]] = {}
    before = -1
    for serial, facts in enumerate(reversed(newest_first)):
        sha = facts.commit.sha
        if sha is not None and sha in seen:
            keys.append(seen[sha])
            continue
        if sha is not None and sha in known:
            before = known[sha]
            keys.append((before, -1))
        else:
            keys.append((before, serial))
        if sha is not None:
            seen[sha] = keys[-1]
    rank = {key: i for i, key in enumerate(sorted(set(keys)))}
    return [rank[key] for key in reversed(keys)]


def _environment_changes(
    facts: Sequence[RunFacts], environments: Sequence[Environment],
) -> tuple[tuple[EnvironmentChange, ...], tuple[tuple[str, int], ...]]:
    """Every reported fact that changed, and those that change too often to mean anything (a fleet's host names).

    A fact that could not be read says nothing: it is compared with the last time it could. A fraction is a reading
    (a load average), not an identity, and marks nothing.
    """
    last: dict[str, dict[str, Scalar]] = {}
    changes: list[EnvironmentChange] = []
    for run, fact in enumerate(facts):
        environment = environments[fact.environment]
        known = last.setdefault(environment.fingerprint, {})
        for name, value in environment.reported.items():
            if value is None or isinstance(value, float):
                continue
            if name in known and known[name] != value:
                changes.append(EnvironmentChange(run, name, known[name], value))
            known[name] = value
    often = Counter(change.fact for change in changes)
    limit = max(RESTLESS_CHANGES, len(facts) // RESTLESS_SHARE)
    restless = {name: count for name, count in often.items() if count > limit}
    return tuple(c for c in changes if c.fact not in restless), tuple(sorted(restless.items()))
