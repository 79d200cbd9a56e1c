"""Which earlier runs this one is compared with, and why not the others.

The window holds one run for each of the latest commits of the main branch in a matching environment. A run that is
partial, invalid, of another branch, of a tree with uncommitted changes or of this commit is not in it; neither is a
case that regressed in a run, or that was left undecided in a run where others regressed.
Nothing moves a baseline but time and an acceptance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from regress.judge.detectors import RunValues
from regress.record import Case, Commit, Environment, Launch, Measurement, Run, Scalar, Verdict

WINDOW_RUNS = 20
"""Runs in the window: enough for the spread between runs, few enough to follow the machine."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The runs that may be compared with, oldest first.

    runs: eligible ones, one a commit, before any acceptance is taken into account. limit: how many of them a case's
    window holds at most. recent: the newest earlier runs in this environment, of any branch and verdict, oldest first.
    notes: what a reader must know about the choice, one sentence each. differs: where no environment matches, the
    facts in which the closest one differs, as (fact, there, here). chosen: somebody named these runs, so that every
    case in them counts, whatever became of it. reruns: all runs of a commit count, and not one of them.
    """

    runs: tuple[Run, ...] = ()
    recent: tuple[Run, ...] = ()
    limit: int = WINDOW_RUNS
    notes: tuple[str, ...] = ()
    differs: tuple[tuple[str, Scalar, Scalar], ...] = ()
    chosen: bool = False
    reruns: bool = False

    def window(self, case_id: str, metric: str) -> tuple[RunValues, ...]:
        """The case's runs since its last acceptance that measured the metric and did not regress in this case."""
        return self._comparable(case_id, metric)[-self.limit:]

    def anchor(self, case_id: str, metric: str) -> RunValues | None:
        """The last accepted run of this case, or the first run where none was ever accepted.

        Neither wears out: the first run of an environment stays the anchor however many follow, as only an acceptance
        moves one. A case that was added later has as its first run the oldest that the history still hands out
        (`History.candidates`): accept a run to hold it for good.
        """
        return next(iter(self._comparable(case_id, metric)), None)

    def measured(self, run: Run, case_id: str, metric: str) -> tuple[float, ...]:
        """The metric's own value in each launch of a run, whatever its verdict."""
        return tuple(m.value for m in _values(run, case_id, metric).launches)

    def cases(self) -> dict[str, Case]:
        """Every case that an eligible run holds, by id."""
        return {outcome.case.id: outcome.case for run in self.runs for launch in run.launches
                for outcome in launch.outcomes}

    def renamed(self, planned: Sequence[Case]) -> tuple[str, ...]:
        """One sentence where planned cases have no history while others of the newest run are planned no more.

        A case renamed or re-parametrised is another case; a mere selection of cases is not mentioned.
        """
        known = self.cases()
        new = [case.id for case in planned if case.id not in known]
        last = {o.case.id for launch in self.runs[-1].launches for o in launch.outcomes} if self.runs else set()
        gone = sorted(last - {case.id for case in planned})
        if not new or not gone:
            return ()
        return (f"no history: {', '.join(new)}; measured in the newest baseline run and not planned now: "
                f"{', '.join(gone)}. If a case was renamed, its history does not follow",)

    def inconclusive_in_a_row(self, case_id: str) -> int:
        """How many of the latest runs here, in a row, left this case inconclusive."""
        count = 0
        for run in reversed(self.recent):
            if run.verdicts.get(case_id) is not Verdict.INCONCLUSIVE:
                break
            count += 1
        return count

    def _comparable(self, case_id: str, metric: str) -> tuple[RunValues, ...]:
        """The metric in the runs since the case's last acceptance that have it and are sound, oldest first.

        Of each commit the latest such run (one accepted for this case before any other): a commit's other cases may
        have been measured in other runs. Runs without a commit and of trees with uncommitted changes all stay: no two
        are known to be of the same code.
        """
        found: dict[str, tuple[bool, RunValues]] = {}
        for run in self.runs[self._restart(case_id):]:
            if not (self.chosen or _sound(run, case_id)):
                continue
            values = _values(run, case_id, metric)
            if not values.launches:
                continue
            alone = self.reruns or run.commit.sha is None or run.commit.dirty
            key, accepted = run.run_id if alone else run.commit.sha or "", _accepts(run, case_id)
            if accepted or not found.get(key, (False, values))[0]:
                found.pop(key, None)
                found[key] = accepted, values
        return tuple(values for _, values in found.values())

    def _restart(self, case_id: str) -> int:
        accepted = [i for i, run in enumerate(self.runs) if _accepts(run, case_id)]
        return accepted[-1] if accepted else 0


