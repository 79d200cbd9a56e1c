"""What a run amounts to: every detector's opinion of every series, corrected for their number, folded.

Pure: launches, baseline and policies in; findings, verdicts and exit status out. Called again after each
re-measurement with all launches so far, it gives the verdict as it then stands.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

import regress.judge.detectors as shelf
from regress.errors import EXIT_OK, EXIT_REGRESSION, EXIT_UNTRUSTED
from regress.judge.baseline import Baseline, as_window, launches_with, same_kind
from regress.judge.correction import corrected
from regress.judge.detectors import ALPHA, Detector, Series, SeriesOptions
from regress.record import SEVEREST_FIRST, Case, Finding, Launch, Run, Verdict
from regress.shelf import variants
from regress.units import Better, Unit, format_change, format_seconds

Policy = Mapping[str, object]
"""Options of one series by detector name. A detector that is not in it does not look at the series."""

Policies = Mapping[tuple[str, str], Policy]
"""Policy by (case id, metric): the series to judge. What is measured and not in here is recorded only."""


class Downgrade(enum.Enum):
    """What a fact about the machine's health does to a would-be regression."""

    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class HealthNote:
    """Evidence that the machine was not fit to be judged: throttled clocks, foreign processes, a degraded link.

    timeless: no duration means anything, so that nothing measured in time can pass either. Counts and sizes stand.
    """

    level: Downgrade
    text: str
    timeless: bool = False


@dataclass(frozen=True, slots=True)
class Suspect:
    """A case that must be re-measured before it may fail the build: its doubtful metrics, and launches wished for.

    traced: its doubtful metrics come from traced launches. worse: some metric looks worse by more than what matters,
    which is more than not being able to exclude it.
    """

    case: Case
    metrics: tuple[str, ...]
    needed_launches: int | None
    traced: bool = False
    worse: bool = True


@dataclass(frozen=True, slots=True)
class Judgement:
    """verdicts by case id; findings worst first; suspects: what a re-measurement could still decide."""

    verdict: Verdict
    exit_status: int
    verdicts: dict[str, Verdict]
    findings: tuple[Finding, ...]
    suspects: tuple[Suspect, ...] = ()
    warnings: tuple[str, ...] = ()


def judge(launches: Sequence[Launch], baseline: Baseline, policies: Policies, *, planned: Sequence[Case] = (),
          health: Sequence[HealthNote] = (), alpha: float = ALPHA, stored: bool = False) -> Judgement:
    """The judgement of a run's launches so far.

    planned: cases that every screening launch of their world size had to measure; where one is missing, it is invalid.
    health: turns would-be regressions into inconclusive or invalid, with the evidence.
    alpha: how often an unchanged build may be called changed.
    stored: the launches are all there will ever be, so a regression needs no re-measurement.
    """
    cases = {**baseline.cases(), **_measured_cases(launches), **{case.id: case for case in planned}}
    findings = _correctness(launches, planned)
    warnings: list[str] = []
    suspects: dict[str, Suspect] = {}
    judged: list[Finding] = []
    fresh_cases: set[str] = set()
    directions: dict[tuple[str, str], Better] = {}
    for (case_id, metric), policy in policies.items():
        if case_id not in cases:
            continue
        series, notes = series_of(launches, baseline, cases[case_id], metric)
        warnings += notes
        if series is None:
            warnings += _not_applicable(case_id, metric, policy)
            continue
        directions[case_id, metric] = series.better
        if series.confirmed and series.base:
            fresh_cases.add(case_id)
        judged += [_marked(f, series, policy) for f in _opinions(series, policy)]
    judged = corrected(judged, fresh_cases, alpha)
    seconds = _seconds_per_launch(launches)
    settled: list[Finding] = []
    for finding in judged:
        confirmed = stored or _is_confirmed(launches, finding)
        final = _health(finding, health)
        if _may_decide(final):
            _suspect(suspects, cases[finding.case], final, directions[finding.case, finding.metric], launches)
        settled.append(_worded(_unconfirmed(final, confirmed), seconds))
    # A case that has shown again, at a look that spends its share of the error, is decided: measuring on is waste.
    decided = {f.case for f in settled if f.gated and f.verdict is Verdict.REGRESSION}
    findings = sorted([*findings, *settled], key=lambda f: (SEVEREST_FIRST.index(f.verdict), not f.gated))
    return _folded(findings, policies, baseline, planned,
                   suspects=tuple(s for name, s in suspects.items() if name not in decided), warnings=warnings)


