"""What a place for runs must be able to do, so that `History` is the same on each."""

from __future__ import annotations

from typing import Protocol

from regress.history.index import Database
from regress.history.runs import AcceptedMark, Problem
from regress.record import Run


class Backend(Protocol):
    """Where runs are kept: a folder with its index, or a server that holds both."""

    @property
    def database(self) -> Database:
        """The index."""

    @property
    def location(self) -> str:
        """Where it is, without secrets."""

    def add(self, run: Run) -> str:
        """Store and index a run; returns where."""

    def load(self, location: str) -> Run:
        """The stored run as it is kept there."""

    def sync(self, rebuild: bool = False) -> None:
        """Bring the index up to date with what is stored."""

    def mark(self, mark: AcceptedMark) -> None:
        """Store an acceptance."""

    def marks(self) -> tuple[list[AcceptedMark], list[Problem]]:
        """All acceptances in order of time, and what is none."""

    def drop_samples(self, location: str) -> int:
        """Replace a stored run by the same without raw samples; returns the bytes freed."""

    def close(self) -> None:
        """Let go of what is open."""
