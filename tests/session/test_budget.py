"""The time budget bounds the whole gate: screening, the traced launch, the base's pairs.

Launches are recorded ones, and a clock of the test's own goes on by what each is said to take.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import regress.gate_work
from regress.gate_work import GateWork
from regress.history.store import open_history
from regress.measure.launch import Launcher, LaunchResult
from regress.measure.replay import ReplayLauncher
from regress.record import Environment, LaunchSpec, Run, Verdict
from regress.session import GateRequest, open_gate
from regress.tracing import Tracer
from tests.acceptance import recordings, stage
from tests.session.profiles import write_profiles
from tests.session.test_base import commit, git

START, CASE = 4.0, 1.0
"""Seconds that a launch takes, and that each of its cases adds: 7 s for all three."""


class Silent:
    def message(self, text: str) -> None: ...
    def case_started(self, text: str) -> None: ...
    def progress(self, text: str) -> None: ...


@dataclass(slots=True)
class Stand:
    """A repository with a commit, three recorded cases, and a clock. made: role and world size of every launch."""

    folder: Path
    now: float = 1000.0
    made: list[tuple[str, int]] = field(default_factory=list)
    slower: float = 1.0

    def launch(self, player: Launcher, spec: LaunchSpec, role: str, **settings: Any) -> LaunchResult:
        took = (START + CASE * len(spec.cases)) * self.slower
        self.now += took
        self.made.append((role, spec.cases[0].world_size))
        if role == "traced":
            write_profiles(spec)
        return replace(player.launch(spec, role=role, **settings), wall_seconds=took)

    def gate(self, budget: float | None, *, launches: int = 3, base: bool = False, trace: str = "none",
             thresholds: str = recordings.THRESHOLDS) -> Run:
        """One gate with that budget; `made` is what it launched."""
        self.made.clear()
        (self.folder / "thresholds.yaml").write_text(thresholds)
        gate = open_gate(GateRequest(self.folder, self.folder / "thresholds.yaml", str(self.folder / "history"),
                                     device="cpu", launches=launches, budget=budget, base="HEAD" if base else None))
        player = ReplayLauncher(recordings.launches(1))
        gate.factory, gate.devices, gate.tracer = (lambda _: Timed(self, player)), None, Tracer(trace)
        gate._environment = Environment({"device": "cpu"})
        with open_history(gate.request.history) as history, ExitStack() as stack:
            work = GateWork(gate, history, Silent(), tuple(planned.case for planned in gate.plan),
                            git(self.folder, "rev-parse", "HEAD") if base else None, clock=lambda: self.now)
            return work.run(stack).run


@dataclass(slots=True)
class Timed:
    stand: Stand
    player: Launcher

    def launch(self, spec: LaunchSpec, *, role: str, **settings: Any) -> LaunchResult:
        return self.stand.launch(self.player, spec, role, **settings)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    monkeypatch.setattr("regress.session.plan_ranks", stage.two_ranks)
    monkeypatch.setattr(regress.gate_work, "assess", lambda _facts: [])
    monkeypatch.delenv("CI", raising=False)
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-qb", "main")
    commit(folder, "one")
    return Stand(folder)


def said(run: Run, *parts: str) -> list[str]:
    return [text for text in run.warnings if all(part in text for part in parts)]


def test_screening_ends_where_the_next_round_would_not_fit(stand: Stand) -> None:
    run = stand.gate(20.0, launches=5)
    assert stand.made == [("head", 2)] * 2
    assert said(run, "budget") == ["3 of 5 launches were left out, as the time budget of 20.0 s has no room for them; "
                                   "all would take a budget of about 35.0 s"]


def test_every_world_size_is_launched_once_and_the_overrun_is_told(stand: Stand) -> None:
    both = recordings.THRESHOLDS.replace("devices: [cpu]", "devices: [cpu], ranks: [1, 2]")
    run = stand.gate(1.0, thresholds=both)
    assert stand.made == [("head", 1), ("head", 2)]
    assert said(run, "4 of 6 launches were left out")
    assert said(run, "the gate took 14.0 s, 13.0 s more than its time budget of 1.00 s: every case is launched once")


def test_a_round_is_never_made_by_half(stand: Stand) -> None:
    both = recordings.THRESHOLDS.replace("devices: [cpu]", "devices: [cpu], ranks: [1, 2]")
    stand.gate(41.0, thresholds=both)
    assert Counter(stand.made) == {("head", 1): 2, ("head", 2): 2}


@pytest.mark.parametrize(("budget", "traced"), [(None, 1), (30.0, 1), (25.0, 0)])
def test_a_traced_launch_needs_its_time(stand: Stand, budget: float | None, traced: int) -> None:
    run = stand.gate(budget, trace="kineto")
    assert Counter(stand.made) == Counter({("head", 2): 3, ("traced", 2): traced})
    assert said(run, "no traced launch") == ([] if traced else [
        "no traced launch, so nothing is explained, and what only a trace gives is not judged: it takes about 4.67 s, "
        "and 4.00 s of the time budget of 25.0 s are left"])


def test_what_only_a_trace_gives_is_not_missed_where_there_was_no_time_for_one(stand: Stand) -> None:
    first = stand.gate(None, trace="kineto")
    assert first.measured(recordings.STEP.id, "exposed_comm_ratio", "traced")
    second = stand.gate(25.0, trace="kineto")
    assert second.verdict is not Verdict.INVALID
    assert not [finding for finding in second.findings if finding.metric == "exposed_comm_ratio"]


@pytest.mark.parametrize(("budget", "pairs"), [(None, 5), (66.0, 3), (60.0, 0)])
def test_the_bases_pairs_are_cut_to_the_budget(stand: Stand, budget: float | None, pairs: int) -> None:
    run = stand.gate(budget, base=True)
    met = stand.made[3:3 + 2 * pairs]
    assert Counter(met) == Counter({("head", 2): pairs, ("base", 2): pairs} if pairs else {})
    assert said(run, "beside the base") == ([] if pairs else [
        "3 cases without earlier runs not measured beside the base: 3 pairs of base and head take about 42.0 s, for "
        "which a time budget of about 63.0 s is needed and not 60.0 s"])
    assert stand.now - 1000.0 <= (budget or 900.0)


def test_the_default_budget_cuts_nothing(stand: Stand) -> None:
    run = stand.gate(None, base=True, trace="kineto")
    assert stand.made[:4] == [("head", 2)] * 3 + [("traced", 2)]
    assert not said(run, "budget")


def test_a_slow_machine_gets_what_its_own_launches_allow(stand: Stand) -> None:
    stand.slower = 10.0
    run = stand.gate(150.0)
    assert stand.made == [("head", 2)] * 2
    assert [re.findall(r"[\d.]+ s", text) for text in said(run, "left out")] == [["150 s", "210 s"]]
