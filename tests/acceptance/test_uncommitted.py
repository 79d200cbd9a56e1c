"""A working tree with uncommitted changes: compared, and no baseline for the commit it sits on."""

from __future__ import annotations

import subprocess

import pytest

from regress.errors import EXIT_REGRESSION
from tests.acceptance.conftest import Theatre
from tests.acceptance.recordings import ALLREDUCE


@pytest.fixture
def repository(theatre: Theatre) -> Theatre:
    """The folder is a repository of one commit, on its main branch."""
    for words in (("init", "-qb", "main"), ("add", "thresholds.yaml"), ("commit", "-qm", "one")):
        git(theatre, *words)
    return theatre


def git(theatre: Theatre, *words: str) -> None:
    subprocess.run(["git", "-C", str(theatre.folder), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)


def edit(theatre: Theatre) -> None:
    """A tracked file is changed."""
    file = theatre.folder / "thresholds.yaml"
    file.write_text(file.read_text() + "# tried something\n")


def gate(theatre: Theatre, slower: float = 1.0) -> pytest.RunResult:
    theatre.play({ALLREDUCE: slower})
    return theatre.gate("--comm-regress-json=result.json")


def test_a_first_user_who_works_in_one_sees_the_second_run_compared(repository: Theatre) -> None:
    edit(repository)
    for _ in range(2):
        assert gate(repository).ret == 0
    assert repository.result()["verdict"] == "pass"
    assert any("compared with 1 earlier run of trees with such changes" in text
               for text in repository.result()["warnings"])
    assert gate(repository, 2.0).ret == EXIT_REGRESSION


def test_what_it_measured_does_not_replace_the_clean_run_of_its_commit(repository: Theatre) -> None:
    for _ in range(2):
        assert gate(repository).ret == 0
    edit(repository)
    slow = gate(repository, 2.0)
    assert slow.ret == EXIT_REGRESSION  # against this very commit's clean runs
    assert gate(repository, 0.5).ret == 0
    git(repository, "commit", "-aqm", "two")
    assert gate(repository).ret == 0
    assert "earlier runs left out of the baseline: 2 of a tree with uncommitted changes" in (
        repository.result()["warnings"])
    assert {case["case"]: case["verdict"] for case in repository.result()["cases"]}[ALLREDUCE.id] == "pass"
