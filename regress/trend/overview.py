"""The first screen in values: what is slower, since which commit, why, and whether the machine is to be believed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from regress.record import Diagnosis, Finding, Run, Scalar, Verdict
from regress.trend import ChangePoint, EnvironmentChange, RunFacts, Series, Trend
from regress.trend.fold import WORST_FIRST
from regress.units import Better, format_change, format_value

WINDOW = 20
"""How many earlier runs count as "since the baseline" for changes of the environment."""

RECENT = 40
"""How many runs a sparkline shows at most."""

SUBJECT_LENGTH = 72
"""What git advises for a subject; longer ones are cut."""

SEVERITIES = ("critical", "warning", "info")
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Row:
    """One series of the latest run's environment, as the table shows it.

    now: None where the latest run did not measure it. recent: medians for a sparkline, oldest first.
    since: the first run of the level that is judged, None where nothing changed or nobody knows.
    since_exactly: a change point says so, not merely the first red verdict.
    """

    series: Series
    verdict: Verdict | None
    now: float | None
    finding: Finding | None
    recent: tuple[float, ...] = ()
    since: int | None = None
    since_exactly: bool = False


def visible(text: object) -> str:
    """Foreign text on one line, with control and direction-changing characters shown as what they are."""
    return UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}" if match[0] not in "\n\t" else " ", str(text))


def rows(trend: Trend, change_points: Mapping[tuple[str, str], Sequence[ChangePoint]] | None = None) -> list[Row]:
    """Series of the latest environment, worst first: by verdict, then by the change that is certain, then by name."""
    if trend.latest is None or trend.latest_index is None:
        return []
    fingerprint = trend.latest.environment.fingerprint
    places = {facts.run_id: i for i, facts in enumerate(trend.runs)}
    on = trunk(trend)
    made = [_row(series, trend.latest_index, (change_points or {}).get(series.key, ()), places, on)
            for series in trend.series if series.fingerprint == fingerprint]
    return sorted(made, key=_badness)


def trunk(trend: Trend) -> frozenset[int]:
    """Runs that history consists of: those of the main branch and the latest; all where none says it is on main."""
    main = frozenset(i for i, facts in enumerate(trend.runs) if facts.commit.main)
    return main | {trend.latest_index} if main and trend.latest_index is not None else frozenset(range(len(trend.runs)))


def _badness(row: Row) -> tuple[int, float, str, str]:
    order = WORST_FIRST.index(row.verdict) if row.verdict else len(WORST_FIRST)
    return order, -certain_change(row.finding), row.series.case.id, row.series.metric


def certain_change(finding: Finding | None) -> float:
    """The smallest size of change its interval allows, 0 where that includes no change at all."""
    if finding is None:
        return 0.0
    if finding.interval is None:
        return abs(finding.change or 0.0)
    low, high = finding.interval
    return 0.0 if low <= 0 <= high else min(abs(low), abs(high))


def _row(series: Series, latest: int, steps: Sequence[ChangePoint], places: Mapping[str, int],
         on: frozenset[int]) -> Row:
    finding = series.latest
    now = next((p.value for p in reversed(series.points) if p.run == latest), None)
    if now is not None and finding is not None and finding.now is not None:
        # What was judged: after a suspicion the fresh launches alone, as the change beside it and the gate's JSON say.
        now = finding.now
    verdict = finding.verdict if finding else None
    if verdict not in (Verdict.REGRESSION, Verdict.IMPROVEMENT):
        return Row(series, verdict, now, finding, _recent(series, on))
    grew = (verdict is Verdict.REGRESSION) == (series.better is Better.LOWER)
    known = [places[step.run_id] for step in steps if (step.change > 0) == grew and step.run_id in places]
    since = max(known) if known else _streak(series, verdict, on)
    return Row(series, verdict, now, finding, _recent(series, on), since, bool(known))


def _recent(series: Series, on: frozenset[int]) -> tuple[float, ...]:
    """The last medians of the trunk, oldest first, runs without a trustworthy figure left out."""
    return tuple(p.value for p in series.points if p.run in on and p.verdict is not Verdict.INVALID)[-RECENT:]


def _streak(series: Series, verdict: Verdict, on: frozenset[int]) -> int | None:
    """The first run of the unbroken line of this verdict that ends the trunk; undecided runs do not break it."""
    first: int | None = None
    for point in reversed([point for point in series.points if point.run in on]):
        if point.verdict is verdict:
            first = point.run
        elif point.verdict not in (Verdict.INCONCLUSIVE, Verdict.INVALID, None):
            break
    return first


@dataclass(frozen=True, slots=True)
class Headline:
    """The latest run in words. sentence: the answer; detail: the worst series; since: which commit, empty if none."""

    verdict: Verdict
    sentence: str
    detail: str = ""
    since: str = ""


def headline(trend: Trend, ordered: Sequence[Row]) -> Headline | None:
    """The verdict of the latest run; None for an empty history."""
    run = trend.latest
    if run is None:
        return None
    of = {verdict: [row for row in ordered if row.verdict is verdict] for verdict in Verdict}
    judged = sum(len(group) for group in of.values())
    count = len(of[run.verdict])
    series = f"{count} of {judged} series" if count else "the run"
    sentence = {
        Verdict.REGRESSION: f"Slower: {series} regressed",
        Verdict.IMPROVEMENT: f"Faster: {series} improved, nothing regressed",
        Verdict.PASS: f"Nothing is slower: {judged} series judged",
        Verdict.INCONCLUSIVE: f"Undecided: {series} too noisy to judge, nothing proven slower",
        Verdict.NO_BASELINE: "First look: nothing to compare with yet in this environment",
        Verdict.INVALID: f"Not to be trusted: {series} could not be measured properly",
    }[run.verdict]
    worst = next((row for row in ordered if row.verdict is run.verdict), None)
    if worst is None:
        return Headline(run.verdict, sentence)
    return Headline(run.verdict, sentence, _worst_in_words(worst), since_in_words(trend, worst))


def _worst_in_words(row: Row) -> str:
    finding = row.finding
    if finding is None:
        return ""
    name = f"{row.series.case.id} {row.series.metric}"
    if row.verdict not in (Verdict.REGRESSION, Verdict.IMPROVEMENT):
        return f"{name}: {visible(finding.reason)}"
    figures = f"{format_value(finding.baseline, finding.unit)} → {format_value(finding.now, finding.unit)}"
    size = ", ".join(filter(None, (format_change(finding.change), format_interval(finding))))
    return f"{name}: {figures} ({size})" if finding.change is not None else f"{name}: {visible(finding.reason)}"


def format_interval(finding: Finding | None) -> str:
    """The interval of the change, "+18.0 to +22.1 %", empty where there is none."""
    if finding is None or finding.interval is None:
        return ""
    low, high = (100 * bound for bound in finding.interval)
    return f"{low:+.1f} to {high:+.1f} %"


def commit_name(facts: RunFacts) -> str:
    """A commit's short hash and subject; the run's id where git could not tell."""
    if facts.commit.sha is None:
        return facts.run_id
    dirty = "+" if facts.commit.dirty else ""
    subject = visible(facts.commit.subject or "")
    short = subject if len(subject) <= SUBJECT_LENGTH else f"{subject[:SUBJECT_LENGTH - 1]}…"
    return f"{facts.commit.sha[:9]}{dirty} {short}".strip()


def since_in_words(trend: Trend, row: Row) -> str:
    """Which commit brought it and what changed on the machine with it."""
    if row.since is None:
        return ""
    changed = changes_in_words(change for change in trend.changes if change.run == row.since)
    first = "Since" if row.since_exactly else "First seen at"
    return f"{first} {commit_name(trend.runs[row.since])}" + (f" (in the same run: {changed})" if changed else "")


def changes_in_words(changes: Iterable[EnvironmentChange]) -> str:
    """Facts with old and new value: "nccl 2.28.3 → 2.29.1, driver 570.1 → 575.2"."""
    return ", ".join(f"{fact_name(c.fact)} {shown(c.before)} → {shown(c.after)}" for c in changes)


def fact_name(fact: str) -> str:
    """A fact's name for people: "nccl" for nccl_version; environment variables keep theirs."""
    return visible(fact.removesuffix("_version").replace("_", " ") if fact.islower() else fact)


