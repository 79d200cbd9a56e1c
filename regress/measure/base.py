"""The base reference checked out beside the code under test, for launches that alternate between the two."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from regress.errors import UsageError
from regress.git import ask_git, run_git

_CHECKOUT_SECONDS = 120


@dataclass(frozen=True, slots=True)
class BaseCheckout:
    """A worktree of the base. root: its folder. sha: the commit. environment: overrides for its ranks."""

    root: Path
    sha: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ChosenBase:
    """The commit to confirm against. sha: None where there is none. warning: what the user did not expect of it."""

    sha: str | None
    warning: str | None = None


def resolve_base(root: Path, ref: str, *, dirty: bool = False) -> ChosenBase:
    """The commit to measure as base: where the main line and HEAD parted (merge base of `ref` and HEAD).

    Where that is HEAD itself (a push to main, with `origin/main` as base) it is HEAD's parent: a commit beside itself
    shows no difference, whatever it made slower. dirty: tracked files differ from HEAD, which then is a base to compare
    them with. Raises UsageError without git, outside a repository, or when the reference does not exist.
    """
    if shutil.which("git") is None:
        raise UsageError("git is not installed", where="--comm-regress-base", accepted="a machine with git")
    named = _commit(root, ref)
    if named is None:
        inside = run_git(root, "rev-parse", "--is-inside-work-tree")
        seen = f"no commit {ref!r}" if inside.returncode == 0 else f"{root} is not in a git repository" \
            if "not a git repository" in inside.stderr else f"git cannot read {root}: {inside.stderr.strip()}"
        raise UsageError(seen, where="--comm-regress-base", accepted="a branch, tag or commit of this repository",
                         next_step="a shallow clone lacks it: fetch it first, e.g. `git fetch origin main`"
                         if inside.returncode == 0 else "")
    sha = ask_git(root, "merge-base", named, "HEAD") or named
    if dirty or sha != _commit(root, "HEAD"):
        return ChosenBase(sha)
    parent = _commit(root, "HEAD^")
    if parent is None:
        return ChosenBase(None, f"no base to confirm against: {ref} is the commit under test itself, and its parent is "
                          "not here; a shallow clone lacks it: fetch one commit more (actions/checkout: `fetch-depth: "
                          "2`)")
    return ChosenBase(parent, f"{ref} is the commit under test itself, so that the base is its parent {parent[:12]}")


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
    head = _commit(root, "HEAD")
    for ref in named if head is not None else ():
        base = ask_git(root, "merge-base", ref, "HEAD") if _commit(root, ref) is not None else None
        if base is not None:
            if base != head:
                return base
            break
    return _commit(root, "HEAD^") if head is not None else None


def _commit(root: Path, ref: str) -> str | None:
    return ask_git(root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")


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
    top = Path(ask_git(root, "rev-parse", "--show-toplevel") or root)
    parent = Path(tempfile.mkdtemp(prefix="comm-regress-base-"))
    checkout = parent / "base"
    try:
        entrust(parent)
        made = run_git(top, "worktree", "add", "--detach", "--quiet", str(checkout), sha, seconds=_CHECKOUT_SECONDS)
        if made.returncode != 0:
            raise UsageError(f"git could not check out {sha[:12]}: {made.stderr.strip()}", where="--comm-regress-base",
                             accepted="a commit that `git worktree add` can check out")
        inner = checkout / root.resolve().relative_to(top.resolve())
        yield BaseCheckout(inner, sha, _base_environment(top.resolve(), checkout, os.environ))
    finally:
        # Twice: git locks a worktree while it makes one, and a checkout that was ended stays locked.
        run_git(top, "worktree", "remove", "--force", "--force", str(checkout), seconds=_CHECKOUT_SECONDS)
        shutil.rmtree(parent, ignore_errors=True)
        run_git(top, "worktree", "prune")
