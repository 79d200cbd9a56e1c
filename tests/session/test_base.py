"""Which base a suspicion is confirmed against, and when a base would hide what it is asked about."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from regress.confirming import Confirmation
from regress.errors import UsageError
from regress.gate_work import GateWork
from regress.history.ancestry import ancestry
from regress.history.store import open_history
from regress.judge.baseline import Baseline
from regress.judge.verdict import Judgement
from regress.measure.base import ChosenBase, base_checkout, default_base, resolve_base
from regress.measure.health import HealthMonitor
from regress.measure.variables import allowed_variables, without_place
from regress.measuring import Campaign
from regress.record import Commit, Environment, Finding, Run, Verdict
from regress.reporting import commit_url_template, git_order
from regress.session import Gate, GateRequest, open_gate
from regress.units import Unit


class Silent:
    def message(self, text: str) -> None: ...
    def case_started(self, text: str) -> None: ...
    def progress(self, text: str) -> None: ...


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
                          check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, text: str) -> str:
    (folder / "file").write_text(text)
    git(folder, "add", "file")
    git(folder, "commit", "-qm", text)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-qb", "main")
    return folder


def test_a_branch_is_compared_with_where_it_left_main(repository: Path) -> None:
    left = commit(repository, "one")
    git(repository, "checkout", "-qb", "feature")
    commit(repository, "two")
    git(repository, "checkout", "-q", "main")
    commit(repository, "three")
    git(repository, "checkout", "-q", "feature")
    assert default_base(repository, None, {}) == left
    assert default_base(repository, "main", {}) == left
    assert resolve_base(repository, "main") == ChosenBase(left)
    assert default_base(repository, None, {"GITHUB_BASE_REF": "main"}) == left


def test_a_commit_of_main_is_compared_with_its_parent(repository: Path) -> None:
    first = commit(repository, "one")
    assert default_base(repository, None, {}) is None
    commit(repository, "two")
    assert default_base(repository, None, {}) == first


def test_a_named_base_that_is_the_commit_under_test_gives_way_to_its_parent(repository: Path) -> None:
    """A push to main with `origin/main` as base: a commit beside itself shows nothing, whatever it made slower."""
    first = commit(repository, "one")
    alone = resolve_base(repository, "main")
    assert alone.sha is None
    assert alone.warning == (
        "no base to confirm against: main is the commit under test itself, and its parent is not here; a shallow clone "
        "lacks it: fetch one commit more (actions/checkout: `fetch-depth: 2`)")
    second = commit(repository, "two")
    for ref in ("main", "HEAD", second):
        found = resolve_base(repository, ref)
        assert found.sha == first
        assert found.warning == (f"{ref} is the commit under test itself, so that the base is its parent {first[:12]}")
    git(repository, "checkout", "-q", "--detach", first)
    assert resolve_base(repository, "main").sha is None, "a commit that main already holds"


def test_changes_that_are_not_committed_are_compared_with_the_commit_they_are_made_to(repository: Path) -> None:
    commit(repository, "one")
    second = commit(repository, "two")
    assert resolve_base(repository, "HEAD", dirty=True) == ChosenBase(second)


def test_a_gate_says_that_its_base_is_the_parent(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = commit(repository, "one")
    commit(repository, "two")

    def base(asked: str | None) -> ChosenBase:
        return open_gate(GateRequest(repository, None, str(repository / "h"), device="cpu", trace="none",
                                     base=asked)).base()

    monkeypatch.delenv("CI", raising=False)
    assert base("main").sha == first and base("main").warning is not None
    assert base(None) == ChosenBase(None)
    monkeypatch.setenv("CI", "true")
    assert base(None) == ChosenBase(first)
    (repository / "file").write_text("three")
    assert base("main").sha == git(repository, "rev-parse", "HEAD")


def test_a_checkout_of_another_user_has_its_bases(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a CI container: the runner cloned, and root measures."""
    first = commit(repository, "one")
    head = commit(repository, "two")
    git(repository, "remote", "add", "origin", "https://example.org/team/repository.git")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert resolve_base(repository, "HEAD^") == ChosenBase(first)
    assert default_base(repository, None, {}) == first
    with base_checkout(repository, first) as base:
        assert (base.root / "file").read_text() == "one"
        place = base.root
    assert not place.exists()
    assert git_order(repository) == [first, head]
    assert commit_url_template(repository) == "https://example.org/team/repository/commit/{sha}"
    assert ancestry(repository, [first, head]) == {head: 0, first: 1}


def test_a_checkout_that_does_not_end_is_no_base_and_leaves_nothing(repository: Path, tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / ".gitattributes").write_text("file filter=slow\n")
    git(repository, "add", ".gitattributes")
    first = commit(repository, "one")
    commit(repository, "two")
    git(repository, "config", "filter.slow.smudge", "sleep 5; cat")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr("regress.measure.base._CHECKOUT_SECONDS", 1)
    with pytest.raises(UsageError, match=f"git could not check out {first[:12]}: git did not end within 1 s"), \
            base_checkout(repository, first):
        pass
    assert list(temporary.iterdir()) == []
    assert git(repository, "worktree", "list").count("\n") == 0
    assert not (repository / ".git" / "worktrees").exists()


