"""The code under measurement, as git and the CI system know it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from regress.git import ask_git
from regress.record import Commit

_PULL_REQUEST = ("GITHUB_BASE_REF", "CI_MERGE_REQUEST_IID")
_BRANCH = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_BRANCH", "CI_COMMIT_REF_NAME")


def read_commit(folder: Path, *, main_branch: str | None = None,
                environment: Mapping[str, str] | None = None) -> Commit:
    """The commit checked out in `folder`; Commit() where there is no git, no repository or no commit yet.

    main_branch: the branch baselines come from; by default where origin/HEAD points, else "main" or "master",
    whichever exists. `main` is true on that branch and, with a detached head, where the commit is part of it; never
    for a pull or merge request. dirty: tracked files differ; it is for the reader to keep such a run out of baselines.
    environment: os.environ; the CI system's variables name the branch of a detached head.
    """
    known = os.environ if environment is None else environment
    facts = ask_git(folder, "log", "-1", "--format=%H%x00%s%x00%an%x00%cI")
    if not facts:
        return Commit()
    sha, subject, author, time = facts.split("\0")
    checked_out = ask_git(folder, "symbolic-ref", "--short", "-q", "HEAD")
    branch = checked_out or next((known[name] for name in _BRANCH if known.get(name)), None)
    dirty = bool(ask_git(folder, "status", "--porcelain", "--untracked-files=no"))
    return Commit(sha, subject, author, time, branch, dirty,
                  _is_main(folder, branch, main_branch or find_main_branch(folder), known))


def is_shallow(folder: Path) -> bool:
    """Whether the repository holds only the last commits, so that older ones cannot be put in order."""
    return ask_git(folder, "rev-parse", "--is-shallow-repository") == "true"


def _is_main(folder: Path, branch: str | None, main: str | None, environment: Mapping[str, str]) -> bool:
    if main is None or any(environment.get(name) for name in _PULL_REQUEST):
        return False
    if branch is not None:
        return branch == main
    return any(ask_git(folder, "merge-base", "--is-ancestor", "HEAD", name) is not None
               for name in (f"refs/heads/{main}", f"refs/remotes/origin/{main}"))


def find_main_branch(folder: Path) -> str | None:
    """The branch that origin/HEAD names, else "main" or "master", whichever exists; None where none does."""
    remote = ask_git(folder, "symbolic-ref", "--short", "-q", "refs/remotes/origin/HEAD")
    if remote:
        return remote.removeprefix("origin/")
    for name in ("main", "master"):
        for place in (f"refs/heads/{name}", f"refs/remotes/origin/{name}"):
            if ask_git(folder, "rev-parse", "-q", "--verify", place):
                return name
    return None
