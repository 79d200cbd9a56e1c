"""`pytest --comm-regress --comm-regress-selftest`: one item a fault, which passes where the gate catches the fault.

Loaded only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from regress.errors import RegressError
from regress.pytest_items import CaseFailed, collected
from regress.selftest.faults import FAULTS, Fault
from regress.selftest.table import table_lines, verdict_line
from regress.selftest.trials import Bench, Trial, chosen_device, open_bench, try_faults
from regress.stopping import terminated_as_interrupted

COLLECTOR = "comm-regress-selftest"


class SelftestCollector(pytest.Collector):
    """The one parent of all faults; `comm-regress-selftest::<fault>` are their node ids."""

    run: SelftestRun

    def collect(self) -> Iterator[pytest.Item]:
        """Every fault, those too that this machine cannot show."""
        for fault in FAULTS:
            yield FaultItem.from_parent(self, name=fault.name, nodeid=f"{self.nodeid}::{fault.name}", fault=fault,
                                        run=self.run)


class FaultItem(pytest.Item):
    """One fault, tried when the item runs."""

    def __init__(self, *, fault: Fault, run: SelftestRun, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fault = fault
        self.selftest = run
        self.add_marker("comm_regress")
        self.add_marker(run.device)

    def runtest(self) -> None:
        """Fails where the gate missed the fault or was red without one; skipped where this machine cannot show it."""
        trials = self.selftest.tried(self.fault)
        for trial in trials:
            if trial.seen is None:
                pytest.skip(trial.note)
        for name, values in (("expected", [verdict.value for verdict in self.fault.verdicts]),
                             ("seen", [trial.seen.verdict.value for trial in trials if trial.seen is not None])):
            self.user_properties.append((name, ", ".join(values)))
        missed = [trial for trial in trials if not trial.passed]
        if missed:
            raise CaseFailed("\n".join(table_lines(missed)), missed[0].note)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the item comes from and its title."""
        return self.path, None, self.fault.name


class Messages:
    """A line for each baseline run and each fault; how far a gate is inside does not matter here.

    Nothing is shown where pytest runs without its terminal, or quietly.
    """

    def __init__(self, config: pytest.Config) -> None:
        quiet = config.getoption("verbose", 0) < 0  # pytest's terminal declares it
        self._reporter = None if quiet else config.pluginmanager.get_plugin("terminalreporter")
        self._capture = config.pluginmanager.get_plugin("capturemanager")

    def message(self, text: str) -> None:
        """A line of its own; past the capture that pytest has on while an item runs."""
        if self._reporter is not None:
            with self._capture.global_and_fixture_disabled() if self._capture is not None else nullcontext():
                self._reporter.write_line(text)

    def case_started(self, text: str) -> None:
        """Not said."""

    def progress(self, text: str) -> None:
        """Not said."""


@dataclass(slots=True)
class SelftestRun:
    """The selftest inside one pytest session. device: "cpu" or "cuda". header: what is said of it before it begins."""

    device: str
    header: list[str]
    trials: list[Trial] = field(default_factory=list)
    _bench: Bench | None = None

    @staticmethod
    def on(wish: str) -> SelftestRun:
        """On that device; "auto" is a GPU where there is one."""
        device = chosen_device(wish)
        return SelftestRun(device, [f"selftest on {device}: faults are injected into real ranks, with thresholds, "
                                    "history and folder of its own"])

    def collect(self, session: pytest.Session) -> list[pytest.Item]:
        """One item a fault; arguments that are node ids of faults select them."""
        parent = SelftestCollector.from_parent(session, name=COLLECTOR, nodeid=COLLECTOR)
        parent.run = self
        return collected(parent, "fault")

    @contextmanager
    def around(self, session: pytest.Session) -> Iterator[None]:
        """A bench for the time in which the items run; SIGTERM ends them as Ctrl-C does."""
        with terminated_as_interrupted(), open_bench(self.device, Messages(session.config)) as self._bench:
            yield

    def tried(self, fault: Fault) -> list[Trial]:
        """The fault's trials; a fault of the whole gate ends the session with its status."""
        assert self._bench is not None  # noqa: S101  items run inside `around` only
        try:
            trials = list(try_faults(self._bench, (fault,)))
        except RegressError as error:
            pytest.exit(f"comm-regress: {error.text}", returncode=error.exit_status)
        self.trials += trials
        return trials

    def status_words(self, _report: pytest.CollectReport | pytest.TestReport) -> None:
        """Pytest's own words."""

    def set_exit_status(self, session: pytest.Session) -> None:
        """Pytest's own status: 1 where a fault was missed."""

    def summarise(self, reporter: pytest.TerminalReporter) -> None:
        """The table, and what it comes to."""
        if self.trials:
            reporter.write_sep("=", "comm-regress selftest")
            for text in table_lines(self.trials):
                reporter.write_line(text)
            reporter.write_line(f"comm-regress selftest: {verdict_line(self.trials)}",
                                **{"green" if all(trial.passed for trial in self.trials) else "red": True})