def test_without_a_repository_there_is_no_base(tmp_path: Path) -> None:
    assert default_base(tmp_path, None, {}) is None
    with pytest.raises(UsageError, match="is not in a git repository"):
        resolve_base(tmp_path, "main")


def test_an_unknown_base_says_what_to_fetch(repository: Path) -> None:
    commit(repository, "one")
    with pytest.raises(UsageError, match=r"no commit 'gone'.*a shallow clone lacks it: fetch it first"):
        resolve_base(repository, "gone")


def test_the_bases_worktree_has_its_files_and_goes_again(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = commit(repository, "one")
    commit(repository, "two")
    monkeypatch.setenv("PYTHONPATH", f"{repository}/src:/elsewhere")
    with base_checkout(repository, first) as base:
        assert (base.root / "file").read_text() == "one"
        assert base.environment["PYTHONPATH"].split(":") == [str(base.root), f"{base.root}/src", "/elsewhere"]
        place = base.root
    assert not place.exists()
    assert (repository / "file").read_text() == "two"
    assert git(repository, "worktree", "list").count("\n") == 0


def work_with(tmp_path: Path, asked: str | None, before: dict[str, str],
              now: dict[str, str]) -> Confirmation:
    gate: Gate = open_gate(GateRequest(tmp_path, None, str(tmp_path / "h"), device="cpu", trace="none", base=asked))
    gate._environment = Environment({"device": "cpu"}, dict(now))
    run = Run("r", "2026-01-01T00:00:00+00:00", "2026-01-01T00:01:00+00:00", Commit("a", main=True),
              Environment({"device": "cpu"}, dict(before)), (), Verdict.PASS)
    work = GateWork(gate, open_history(gate.request.history), Silent(), (), "base")
    ranks = Campaign(gate.config, gate.ranks, tmp_path, {}, Silent())
    return Confirmation(work, ranks, replace(Baseline(), runs=(run,)), HealthMonitor(None), ExitStack(), "base")


@pytest.mark.parametrize(("asked", "before", "now", "kept", "said"), [
    (None, {"nccl_version": "2.28.9"}, {"nccl_version": "2.29.2"}, False,
     "the environment changed (nccl_version 2.28.9 → 2.29.2), so suspicions were confirmed against the window"),
    ("main", {"nccl_version": "2.28.9"}, {"nccl_version": "2.29.2"}, True, "and the base runs in the new one too"),
    (None, {"host": "a"}, {"host": "b"}, True, None),
    (None, {"variable.NCCL_ALGO": "Ring"}, {}, False, "variable.NCCL_ALGO Ring → unset"),
])
def test_a_new_nccl_is_not_hidden_by_a_base_that_runs_it_too(
        tmp_path: Path, asked: str | None, before: dict[str, str], now: dict[str, str], kept: bool,
        said: str | None) -> None:
    confirmation = work_with(tmp_path, asked, before, now)
    confirmation.settle_base()
    assert (confirmation.base_sha is not None) is kept
    warnings = confirmation.work.warnings
    assert any(said in text for text in warnings) if said else not warnings


@pytest.mark.parametrize(("sha", "base", "advised"), [("abc", None, True), ("abc", "base", False), (None, None, False)])
def test_what_a_window_leaves_open_a_base_would_decide(tmp_path: Path, sha: str | None, base: str | None,
                                                       advised: bool) -> None:
    confirmation = work_with(tmp_path, None, {}, {})
    confirmation.base_sha = base
    confirmation.work.gate._commit = Commit(sha)
    open_one = Finding("allreduce[x]", "allreduce_seconds", Unit.SECONDS, "shift", Verdict.INCONCLUSIVE, "p25",
                       "noise")
    confirmation.advise(Judgement(Verdict.INCONCLUSIVE, 0, {"allreduce[x]": Verdict.INCONCLUSIVE}, (open_one,)))
    assert list(confirmation.work.warnings) == ([
        "1 case undecided against the window alone; --comm-regress-base REF measures that commit and this one "
        "interleaved"] if advised else [])


def test_search_paths_are_compared_without_the_workspaces_name(tmp_path: Path) -> None:
    def seen(workspace: str, other: str) -> dict[str, str]:
        root = tmp_path / workspace
        root.mkdir(exist_ok=True)
        return allowed_variables(without_place({"PYTHONPATH": f"{root}/src:{other}"}, root))

    assert seen("job1", "/a") == seen("job2", "/a") == {"variable.PYTHONPATH": "<repository>/src:/a"}
    assert seen("job1", "/a") != seen("job1", "/b")
