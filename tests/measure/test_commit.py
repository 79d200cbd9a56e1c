from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from regress.measure.commit import read_commit
from regress.record import Commit


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=A Person", "-c", "user.email=a@example.org",
                    *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "First: of all")
    return tmp_path


def test_a_clean_commit_on_main(repository: Path) -> None:
    commit = read_commit(repository, environment={})
    assert commit.sha is not None
    assert len(commit.sha) == 40
    assert (commit.subject, commit.author, commit.branch) == ("First: of all", "A Person", "main")
    assert (commit.main, commit.dirty) == (True, False)
    assert commit.time is not None
    assert "T" in commit.time


def test_changed_tracked_files_are_dirty_and_new_ones_are_not(repository: Path) -> None:
    (repository / "new").write_text("")
    assert not read_commit(repository, environment={}).dirty
    (repository / "file").write_text("2")
    assert read_commit(repository, environment={}).dirty


def test_a_feature_branch_is_not_main_unless_it_is_named_so(repository: Path) -> None:
    git(repository, "checkout", "-q", "-b", "feature")
    assert not read_commit(repository, environment={}).main
    assert read_commit(repository, main_branch="feature", environment={}).main


def test_a_detached_head_belongs_to_main_when_main_contains_it(repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    commit = read_commit(repository, environment={})
    assert (commit.branch, commit.main) == (None, True)
    git(repository, "commit", "-q", "--allow-empty", "-m", "aside")
    assert not read_commit(repository, environment={}).main


@pytest.mark.parametrize(("environment", "branch", "main"), [
    ({"GITHUB_REF_NAME": "main"}, "main", True),
    ({"GITHUB_REF_NAME": "7/merge", "GITHUB_HEAD_REF": "topic", "GITHUB_BASE_REF": "main"}, "topic", False),
    ({"CI_COMMIT_BRANCH": "main"}, "main", True),
    ({"CI_COMMIT_REF_NAME": "main", "CI_MERGE_REQUEST_IID": "3"}, "main", False),
])
def test_ci_names_the_branch_of_a_detached_head(repository: Path, environment: dict[str, str], branch: str,
                                                main: bool) -> None:
    git(repository, "checkout", "-q", "--detach")
    commit = read_commit(repository, environment=environment)
    assert (commit.branch, commit.main) == (branch, main)


def test_the_main_branch_is_where_the_remote_points(repository: Path, tmp_path: Path) -> None:
    git(repository, "branch", "-m", "main", "trunk")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    assert read_commit(clone, environment={}).main


def test_no_repository_no_commit_and_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert read_commit(tmp_path, environment={}) == Commit()
    git(tmp_path, "init", "-q")
    assert read_commit(tmp_path, environment={}) == Commit()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_commit(tmp_path, environment={}) == Commit()
