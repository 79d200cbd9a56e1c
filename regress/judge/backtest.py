"""Would the gate have cried wolf? A history replayed as if it had run on every commit.

A gate re-measures a suspicion on the spot. A history cannot, so a commit with one figure is confirmed by the commits
after it: an alarm stands at the first suspicious commit, once the next ones agree. An alarm (and a confirmed
improvement) is taken to have been accepted: the baseline restarts there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regress.judge.baseline import WINDOW_RUNS
from regress.judge.decision import decide
from regress.judge.detectors import ALPHA
from regress.judge.history_csv import CommitValues, History, Row, histories
from regress.judge.scale import Scale
from regress.judge.statistics import compare_levels
from regress.options import Effect
from regress.record import Verdict
from regress.units import Better

SUSPICION = 0.05
"""Two-sided level from which a relevant change is followed up; following up costs nothing here."""

FOLLOWED = {3: 0.4, 4: 0.3, 5: 0.3}
"""Commits of a suspected new level after which it is tested, and the share of the error each test may spend."""

EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.10, 0.15, 0.20, 0.30, 0.50, 0.75, 1.0)
"""Effects tried for a suggestion."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A confirmed change for the worse (or better, in `improvements`) that began at `commit`.

    change: new level over old minus 1. confirmed_by: the commit whose figures made it certain.
    """

    commit: str
    metric: str
    change: float
    before: float
    after: float
    p_value: float
    confirmed_by: str


@dataclass(frozen=True, slots=True)
class Backtest:
    """What a replay found.

    runs: commits that were judged (the first few have no baseline). false_alarm_rate: share of them with an alarm; it
    deserves its name where nothing in the history is known to have changed. suspected: (commit, metric) at the end of
    the history that too few commits follow. suggested: per metric the smallest effect with at most the wished rate of
    alarms, None where none of those tried does.
    """

    runs: int
    alarms: tuple[Alarm, ...]
    improvements: tuple[Alarm, ...]
    suspected: tuple[tuple[str, str], ...]
    false_alarm_rate: float
    suggested: dict[str, float | None]
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The documented JSON form."""
        def plain(alarm: Alarm) -> dict[str, Any]:
            return {"commit": alarm.commit, "metric": alarm.metric, "change": alarm.change, "before": alarm.before,
                    "after": alarm.after, "p_value": alarm.p_value, "confirmed_by": alarm.confirmed_by}

        return {"runs": self.runs, "alarms": [plain(a) for a in self.alarms],
                "false_alarm_rate": self.false_alarm_rate, "improvements": [plain(a) for a in self.improvements],
                "suspected": [{"commit": commit, "metric": metric} for commit, metric in self.suspected],
                "suggested_effects": self.suggested, "warnings": list(self.warnings)}


def backtest(rows: Sequence[Row], min_effect: Effect | None = None, *, wished_rate: float = 0.01,
             suggest: bool = True) -> Backtest:
    """Replays every metric of a history with one effect (5 % where none is given)."""
    effect = min_effect or Effect(relative=0.05)
    series, warnings = histories(rows)
    replays = [_Replay(history, effect, ALPHA / len(series)) for history in series]
    for replay in replays:
        replay.run()
    judged = {commit for replay in replays for commit in replay.judged}
    alarms = tuple(alarm for replay in replays for alarm in replay.alarms)
    short = [f"{r.history.metric} has {len(r.history.commits)} commits, too few for a baseline" for r in replays
             if not r.judged]
    rate = len({alarm.commit for alarm in alarms}) / len(judged) if judged else 0.0
    return Backtest(len(judged), alarms, tuple(a for r in replays for a in r.improvements),
                    tuple((r.pending[0].commit, r.history.metric) for r in replays if r.pending), rate,
                    {h.metric: suggest_effect(h, wished_rate) for h in series} if suggest else {},
                    (*warnings, *short))


def suggest_effect(history: History, wished_rate: float) -> float | None:
    """The smallest effect tried that would have kept this history's alarms at the wished share of its commits."""
    for size in EFFECTS:
        replay = _Replay(history, Effect(relative=size), ALPHA)
        replay.run()
        if len(replay.alarms) <= wished_rate * len(replay.judged):
            return size
    return None


class _Replay:
    """One metric, commit by commit. window: commits of the present level; pending: a suspected new level."""

    def __init__(self, history: History, effect: Effect, alpha: float) -> None:
        self.history, self.effect, self.alpha = history, effect, alpha
        positive = min(value for commit in history.commits for value in commit.values) > 0
        self.scale = Scale(positive, 1 if history.better is Better.LOWER else -1)
        self.window: list[CommitValues] = []
        self.pending: list[CommitValues] = []
        self.judged: list[str] = []
        self.alarms: list[Alarm] = []
        self.improvements: list[Alarm] = []

    def run(self) -> None:
        for commit in self.history.commits:
            if len(self.window) >= 2:
                self.judged.append(commit.commit)
            if self.pending:
                self._follow(commit)
            elif not self._suspicious(commit):
                self.window.append(commit)

    def _suspicious(self, commit: CommitValues) -> bool:
        """Screens a commit; with several launches and all certain, the alarm is given at once."""
        if len(self.window) < 2:
            return False
        recent = [self._placed(c) for c in self.window[-WINDOW_RUNS:]]
        found = decide(commit.values, [c.values for c in self.window[-WINDOW_RUNS:]], [], self.scale, self.effect)
        if found is None:
            nearest = min((abs(self._placed(commit) - value) for value in recent), default=0.0)
            if nearest <= self._bound(self._placed(commit) - recent[-1]):
                return False
        elif not (found.relevant and found.p_value <= SUSPICION):
            return False
        self.pending = [commit]
        certain = found is not None and found.p_value <= self.alpha and len(commit.values) > 1 and \
            found.verdict in (Verdict.REGRESSION, Verdict.IMPROVEMENT)
        if certain and found is not None:
            self._announce(found.comparison.estimate, found.p_value, commit)
        return True

    def _follow(self, commit: CommitValues) -> None:
        self.pending.append(commit)
        share = FOLLOWED.get(len(self.pending))
        if share is None:
            return
        now = [self._placed(c) for c in self.pending]
        recent = [self._placed(c) for c in self.window[-WINDOW_RUNS:]]
        found = compare_levels(now, recent, self.scale.least_spread(self._level(self.window[-WINDOW_RUNS:])))
        relevant = found is not None and abs(found.estimate) > self._bound(found.estimate)
        if found is not None and relevant and found.p_value <= self.alpha * share:
            self._announce(found.estimate, found.p_value / share, commit)
        elif not relevant or len(self.pending) == max(FOLLOWED):
            self.window += self.pending
            self.pending = []

    def _announce(self, shift: float, p_value: float, commit: CommitValues) -> None:
        before = self._level(self.window[-WINDOW_RUNS:])
        change = self.scale.change(shift, before)
        alarm = Alarm(self.pending[0].commit, self.history.metric, math.inf if change is None else change, before,
                      self._level(self.pending), p_value, commit.commit)
        (self.alarms if shift * self.scale.worse > 0 else self.improvements).append(alarm)
        self.window, self.pending = self.pending, []

    def _bound(self, shift: float) -> float:
        return self.scale.bound(self.effect, self._level(self.window[-WINDOW_RUNS:]), shift * self.scale.worse > 0)

    def _placed(self, commit: CommitValues) -> float:
        return self.scale.of([float(np.median(commit.values))])[0]

    def _level(self, commits: Sequence[CommitValues]) -> float:
        return float(np.median([np.median(commit.values) for commit in commits]))