def select(commit: Commit, environment: Environment, started_at: str, earlier: Sequence[Run], *,
           limit: int = WINDOW_RUNS, stale_days: float = 30.0) -> Baseline:
    """The baseline for a run of `commit` in `environment`; `earlier` (`History.candidates`) in the history's order.

    That is the order of commits, so that a clock that was wrong moves no run; only what git cannot tell goes by the
    clock. Outside a repository every run counts as main.
    """
    here = [run for run in earlier if run.environment.fingerprint == environment.fingerprint]
    if not here:
        return _nothing_matches(environment, earlier)
    notes = _clock_notes(here)
    uncommitted = _only_uncommitted(commit, here)
    reasons = [_unfit(run, uncommitted=uncommitted) for run in here]
    fit = [run for run, reason in zip(here, reasons, strict=True) if not reason]
    left_out = Counter(reason for reason in reasons if reason)
    if uncommitted:
        notes.append("no run of a tree without uncommitted changes is fit to be compared with: compared with "
                     f"{_counted(fit)} of trees with such changes")
    reruns = all(_same_code(run.commit, commit) for run in fit)
    runs = fit
    if reruns:
        if fit:
            notes.append(f"no other commit has been measured here: compared with {_counted(fit)} of this same commit")
    else:
        # An acceptance holds for the very commit too: who accepts a run and repeats the job means it.
        others = [run for run in fit if run.accepted is not None or not _same_code(run.commit, commit)]
        if len(fit) > len(others):
            left_out["of this same commit"] = len(fit) - len(others)
        runs = others
    if left_out:
        listed = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
        notes.append(f"earlier runs left out of the baseline: {listed}")
    notes += _age_notes(runs, started_at, stale_days)
    return Baseline(tuple(runs), tuple(here), limit, tuple(notes), reruns=reruns)


def environment_changes(now: Environment, before: Environment) -> tuple[str, ...]:
    """Reported facts that differ, as "nccl 2.28.9 → 2.29.2": said beside the verdict, never in its way."""
    names = sorted({*now.reported, *before.reported})
    return tuple(f"{name} {_worded(name, before)} → {_worded(name, now)}" for name in names
                 if before.reported.get(name) != now.reported.get(name))


def _worded(name: str, environment: Environment) -> str:
    value = environment.reported.get(name)
    return "unset" if value is None and name.startswith("variable.") else _shown(value)


def as_window(run: Run, limit: int = WINDOW_RUNS) -> Baseline:
    """A baseline of exactly one stored run, whatever its branch and verdict."""
    return Baseline((run,), (run,), limit, chosen=True)


def launches_with(launches: Sequence[Launch], case_id: str, metric: str, roles: tuple[str, ...]
                  ) -> tuple[tuple[Launch, Measurement], ...]:
    """Each launch of these roles that measured the metric of the case, with its measurement, in order."""
    found = ((launch, outcome.get(metric)) for launch in launches if launch.role in roles
             for outcome in launch.outcomes if outcome.case.id == case_id)
    return tuple((launch, measurement) for launch, measurement in found if measurement is not None)


def same_kind(window: Sequence[RunValues], like: Measurement) -> tuple[RunValues, ...]:
    """The runs that measured in the same unit and direction and from the same tracer; others measured another thing."""
    return tuple(run for run in window if all(
        m.unit is like.unit and m.better is like.better and m.source == like.source for m in run.launches))


def _values(run: Run, case_id: str, metric: str) -> RunValues:
    found = launches_with(run.launches, case_id, metric, ("head",)) \
        or launches_with(run.launches, case_id, metric, ("traced",))
    statistic = next((f.statistic for f in run.findings if f.case == case_id and f.metric == metric
                      and f.detector == "shift"), None)
    return RunValues(run.run_id, run.commit.sha, run.started_at, tuple(m for _, m in found), statistic)