def shown(value: Scalar) -> str:
    """A fact's value for people."""
    return "not known" if value is None else "yes" if value is True else "no" if value is False else visible(value)


def recent_changes(trend: Trend) -> list[EnvironmentChange]:
    """What changed in the latest environment over the last WINDOW runs, newest first."""
    if trend.latest is None:
        return []
    fingerprint = trend.latest.environment.fingerprint
    same = [i for i, facts in enumerate(trend.runs) if trend.environments[facts.environment].fingerprint == fingerprint]
    recent = set(same[-WINDOW:])
    return [change for change in reversed(trend.changes) if change.run in recent]


def belief(run: Run) -> tuple[str, tuple[str, ...]]:
    """Whether the machine is to be believed, in one sentence, and the reasons."""
    invalid = [f"{finding.case} {finding.metric}: {finding.reason}" for finding in run.findings
               if finding.verdict is Verdict.INVALID]
    errors = [launch.error for launch in run.launches if launch.error]
    errors += [f"{outcome.case.id}: {outcome.error}" for launch in run.launches for outcome in launch.outcomes
               if outcome.error]
    noisy = sum(finding.verdict is Verdict.INCONCLUSIVE for finding in run.findings)
    warnings = tuple(run.warnings)
    if run.verdict is Verdict.INVALID or invalid or errors:
        return "No. Part of this run is invalid.", tuple(dict.fromkeys((*warnings, *errors, *invalid)))
    if run.partial:
        return "Only in part. The run was cut short.", warnings
    if noisy:
        return f"Only in part. {noisy} figures are too noisy to judge.", warnings
    if warnings:
        return "With care. The run carries warnings.", warnings
    return "Yes. Nothing on this run speaks against it.", ()


def explanations(run: Run) -> list[Diagnosis]:
    """Diagnoses of the run, worst first."""
    rank = {severity: i for i, severity in enumerate(SEVERITIES)}
    return sorted(run.diagnoses, key=lambda diagnosis: rank.get(diagnosis.severity, len(rank)))
