"""What a pull request's job can do to the figures that later runs are compared with: nothing by default."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from regress.cli import main
from regress.errors import UsageError
from regress.history.store import open_history
from regress.judge.baseline import select
from regress.record import Commit
from regress.session import GateRequest, open_gate
from tests.history.factory import HERE, moment, run

ALLOWED = "schema: 1\ngate: {accept_in_ci: true}\n"


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CI", "true")
    monkeypatch.chdir(tmp_path)
    with open_history(str(tmp_path / "history")) as opened:
        opened.add(run(1))
    return str(tmp_path / "history")


def accepted(history: str) -> int:
    with open_history(history) as opened:
        return len(list(opened.runs(accepted_only=True)))


def test_neither_the_gate_nor_the_command_accepts_where_ci_is_set(
        history: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="while CI is set"):
        open_gate(GateRequest(tmp_path, None, history, device="cpu", accept="looks fine"))
    assert main(["history", "accept", "run00001", "--reason", "looks fine", "--history", history]) == 4
    assert "accepting a new anchor while CI is set; accepted: `gate: {accept_in_ci: true}`" in capsys.readouterr().err
    assert accepted(history) == 0


def test_a_thresholds_file_may_allow_it(history: str, tmp_path: Path) -> None:
    (tmp_path / "thresholds.yaml").write_text(ALLOWED)
    assert main(["history", "accept", "run00001", "--reason", "by hand", "--history", history]) == 0
    assert accepted(history) == 1


def test_on_a_desk_nothing_has_to_be_allowed(history: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI")
    assert main(["history", "accept", "run00001", "--reason", "a new switch", "--history", history]) == 0
    assert accepted(history) == 1


def test_runs_of_a_pull_request_are_in_no_baseline_however_many_there_are() -> None:
    """Poisoning by measuring: slow runs of other branches do not make a slow commit look normal."""
    good = [run(number) for number in range(3)]
    poison = [run(10 + number, main=False, value=1.0) for number in range(50)]
    chosen = select(Commit("f" * 40, main=True), HERE, moment(99), [*good, *poison])
    assert [one.run_id for one in chosen.runs] == [one.run_id for one in good]
    assert any("of other branches" in note for note in chosen.notes)


def test_one_run_of_the_main_branch_does_not_move_the_baseline() -> None:
    runs = [run(number) for number in range(10)]
    slow = replace(run(10, value=1.0))
    before = select(Commit("f" * 40, main=True), HERE, moment(99), runs)
    after = select(Commit("f" * 40, main=True), HERE, moment(99), [*runs, slow])
    case, metric = "allreduce[1MiB-float32-2xcpu]", "allreduce_seconds"
    assert len(after.window(case, metric)) == len(before.window(case, metric)) + 1
    assert after.anchor(case, metric) == before.anchor(case, metric)