def compare(now: Run, before: Run, policies: Policies, *, alpha: float = ALPHA) -> Judgement:
    """Judges one stored run against another, as they are: nothing can be re-measured, so nothing has to be."""
    launches = tuple(replace(launch, session=0) for launch in now.launches if launch.role in ("head", "traced"))
    return judge(launches, as_window(before), policies, alpha=alpha, stored=True)


def series_of(launches: Sequence[Launch], baseline: Baseline, case: Case, metric: str
              ) -> tuple[Series | None, list[str]]:
    """The series of one metric, with notes on what could not be used; None where it was never measured."""
    found = launches_with(launches, case.id, metric, ("head",)) or launches_with(launches, case.id, metric,
                                                                                ("traced",))
    fresh = [(launch, m) for launch, m in found if launch.session > 0]
    now = tuple(m for _, m in fresh or found)
    base = tuple(m for _, m in launches_with(launches, case.id, metric, ("base",))) if fresh else ()
    window, anchor = baseline.window(case.id, metric), baseline.anchor(case.id, metric)
    if not now and not window:
        return None, []
    kind = now[0] if now else window[-1].launches[0]
    usable = same_kind(window, kind)
    how = f"{kind.unit.value}, {kind.better.value} is better" + (f", read by {kind.source}" if kind.source else "")
    notes = [] if len(usable) == len(window) else [
        f"{metric} of {case.id} is now in {how}: {len(window) - len(usable)} earlier runs that measured it otherwise "
        "are not compared"]
    if anchor is not None and not same_kind((anchor,), kind):
        anchor = usable[0] if usable else None
    return Series(case, metric, kind.unit, kind.better, now, usable, base, anchor, bool(fresh)), notes


@cache
def detectors() -> dict[str, Detector]:
    """The shelf's detectors by name."""
    return variants(shelf, Detector)


def exit_status(verdict: Verdict, regressed: bool, beyond_policy: bool) -> int:
    """1 when something regressed; else 10 when something cannot be trusted; else 0."""
    if regressed:
        return EXIT_REGRESSION
    return EXIT_UNTRUSTED if verdict is Verdict.INVALID or beyond_policy else EXIT_OK


def _opinions(series: Series, policy: Policy) -> list[Finding]:
    opinions = [detectors()[name].judge(series, options) for name, options in policy.items()]
    return [finding for finding in opinions if finding is not None]


def _marked(finding: Finding, series: Series, policy: Policy) -> Finding:
    """The finding with the severity of its policy and the warnings of the measurements it rests on."""
    severity = _standing(policy).severity
    return replace(finding, severity=severity, gated=severity == "fail",
                   warnings=tuple(dict.fromkeys([*finding.warnings, *(w for m in series.now for w in m.warnings)])))


def _standing(policy: Policy) -> SeriesOptions:
    return next((options for options in policy.values() if isinstance(options, SeriesOptions)), SeriesOptions())


