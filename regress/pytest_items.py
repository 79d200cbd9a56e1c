"""What the items of the gate and of its selftest have in common: how they are selected, how a failed one is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from _pytest._code.code import TerminalRepr
    from _pytest._io import TerminalWriter


class CaseFailed(Exception):
    """A case that regressed or cannot be trusted; its text is the whole report, its headline one line of it."""

    def __init__(self, text: str, headline: str | None = None) -> None:
        super().__init__(text)
        self.headline = text if headline is None else headline


@dataclass(frozen=True, slots=True)
class Headline:
    """What pytest's short summary and JUnit's message show, in the place where they look for a crash."""

    message: str
    path: str
    lineno: int = 0


@dataclass(frozen=True, slots=True)
class CaseReport:
    """How a failed case is shown: the whole text in the failures section, the headline elsewhere."""

    text: str
    reprcrash: Headline

    def __str__(self) -> str:
        return self.text

    def toterminal(self, terminal: TerminalWriter) -> None:
        """Writes it where pytest would write a traceback."""
        terminal.line(self.text)


def collected(parent: pytest.Collector, kind: str) -> list[pytest.Item]:
    """The parent's items; arguments of pytest that are node ids of some select them. kind: what an item is, in words.

    Raises UsageError for a node id that is none.
    """
    items = [item for item in parent.collect() if isinstance(item, pytest.Item)]
    parent.config.hook.pytest_collectreport(
        report=pytest.CollectReport(nodeid=parent.nodeid, outcome="passed", longrepr=None, result=list(items)))
    wanted = [arg for arg in parent.config.args if arg.startswith(f"{parent.nodeid}::")]
    known = {item.nodeid: item for item in items}
    unknown = [arg for arg in wanted if arg not in known]
    if unknown:
        raise pytest.UsageError(f"no {kind} {unknown[0]!r} here; {kind}s on this machine: {', '.join(known)}")
    return [known[arg] for arg in dict.fromkeys(wanted)] if wanted else items


def reword(report: pytest.TestReport, excinfo: pytest.ExceptionInfo[BaseException] | None) -> None:
    """A failed case is its own text, a skipped one is named by its node id; faults of the gate stay as they are.

    Not `repr_failure`: pytest asks an item for that in the call phase only, and an invalid case fails before.
    """
    if excinfo is not None and isinstance(excinfo.value, CaseFailed):
        shown = CaseReport(str(excinfo.value), Headline(excinfo.value.headline, report.nodeid))
        report.longrepr = cast("TerminalRepr", shown)
    elif isinstance(report.longrepr, tuple):
        # pytest leaves the line out where it is None.
        report.longrepr = cast("tuple[str, int, str]", (report.nodeid, None, report.longrepr[2]))
