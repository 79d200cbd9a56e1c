from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regress.history.ancestry import ancestry, by_ancestry
from regress.history.store import open_history
from tests.history.factory import ALLREDUCE, run
from tests.history.test_store import ids


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True,
                          text=True).stdout.strip()


def commits(folder: Path, count: int) -> list[str]:
    found = []
    for number in range(count):
        git(folder, "commit", "-q", "--allow-empty", "-m", str(number))
        found.append(git(folder, "rev-parse", "HEAD"))
    return found


def test_runs_follow_commits_and_not_the_clock(repository: Path, tmp_path: Path) -> None:
    oldest, middle, newest = commits(repository, 3)
    with open_history(str(tmp_path / "h"), repository=repository) as history:
        history.add(run(1, sha=newest))
        history.add(run(2, sha=oldest))  # an old commit measured late, as a bisection does
        history.add(run(3, sha="f" * 40))  # not known to this repository
        history.add(run(4, sha=middle))
        assert ids(history.runs()) == ["run00001", "run00003", "run00004", "run00002"]
        assert list(history.series(ALLREDUCE.id, "allreduce_seconds")["run_id"]) \
            == ["run00002", "run00004", "run00003", "run00001"]
    with open_history(str(tmp_path / "h")) as history:
        assert ids(history.runs()) == ["run00004", "run00003", "run00002", "run00001"]


def test_without_git_or_repository_the_order_of_time_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ancestry(tmp_path, ["a" * 40]) == {}
    assert ancestry(tmp_path, ["--all", "not a sha", ""]) == {}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ancestry(tmp_path, ["a" * 40]) == {}


def test_parents_come_after_their_children(repository: Path) -> None:
    shas = commits(repository, 4)
    order = ancestry(repository, [*shas, "e" * 40])
    assert sorted(order, key=lambda sha: order[sha]) == shas[::-1]


@given(st.lists(st.tuples(st.integers(), st.sampled_from(["a", "b", "c", None]))),
       st.permutations(["a", "b"]))
def test_nothing_is_lost_and_unknown_commits_keep_their_places(items: list[tuple[int, str | None]],
                                                               known: list[str]) -> None:
    order = {sha: place for place, sha in enumerate(known)}
    arranged = by_ancestry(items, lambda item: item[1], order)
    assert sorted(map(repr, arranged)) == sorted(map(repr, items))
    assert [item for item in arranged if item[1] not in order] == [item for item in items if item[1] not in order]
    assert all((old[1] in order) == (new[1] in order) for old, new in zip(items, arranged, strict=True))
    places = [order[item[1]] for item in arranged if item[1] in order]
    assert places == sorted(places)