def _health(finding: Finding, health: Sequence[HealthNote]) -> Finding:
    timeless = [note.text for note in health if note.timeless]
    timed = finding.unit not in (Unit.COUNT, Unit.BYTES)
    if timeless and timed and finding.verdict in (Verdict.PASS, Verdict.IMPROVEMENT, Verdict.INCONCLUSIVE):
        return replace(finding, verdict=Verdict.INCONCLUSIVE, relevant=False, needed_launches=None,
                       reason=f"not judged: {'; '.join(timeless)}")
    if finding.verdict is not Verdict.REGRESSION or not health:
        return finding
    invalid = any(note.level is Downgrade.INVALID for note in health)
    evidence = "; ".join(note.text for note in health)
    return replace(finding, verdict=Verdict.INVALID if invalid else Verdict.INCONCLUSIVE,
                   reason=f"{finding.reason}; not held against the code, because of the machine: {evidence}",
                   needed_launches=None)


def _unconfirmed(finding: Finding, confirmed: bool) -> Finding:
    """A suspicion is not yet a regression: it must show again in launches made after it arose."""
    if finding.verdict is not Verdict.REGRESSION or confirmed or not finding.gated:
        return finding
    return replace(finding, verdict=Verdict.INCONCLUSIVE,
                   reason=f"{finding.reason}; suspected, and not yet seen in fresh launches")


def _worded(finding: Finding, seconds: float | None) -> Finding:
    if finding.verdict is not Verdict.INCONCLUSIVE or finding.needed_launches is None or seconds is None:
        return finding
    cost = format_seconds(2 * finding.needed_launches * seconds)
    return replace(finding, reason=f"{finding.reason} (at most {cost} of measuring)")


def _may_decide(finding: Finding) -> bool:
    """Whether re-measuring could change what the finding does to the build."""
    undecided = finding.verdict is Verdict.INCONCLUSIVE and finding.needed_launches is not None
    demoted = finding.verdict is Verdict.INCONCLUSIVE and finding.relevant
    return finding.gated and (finding.verdict is Verdict.REGRESSION or undecided or demoted)


def _is_confirmed(launches: Sequence[Launch], finding: Finding) -> bool:
    found = launches_with(launches, finding.case, finding.metric, ("head", "traced"))
    return any(launch.session > 0 for launch, _ in found)


def _suspect(suspects: dict[str, Suspect], case: Case, finding: Finding, better: Better,
             launches: Sequence[Launch]) -> None:
    earlier = suspects.get(case.id)
    metrics = (*(earlier.metrics if earlier else ()), finding.metric)
    wishes = [n for n in (earlier.needed_launches if earlier else None, finding.needed_launches) if n is not None]
    traced = not launches_with(launches, case.id, finding.metric, ("head",))
    grew = (finding.change or 0.0) > 0
    worse = finding.verdict is Verdict.REGRESSION or (finding.relevant and grew is (better is Better.LOWER))
    suspects[case.id] = Suspect(case, tuple(dict.fromkeys(metrics)), max(wishes, default=None),
                                traced or (earlier.traced if earlier else False),
                                worse or (earlier.worse if earlier else False))


def _measured_cases(launches: Sequence[Launch]) -> dict[str, Case]:
    return {outcome.case.id: outcome.case for launch in launches for outcome in launch.outcomes}


def _correctness(launches: Sequence[Launch], planned: Sequence[Case]) -> list[Finding]:
    """Invalid for each case that failed, or is missing, in a screening launch or a fresh one of head."""
    errors: dict[str, str] = {}
    heads = [launch for launch in launches if launch.role == "head"]
    missing = {case.id for case in planned}
    for launch, expected in zip(heads, _expected(heads, planned), strict=True):
        present = {outcome.case.id: outcome.error for outcome in launch.outcomes}
        lost = dict.fromkeys(sorted(expected - set(present)), launch.error or "the case is missing from it")
        missing -= {*present, *lost}
        for case_id, error in {**present, **lost}.items():
            if error is not None:
                errors.setdefault(case_id, f"launch {launch.index}: {error}")
    errors.update(dict.fromkeys(sorted(missing), "it was planned, and no launch measured it"))
    return [Finding(case=case_id, metric="correctness", unit=Unit.COUNT, detector="correctness",
                    verdict=Verdict.INVALID, statistic="value", reason=error) for case_id, error in errors.items()]


