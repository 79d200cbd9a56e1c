"""The repository, the thresholds file, the history, and whether another gate is running."""

from __future__ import annotations

from collections.abc import Iterator

from regress.doctor.facts import Facts, Finding, Level
from regress.units import counted, format_size

_AREA = "project"
_LITTLE_DISK = 100 << 20


def check_project(facts: Facts) -> Iterator[Finding]:
    """What a gate started in this folder would find."""
    yield _git(facts)
    yield from _thresholds(facts)
    yield from _history(facts)
    yield _lock(facts)


def _git(facts: Facts) -> Finding:
    project = facts.project
    if not project.git:
        return Finding(_AREA, "git", Level.WARN, "git is not installed: runs carry no commit", "install git")
    if project.sha is None:
        return Finding(_AREA, "git", Level.WARN, "no repository with a commit here: runs carry no commit",
                       "run it in the repository under test")
    seen = f"commit {project.sha[:10]} on {project.branch or 'a detached head'}"
    if project.main_branch is None:
        return Finding(_AREA, "git", Level.WARN, f"{seen}; which branch is the main one is not known",
                       "git remote set-head origin --auto, or `gate: {main_branch: NAME}` in the thresholds file")
    if project.shallow:
        return Finding(_AREA, "git", Level.WARN, f"{seen}, a shallow clone: how older runs relate is not known",
                       "git fetch --unshallow (actions/checkout: `fetch-depth: 0`)")
    return Finding(_AREA, "git", Level.OK, f"{seen}, main branch {project.main_branch}")


def _thresholds(facts: Facts) -> Iterator[Finding]:
    project = facts.project
    if project.thresholds_error is not None:
        yield Finding(_AREA, "thresholds", Level.BLOCKS, project.thresholds_error, "mend the file, or leave it out")
        return
    total = project.cases + len(project.unfit)
    seen = f"{project.thresholds}: {project.cases} of {total} cases can run here"
    if project.unfit:
        case, why = project.unfit[0]
        yield Finding(_AREA, "thresholds", Level.WARN if project.cases else Level.BLOCKS, f"{seen}; {case}: {why}",
                      "an error where CI is set: take the case out for this machine, or run it on another one", True)
    elif not total and facts.plan is None:
        yield Finding(_AREA, "thresholds", Level.OK, project.thresholds)
    else:
        yield Finding(_AREA, "thresholds", Level.OK, seen)


def _history(facts: Facts) -> Iterator[Finding]:
    project = facts.project
    if project.history_error is not None:
        yield Finding(_AREA, "history", Level.BLOCKS, project.history_error,
                      "make it writable, or name another one: --history")
        return
    if project.history_runs is None:
        yield Finding(_AREA, "history", Level.OK, f"{project.history}: will be made by the first run")
    else:
        yield Finding(_AREA, "history", Level.OK, f"{project.history}: {counted(project.history_runs, 'run')}")
    if project.history_problems:
        yield Finding(_AREA, "history files", Level.WARN,
                      f"{len(project.history_problems)} not readable: {project.history_problems[0]}",
                      "they are left alone and not compared with; move them away (`regress history list` names all)")
    if project.disk_free is not None and project.disk_free < _LITTLE_DISK:
        yield Finding(_AREA, "disk", Level.WARN, f"{format_size(project.disk_free)} free where the history lives",
                      "make room: a run that cannot be stored ends with status 10", True)


def _lock(facts: Facts) -> Finding:
    project = facts.project
    if project.lock_error is not None:
        return Finding(_AREA, "lock", Level.BLOCKS, project.lock_error, "remove the file, or fix its permissions")
    if project.lock_holder is not None:
        return Finding(_AREA, "lock", Level.WARN, f"another gate is running: {project.lock_holder}",
                       "a gate started now waits for it")
    return Finding(_AREA, "lock", Level.OK, "no other gate is running on this host")
