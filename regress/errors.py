"""The one family of errors: each says what was seen, where, what is accepted and what to do next.

Every class carries the exit status that both faces (pytest plugin and console script) end with.
Statuses 0 to 5 are pytest's own; 10 means that the measurement cannot be trusted.
"""

from __future__ import annotations

from typing import ClassVar

EXIT_OK = 0
EXIT_REGRESSION = 1
EXIT_INTERRUPTED = 2
EXIT_INTERNAL = 3
EXIT_USAGE = 4
EXIT_NO_CASES = 5
EXIT_UNTRUSTED = 10


class RegressError(Exception):
    """Something the user can act on.

    seen: what was found, with the offending value.
    where: file, line, YAML path, rank or command it was found in.
    accepted: what would have been accepted instead.
    next_step: what to do now.
    """

    exit_status: ClassVar[int] = EXIT_INTERNAL

    def __init__(self, seen: str, *, where: str = "", accepted: str = "", next_step: str = "") -> None:
        self.seen = seen
        self.where = where
        self.accepted = accepted
        self.next_step = next_step
        super().__init__(self.text)

    @property
    def text(self) -> str:
        """The whole message on one line, parts that are empty left out."""
        parts = [f"{self.where}: {self.seen}" if self.where else self.seen]
        if self.accepted:
            parts.append(f"accepted: {self.accepted}")
        if self.next_step:
            parts.append(self.next_step)
        return "; ".join(parts)


class UsageError(RegressError):
    """A flag, argument or combination of them that cannot mean anything."""

    exit_status = EXIT_USAGE


class ConfigError(RegressError):
    """thresholds.yaml says something that is not accepted; `where` holds the file, line and YAML path."""

    exit_status = EXIT_USAGE


class RecordError(RegressError):
    """A stored or received record breaks the rules of `regress.record`."""

    exit_status = EXIT_UNTRUSTED


class ShelfError(RegressError):
    """A shelf holds two variants of one name, or none where one is needed: a fault of the installation."""

    exit_status = EXIT_INTERNAL


class HistoryError(RegressError):
    """The history cannot be opened, read or written as asked."""

    exit_status = EXIT_USAGE


class HistoryWriteError(HistoryError):
    """A measured run could not be remembered (disk full, folder gone): the verdict stands, the memory does not."""

    exit_status = EXIT_UNTRUSTED


class EnvironmentUnfitError(RegressError):
    """This machine cannot run what was asked: too few devices, no torch, no backend."""

    exit_status = EXIT_USAGE


class MeasurementError(RegressError):
    """A launch hung, lost a rank or gave wrong values: there is no number to judge."""

    exit_status = EXIT_UNTRUSTED


class TraceInputError(RegressError):
    """A trace that was named cannot be read at all: no such file, not a trace, truncated, from the future."""

    exit_status = EXIT_USAGE


class TraceUnfitError(RegressError):
    """A trace was read, but what it holds cannot support any metric."""

    exit_status = EXIT_UNTRUSTED


class PublishError(RegressError):
    """A sink refused or lost what was pushed. Never changes a verdict."""

    exit_status = EXIT_UNTRUSTED
