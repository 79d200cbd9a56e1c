"""Order by history, not by time of running: commits as git relates them, where the repository is at hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from regress.git import ask_git

_SHA = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")

ItemT = TypeVar("ItemT")


def ancestry(repository: Path, shas: Iterable[str]) -> dict[str, int]:
    """How new each commit is: 0 for the newest, a parent always after its children; unknown commits are left out.

    Empty where there is no git, no repository, or nothing of it is known there: the order of time then stands.
    """
    wanted = sorted({sha for sha in shas if _SHA.fullmatch(sha)})
    if not wanted:
        return {}
    listed = ask_git(repository, "rev-list", "--topo-order", "--ignore-missing", "--stdin",
                     given="\n".join(wanted) + "\n") or ""
    asked = set(wanted)
    return {sha: place for place, sha in enumerate(listed.split()) if sha in asked}


def by_ancestry(newest_first: Sequence[ItemT], commit: Callable[[ItemT], str | None],
                order: dict[str, int]) -> list[ItemT]:
    """The items with those of known commits rearranged among their own places; the others keep their place in time.

    Items of one commit stay in the order they came in.
    """
    places = [place for place, item in enumerate(newest_first) if commit(item) in order]
    arranged = sorted((newest_first[place] for place in places), key=lambda item: order[commit(item) or ""])
    ordered = list(newest_first)
    for place, item in zip(places, arranged, strict=True):
        ordered[place] = item
    return ordered
