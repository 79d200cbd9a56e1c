"""The launches of a trial, round by round, and what they amount to.

A round launches the cases once as they are and once with each setting, in random order, so that what the machine does
in the meantime falls on all alike. After 5, 10, 15, 20 and 30 rounds the launches are judged as a confirmation of the
gate judges head against base, with Holm's correction over everything that was tried.
"""

from __future__ import annotations

import enum
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from regress.errors import MeasurementError
from regress.judge.decision import MISS, Decision, decide
from regress.judge.scale import Scale, default_effect, scale_of
from regress.judge.statistics import PAIRED_LOOKS, holm
from regress.measuring import Campaign, Task
from regress.options import Effect
from regress.record import Case, Launch
from regress.tuning.settings import Setting, refusal
from regress.units import Better, Unit

TRIAL_ALPHA = 0.05
"""How often some setting of a trial may be praised or blamed that changes nothing. More than the gate allows itself: it
costs somebody a try, not a build."""
GIVEN_UP = 2
"""Launches of a setting that may fail before it is no longer tried."""
INTERRUPTED = "interrupted"
QUIET = "p25"
"""The statistic of a launch that is judged: no worse than any other on every recorded machine (docs/quality.md)."""


class Effectiveness(enum.Enum):
    """What a setting does to a case."""

    HELPS = "helps"
    HURTS = "hurts"
    NOTHING = "no difference"
    UNDECIDED = "undecided"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Tried:
    """One setting on one case. change and interval: relative, negative where it became faster; rounds: launches of it.

    reason: why it was refused or failed, or how many rounds would decide.
    """

    setting: Setting
    case: Case
    outcome: Effectiveness
    seconds: float | None = None
    change: float | None = None
    interval: tuple[float, float] | None = None
    rounds: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """All of it. as_it_is: seconds of each case without a setting, the median of its launches, by case id.

    matters: the change that counts as one, by case id.
    """

    tried: tuple[Tried, ...]
    as_it_is: Mapping[str, float]
    rounds: int
    stopped: str
    matters: Mapping[str, Effect] = field(default_factory=dict)


@dataclass(slots=True)
class _Arm:
    """A setting with its launches so far; setting None: as it is."""

    setting: Setting | None
    cases: tuple[Case, ...]
    values: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)

    def open_cases(self, closed: set[tuple[str, str]]) -> tuple[Case, ...]:
        """Its cases that neither failed for good nor are decided."""
        name = "" if self.setting is None else self.setting.name
        return tuple(case for case in self.cases if len(self.failures.get(case.id, ())) < GIVEN_UP
                     and (name, case.id) not in closed)