def _accepts(run: Run, case_id: str) -> bool:
    return run.accepted is not None and (run.accepted.cases is None or case_id in run.accepted.cases)


def _sound(run: Run, case_id: str) -> bool:
    if _accepts(run, case_id):
        return True
    if run.accepted is not None and _unfit_itself(run, uncommitted=False):
        return False  # accepted for other cases: what it measured of this one is as unfit as it was
    verdict = run.verdicts.get(case_id, run.verdict)
    # In a build that failed, a case left undecided is likely to have changed with the others.
    return verdict is not Verdict.REGRESSION and (run.verdict, verdict) != (Verdict.REGRESSION, Verdict.INCONCLUSIVE)


def _unfit(run: Run, *, uncommitted: bool) -> str:
    """Why a run cannot be part of any baseline; empty when it can. uncommitted: a tree with uncommitted changes can."""
    return "" if run.accepted is not None else _unfit_itself(run, uncommitted=uncommitted)


def _unfit_itself(run: Run, *, uncommitted: bool) -> str:
    """The same before any acceptance."""
    if run.partial:
        return "partial"
    if run.verdict is Verdict.INVALID:
        return "invalid"
    if run.commit.sha is not None and not run.commit.main:
        return "of other branches"
    if run.commit.dirty and not uncommitted:
        return "of a tree with uncommitted changes"
    return ""


def _only_uncommitted(commit: Commit, here: Sequence[Run]) -> bool:
    """Whether this tree has uncommitted changes, and so had that of every run it could be compared with.

    What such a run measured is in no commit, so a clean one is always preferred; but who works in such a tree, or whose
    CI patches tracked files, is better compared with those than with nothing.
    """
    dirty = {run.commit.dirty for run in here if not _unfit(run, uncommitted=True)}
    return commit.dirty and dirty == {True}


def _same_code(one: Commit, other: Commit) -> bool:
    """Whether both measured the same code. What uncommitted changes were is not known: they are always different."""
    return one.sha is not None and one.sha == other.sha and not one.dirty and not other.dirty


def _counted(runs: Sequence[Run]) -> str:
    return f"{len(runs)} earlier run{'s' if len(runs) != 1 else ''}"


def _nothing_matches(environment: Environment, earlier: Sequence[Run]) -> Baseline:
    """Says which facts keep the closest earlier environment from being comparable."""
    if not earlier:
        return Baseline(notes=("no earlier run is stored: this one is the first",))
    closest = min(reversed(earlier), key=lambda run: len(_differences(environment, run.environment)))
    differs = _differences(environment, closest.environment)
    listed = "; ".join(f"{fact} is {_shown(here)}, there {_shown(there)}" for fact, there, here in differs)
    return Baseline(notes=(f"none of {len(earlier)} earlier runs was measured in this environment; the closest "
                           f"(run {closest.run_id}) differs: {listed}",), differs=differs)


def _differences(here: Environment, there: Environment) -> tuple[tuple[str, Scalar, Scalar], ...]:
    facts = sorted({*here.must_match, *there.must_match})
    return tuple((fact, there.must_match.get(fact), here.must_match.get(fact)) for fact in facts
                 if here.must_match.get(fact) != there.must_match.get(fact))


def _shown(value: Scalar) -> str:
    return "unknown" if value is None else str(value)


def _clock_notes(runs: Sequence[Run]) -> list[str]:
    times = [(run.run_id, _time(run.started_at)) for run in runs]
    skewed = [later for (_, before), (later, after) in pairwise(times)
              if before is not None and after is not None and after < before]
    return [f"the clock of run {skewed[0]} is behind that of the run before it; the order of commits is used"] \
        if skewed else []


def _age_notes(runs: Sequence[Run], started_at: str, stale_days: float) -> list[str]:
    now, last = _time(started_at), _time(runs[-1].started_at) if runs else None
    if now is None or last is None:
        return []
    days = (now - last).total_seconds() / 86400
    if days < -1 / 24:
        return [f"the newest baseline run says it started {-days:.1f} days in the future: a clock is wrong"]
    if days > stale_days:
        return [f"the newest baseline run is {days:.0f} days old (more than {stale_days:.0f}): "
                "measure the main branch again"]
    return []


def _time(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