def _expected(heads: Sequence[Launch], planned: Sequence[Case]) -> list[set[str]]:
    """What each launch had to hold: in screening the planned cases of its own world size, later nothing in particular.

    A launch that left nothing does not show its world size. In screening all world sizes take turns, so it was of one
    that has fewer launches than another; where all have the same number, it may have been of any.
    """
    sizes = [{outcome.case.world_size for outcome in launch.outcomes} for launch in heads]
    counts = Counter({case.world_size: 0 for case in planned})
    counts.update(size for launch, group in zip(heads, sizes, strict=True) if launch.session == 0 for size in group)
    short = {size for size, count in counts.items() if count < max(counts.values())} or set(counts)
    return [{case.id for case in planned if case.world_size in (group or short)} if launch.session == 0 else set()
            for launch, group in zip(heads, sizes, strict=True)]


def _not_applicable(case_id: str, metric: str, policy: Policy) -> list[str]:
    asked = [f.name for options in policy.values() if not isinstance(options, (SeriesOptions, type))
             and hasattr(options, "__dataclass_fields__") for f in fields(options)  # type: ignore[arg-type]
             if getattr(options, f.name) != f.default]
    return [f"{metric} of {case_id} is not measured here, so {', '.join(asked)} does not apply"] if asked else []


def _seconds_per_launch(launches: Sequence[Launch]) -> float | None:
    walls = sorted(launch.wall_seconds for launch in launches)
    return walls[len(walls) // 2] if walls else None


def _folded(findings: Sequence[Finding], policies: Policies, baseline: Baseline, planned: Sequence[Case],
            *, suspects: tuple[Suspect, ...], warnings: list[str]) -> Judgement:
    gating = [f for f in findings if f.gated]
    names = dict.fromkeys([*(case.id for case in planned), *(f.case for f in findings)])
    verdicts = {name: _worst([f.verdict for f in gating if f.case == name]) for name in names}
    verdict = _worst(list(verdicts.values()))
    regressed = any(f.verdict is Verdict.REGRESSION for f in gating)
    beyond = _beyond_policy(gating, policies, baseline)
    warnings += [f"{f.metric} of {f.case} regressed, which only warns here: {f.reason}" for f in findings
                 if f.severity == "warn" and f.verdict is Verdict.REGRESSION]
    warnings += [f"{f.metric} of {f.case} improved by {format_change(f.change)}; accept the run to hold later runs "
                 "to it" for f in gating if f.verdict is Verdict.IMPROVEMENT]
    return Judgement(verdict, exit_status(verdict, regressed, bool(beyond)), verdicts, tuple(findings), suspects,
                     tuple(dict.fromkeys([*baseline.notes, *baseline.renamed(planned), *warnings, *beyond])))


def _beyond_policy(gating: Sequence[Finding], policies: Policies, baseline: Baseline) -> list[str]:
    """What the policies do not let pass, though nothing regressed, one sentence each."""
    beyond = []
    for finding in gating:
        standing = _standing(policies.get((finding.case, finding.metric), {}))
        row = baseline.inconclusive_in_a_row(finding.case) + 1
        if finding.verdict is Verdict.INCONCLUSIVE and (
                standing.inconclusive == "fail" or 0 < standing.inconclusive_limit <= row):
            lasting = f"{row} runs in a row" if row > 1 else "and its policy does not let that pass"
            beyond.append(f"{finding.metric} of {finding.case} is inconclusive, {lasting}; measure more "
                          "launches, give a base to compare with, or choose a larger effect")
        if finding.verdict is Verdict.NO_BASELINE and standing.no_baseline == "fail":
            beyond.append(f"{finding.metric} of {finding.case} has no baseline, and `no_baseline: fail` asks for one")
    return beyond


def _worst(found: Sequence[Verdict]) -> Verdict:
    return min(found, key=SEVEREST_FIRST.index, default=Verdict.PASS)
