"""Which runs a baseline is chosen from: none is pushed out by what was measured elsewhere or for other branches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from regress.history.store import History, open_history
from regress.record import Acceptance, Commit, Run
from tests.history.factory import ELSEWHERE, HERE, moment, run
from tests.history.test_ancestry import commits, git
from tests.history.test_store import ids

LIMIT = 25
ANY = 100
FIRST = 20


def numbers(runs: Iterator[Run]) -> list[int]:
    """What `run` was made with, in the order given."""
    return [int(name.removeprefix("run")) for name in ids(runs)]


def test_runs_of_other_environments_push_nothing_out(history: History) -> None:
    for number in range(3):
        history.add(run(number))
    for number in range(3, 3 + LIMIT + ANY):
        history.add(run(number, environment=ELSEWHERE))
    assert numbers(history.candidates(HERE.fingerprint, LIMIT)) == [2, 1, 0]
    assert numbers(history.candidates("another", LIMIT)) == []


def test_runs_of_other_branches_push_nothing_out_and_the_newest_of_them_are_there(history: History) -> None:
    for number in range(3):
        history.add(run(number))
    last = 3 + ANY + 10
    for number in range(3, last):
        history.add(run(number, main=False))
    assert numbers(history.candidates(HERE.fingerprint, LIMIT)) == [*range(last - 1, last - 1 - ANY, -1), 2, 1, 0]


def test_accepted_and_first_runs_stay_however_many_follow_and_none_comes_twice(history: History) -> None:
    last = FIRST + 10 + ANY
    for number in range(last):
        history.add(run(number))
    history.add(replace(run(last), accepted=Acceptance("at birth", "ada", moment(last)), commit=Commit("a" * 40)))
    for number in range(last + 1, last + 1 + ANY):
        history.add(run(number))
    history.accept(f"run{FIRST + 4:05d}", "anchor", "ada", moment(999))
    history.accept(f"run{last:05d}", "again", "ada", moment(999))
    newest = [*range(last + ANY, last, -1), last]
    assert numbers(history.candidates(HERE.fingerprint, LIMIT)) == [*newest, FIRST + 4, *range(FIRST - 1, -1, -1)]
    assert [found.run_id for found in history.candidates(HERE.fingerprint, LIMIT) if found.accepted is not None] == [
        f"run{last:05d}", f"run{FIRST + 4:05d}"]


def test_another_attempt_than_the_accepted_one_is_not_accepted(history: History) -> None:
    history.add(run(1))
    history.accept("run00001", "anchor", "ada", moment(9))
    history.add(replace(run(2, run_id="run00001"), attempt=2))
    assert [(found.run_id, found.attempt) for found in history.runs(1, accepted_only=True)] == [("run00001", 1)]


def test_runs_without_a_commit_are_of_the_main_branch(history: History) -> None:
    for number in range(3):
        history.add(replace(run(number), commit=Commit()))
    for number in range(3, 4 + ANY):
        history.add(run(number, main=False))
    assert numbers(history.candidates(HERE.fingerprint, LIMIT))[-3:] == [2, 1, 0]
    assert numbers(history.runs(main_only=True)) == [2, 1, 0]


def test_they_come_in_the_order_of_commits(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    shas = commits(tmp_path, 4)
    with open_history(str(tmp_path / "h"), repository=tmp_path) as history:
        for number, sha in enumerate((shas[1], shas[3], shas[0], shas[2])):
            history.add(run(number, sha=sha, main=number != 1))
        assert ids(history.candidates(HERE.fingerprint, 2)) == ids(history.runs())
        assert numbers(history.candidates(HERE.fingerprint, 2)) == [1, 3, 0, 2]