@dataclass(slots=True)
class Trial:
    """A trial in the making.

    effect: the change that matters, by default what matters to the gate on that device. rounds, seconds: at most.
    """

    campaign: Campaign
    cases: Sequence[Case]
    settings: Sequence[Setting]
    rounds: int = 10
    seconds: float = 900.0
    seed: int = 0
    effect: Effect | None = None
    _decided: dict[tuple[str, str], Tried] = field(default_factory=dict)

    def run(self) -> TrialResult:
        """Launches and judges; what was measured until Ctrl-C is judged too, from the first whole round on.

        Raises MeasurementError where the cases fail as they are.
        """
        began, plain = time.monotonic(), dict(self.campaign.environment)
        base = _Arm(None, tuple(self.cases))
        arms = [_Arm(setting, tuple(case for case in self.cases if refusal(setting, case) is None))
                for setting in self.settings]
        done, stopped = 0, "all rounds were run"
        try:
            while done < self.rounds:
                if not any(arm.open_cases(set(self._decided)) for arm in arms):
                    stopped = "everything is decided"
                    break
                if done and (time.monotonic() - began) * (done + 1) / done > self.seconds:
                    stopped = "the time was up"
                    break
                self._round(done, base, arms, plain)
                done += 1
                self._say(done, time.monotonic() - began, arms)
                if done in PAIRED_LOOKS:
                    self._close(base, arms)
        except KeyboardInterrupt:
            if not done:
                raise
            stopped = INTERRUPTED
        finally:
            self.campaign.environment = plain
        tried = [one for arm in arms for one in self._outcomes(base, arm, arms)]
        medians = {case.id: sorted(values)[len(values) // 2] for case in self.cases
                   if (values := base.values.get(case.id))}
        return TrialResult(tuple(tried), medians, done, stopped, {case.id: self._effect(case) for case in self.cases})

    def _say(self, done: int, seconds: float, arms: Sequence[_Arm]) -> None:
        """How far it is: a round of many settings takes minutes."""
        still = sum(bool(arm.open_cases(set(self._decided))) for arm in arms)
        self.campaign.observer.message(f"round {done} of {self.rounds} done, {seconds / done:.0f} s each; "
                                       f"{still} of {len(arms)} settings still open")

    def _round(self, number: int, base: _Arm, arms: Sequence[_Arm], plain: Mapping[str, str | None]) -> None:
        order = [base, *(arm for arm in arms if arm.open_cases(set(self._decided)))]
        random.Random(self.seed + number).shuffle(order)  # noqa: S311 - an order, not a secret
        for arm in order:
            cases = arm.open_cases(set() if arm is base else set(self._decided))
            self.campaign.environment = {**plain, **(arm.setting.variables if arm.setting is not None else {})}
            for world_size in sorted({case.world_size for case in cases}):
                self._launch(arm, tuple(case for case in cases if case.world_size == world_size), number)
        failed = next((texts[-1] for texts in base.failures.values() if texts), None)
        if failed is not None:
            raise MeasurementError(f"the cases fail as they are: {failed}", where="trial",
                                   next_step="`regress run` shows what is wrong")

    def _launch(self, arm: _Arm, cases: tuple[Case, ...], number: int) -> None:
        run_as = {(case if arm.setting is None else arm.setting.applied(case)): case for case in cases}
        for launch in self.campaign.run([Task(tuple(run_as), "head", 0, self.seed + number)]):
            for changed, case in run_as.items():
                value, error = _value(launch, changed)
                if value is None:
                    arm.failures.setdefault(case.id, []).append(error)
                else:
                    arm.values.setdefault(case.id, []).append(value)

    def _close(self, base: _Arm, arms: Sequence[_Arm]) -> None:
        """Settles what these launches decide: its error is spent, so further launches do not reopen it."""
        for arm in arms:
            for one in self._outcomes(base, arm, arms):
                if one.outcome in (Effectiveness.HELPS, Effectiveness.HURTS, Effectiveness.NOTHING):
                    self._decided.setdefault((one.setting.name, one.case.id), one)

    def _outcomes(self, base: _Arm, arm: _Arm, arms: Sequence[_Arm]) -> list[Tried]:
        adjusted = self._adjusted(base, arms)
        found = []
        for case in self.cases:
            setting = arm.setting or Setting()
            key = (setting.name, case.id)
            if (reason := refusal(setting, case)) is not None:
                found.append(Tried(setting, case, Effectiveness.REFUSED, reason=reason))
            elif key in self._decided:
                found.append(self._decided[key])
            elif len(arm.failures.get(case.id, ())) >= GIVEN_UP:
                found.append(Tried(setting, case, Effectiveness.FAILED, reason=arm.failures[case.id][-1]))
            else:
                found.append(self._judged(setting, case, base, arm, adjusted.get(key, 1.0)))
        return found

    def _adjusted(self, base: _Arm, arms: Sequence[_Arm]) -> dict[tuple[str, str], float]:
        """p-values of everything tried, corrected for their number."""
        keys, values = [], []
        for arm in arms:
            for case in arm.cases:
                decision = self._decision(case, base, arm)
                if decision is not None and arm.setting is not None:
                    keys.append((arm.setting.name, case.id))
                    values.append(decision.p_value)
        return dict(zip(keys, holm(values), strict=True))

    def _decision(self, case: Case, base: _Arm, arm: _Arm) -> Decision | None:
        now, before = arm.values.get(case.id, []), base.values.get(case.id, [])
        if not now or not before:
            return None
        return decide(now, (), before, self._scale(now, before), self._effect(case), confirmed=True)

    def _judged(self, setting: Setting, case: Case, base: _Arm, arm: _Arm, p_value: float) -> Tried:
        now, before = arm.values.get(case.id, []), base.values.get(case.id, [])
        decision = self._decision(case, base, arm)
        if decision is None:
            return Tried(setting, case, Effectiveness.UNDECIDED, rounds=len(now), reason="fewer than three rounds")
        scale, effect = self._scale(now, before), self._effect(case)
        estimate, margin = decision.comparison.estimate, decision.comparison.margin(MISS)
        better, worse = (scale.bound(effect, decision.baseline, side) for side in (False, True))
        outcome = Effectiveness.UNDECIDED
        if p_value <= TRIAL_ALPHA and decision.relevant:
            outcome = Effectiveness.HELPS if estimate < 0 else Effectiveness.HURTS
        elif -estimate + margin <= better and estimate + margin <= worse:
            outcome = Effectiveness.NOTHING
        low, high = (scale.change(bound, decision.baseline) or 0.0 for bound in decision.comparison.interval())
        needed = decision.needed_launches
        reason = f"about {needed} rounds would decide" if outcome is Effectiveness.UNDECIDED and needed else ""
        return Tried(setting, case, outcome, decision.now, scale.change(estimate, decision.baseline), (low, high),
                     len(now), reason)

    def _effect(self, case: Case) -> Effect:
        return self.effect if self.effect is not None else default_effect(Unit.SECONDS, case.device)

    @staticmethod
    def _scale(now: Sequence[float], before: Sequence[float]) -> Scale:
        return scale_of(Unit.SECONDS, Better.LOWER, [*now, *before])


def _value(launch: Launch, case: Case) -> tuple[float | None, str]:
    """Seconds of the case in that launch, or why there are none."""
    outcome = next((one for one in launch.outcomes if one.case == case), None)
    name = "step_seconds" if case.message_size_bytes is None else f"{case.workload}_seconds"
    measured = outcome.get(name) if outcome is not None else None
    if outcome is None or outcome.error is not None or measured is None:
        error = (outcome.error if outcome is not None else None) or launch.error or f"no {name}"
        return None, error.splitlines()[0]
    return (measured.statistic(QUIET) if measured.statistics else None) or measured.value, ""
