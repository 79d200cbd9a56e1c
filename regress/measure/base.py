"""The base reference checked out beside the code under test, for launches that alternate between the two."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from regress.errors import UsageError

_GIT_SECONDS = 120


@dataclass(frozen=True, slots=True)
class BaseCheckout:
    """A worktree of the base. root: its folder. sha: the commit. environment: overrides for its ranks."""

    root: Path
    sha: str
    environment: Mapping[str, str]


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False,
                          timeout=_GIT_SECONDS, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})


def resolve_base(root: Path, ref: str) -> str:
    """The commit to measure as base: where the main line and HEAD parted (merge base of `ref` and HEAD).

    Raises UsageError without git, outside a repository, or when the reference does not exist.
    """
    if shutil.which("git") is None:
        raise UsageError("git is not installed", where="--comm-regress-base", accepted="a machine with git")
    found = _git(root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    if found.returncode != 0:
        inside = _git(root, "rev-parse", "--is-inside-work-tree").returncode == 0
        seen = f"no commit {ref!r}" if inside else f"{root} is not in a git repository"
        raise UsageError(seen, where="--comm-regress-base", accepted="a branch, tag or commit of this repository",
                         next_step="a shallow clone lacks it: fetch it first, e.g. `git fetch origin main`"
                         if inside else "")
    merge = _git(root, "merge-base", found.stdout.strip(), "HEAD")
    return merge.stdout.strip() if merge.returncode == 0 else found.stdout.strip()


def default_base(root: Path, main_branch: str | None, environ: Mapping[str, str]) -> str | None:
    """What CI confirms against when nobody names a base: the pull request's target, else where the branch left main.

    A commit of the main branch itself is compared with its parent. None where git cannot tell: a shallow clone has
    neither.
    """
    target = environ.get("GITHUB_BASE_REF") or environ.get("CI_MERGE_REQUEST_TARGET_BRANCH_NAME")
    named = [f"origin/{target}", target] if target else []
    if main_branch:
        named += [f"origin/{main_branch}", main_branch]
    named += ["origin/HEAD", "origin/main", "origin/master", "main", "master"]
    head = _git(root, "rev-parse", "--verify", "--quiet", "HEAD").stdout.strip() if shutil.which("git") else ""
    for ref in named if head else ():
        found = _git(root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        merge = _git(root, "merge-base", ref, "HEAD") if found.returncode == 0 else None
        if merge is not None and merge.returncode == 0:
            base = merge.stdout.strip()
            if base != head:
                return base
            break
    parent = _git(root, "rev-parse", "--verify", "--quiet", "HEAD^") if head else None
    return parent.stdout.strip() if parent is not None and parent.returncode == 0 else None


def _base_environment(root: Path, checkout: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """PYTHONPATH with every entry inside the repository turned to the same place of the base's checkout."""
    moved = []
    for entry in environ.get("PYTHONPATH", "").split(os.pathsep):
        if entry:
            path = Path(entry).resolve()
            moved.append(str(checkout / path.relative_to(root)) if path.is_relative_to(root) else entry)
    return {"PYTHONPATH": os.pathsep.join([str(checkout), *moved])}


@contextmanager
def base_checkout(root: Path, sha: str, entrust: Callable[[Path], None] = lambda _: None) -> Iterator[BaseCheckout]:
    """A detached worktree of `sha` that is removed again at the end; the user's own checkout is not touched.

    entrust: called with its folder, for whoever removes it should this process be killed before it does; git forgets
    such a worktree with the next one. Raises UsageError when git cannot make it.
    """
    top = Path(_git(root, "rev-parse", "--show-toplevel").stdout.strip())
    parent = Path(tempfile.mkdtemp(prefix="comm-regress-base-"))
    entrust(parent)
    checkout = parent / "base"
    made = _git(top, "worktree", "add", "--detach", "--quiet", str(checkout), sha)
    try:
        if made.returncode != 0:
            raise UsageError(f"git could not check out {sha[:12]}: {made.stderr.strip()}", where="--comm-regress-base",
                             accepted="a commit that `git worktree add` can check out")
        inner = checkout / root.resolve().relative_to(top.resolve())
        yield BaseCheckout(inner, sha, _base_environment(top.resolve(), checkout, os.environ))
    finally:
        _git(top, "worktree", "remove", "--force", str(checkout))
        shutil.rmtree(parent, ignore_errors=True)
        _git(top, "worktree", "prune")
