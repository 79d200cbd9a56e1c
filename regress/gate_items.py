"""The pytest half of the gate that is loaded only when the gate runs: items, progress lines, the summary."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from regress.errors import EXIT_UNTRUSTED, EXIT_USAGE, RegressError
from regress.pytest_items import CaseFailed, collected
from regress.record import TimingMode, Verdict
from regress.result import CaseRow, GateOutcome
from regress.session import Gate, GateRequest, PlannedCase
from regress.session import open_gate as open_session_gate
from regress.terminal import (
    VERDICT_WORDS,
    explanation_lines,
    failure_headline,
    failure_text,
    summary_line,
    table_lines,
)

COLLECTOR = "comm-regress"

_MARKUP: Mapping[Verdict | None, dict[str, bool]] = {
    Verdict.REGRESSION: {"red": True, "bold": True},
    Verdict.INVALID: {"red": True},
    Verdict.INCONCLUSIVE: {"yellow": True},
    Verdict.NO_BASELINE: {"yellow": True},
    Verdict.IMPROVEMENT: {"green": True},
    Verdict.PASS: {},
    None: {},
}
_LETTERS = {Verdict.NO_BASELINE: "n", Verdict.IMPROVEMENT: "i", Verdict.PASS: "."}


class GateCollector(pytest.Collector):
    """The one parent of all cases; `comm-regress::<case>` are their node ids."""

    run: GateRun

    def collect(self) -> Iterator[pytest.Item]:
        """Every case of the plan."""
        for planned in self.run.gate.plan:
            # Whole, so that pytest takes it apart as it does an id that it remembers for --lf.
            nodeid = f"{self.nodeid}::{planned.case.id}"
            yield CaseItem.from_parent(self, name=planned.case.id, nodeid=nodeid, planned=planned, run=self.run)


class CaseItem(pytest.Item):
    """One case. It has been measured by the time it runs; running it reports what was found."""

    def __init__(self, *, planned: PlannedCase, run: GateRun, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.planned = planned
        self.gate_run = run
        case = planned.case
        for marker in ("comm_regress", "step" if case.timing is TimingMode.STEP else "collective", case.device):
            self.add_marker(marker)

    def _row(self) -> CaseRow | None:
        outcome = self.gate_run.outcome
        return None if outcome is None else next(
            (row for row in outcome.result.cases if row.case == self.planned.case.id), None)

    def setup(self) -> None:
        """A case that cannot run here is skipped on a desk and an error in CI; an invalid one is an error."""
        if self.planned.unfit is not None:
            if os.environ.get("CI"):
                text = f"{self.planned.unfit}; CI is set, so this is no skip"
                raise CaseFailed(f"{self.planned.case.id}: {text}", text)
            pytest.skip(self.planned.unfit)
        row = self._row()
        if row is None:
            raise CaseFailed(f"{self.planned.case.id}: not measured", "not measured")
        self.user_properties.append(("verdict", row.verdict.value))
        for metric in row.metrics:
            for name, value in (("now", metric.now), ("baseline", metric.baseline), ("change", metric.change)):
                if value is not None:
                    self.user_properties.append((f"{metric.metric}.{name}", value))
        if row.verdict is Verdict.INVALID:
            raise CaseFailed(self.gate_run.failure_text(row), failure_headline(row))

    def runtest(self) -> None:
        """Fails when the case regressed; is skipped, with the reason, when it stayed undecided."""
        row = self._row()
        if row is not None and row.verdict is Verdict.REGRESSION and self.gate_run.fails(row):
            raise CaseFailed(self.gate_run.failure_text(row), failure_headline(row))
        if row is not None and row.verdict is Verdict.INCONCLUSIVE:
            reasons = [metric.reason for metric in row.metrics if metric.verdict is Verdict.INCONCLUSIVE]
            pytest.skip(f"inconclusive: {reasons[0]}" if reasons else "inconclusive")

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the item comes from and its title."""
        return self.path, None, self.planned.case.id


class TerminalObserver:
    """Shows progress: a line at the start of each case; rewritten in place on a terminal, plain lines elsewhere.

    reporter: None where pytest runs without its terminal (`-p no:terminal`); nothing is shown then.
    """

    def __init__(self, reporter: pytest.TerminalReporter | None, quiet: bool) -> None:
        self._reporter = reporter
        self._quiet = quiet
        self._rewrites = reporter is not None and reporter.isatty and not os.environ.get("CI")
        self._last_progress = 0.0
        self._open_line = False

    def message(self, text: str) -> None:
        """Something the user should read once: waiting for a lock, a launch that failed."""
        if self._reporter is not None:
            self._reporter.write_line(f"\n{text}" if self._open_line else text)
            self._open_line = False

    def case_started(self, text: str) -> None:
        """A case begins: position, and time left."""
        if self._quiet or self._reporter is None:
            return
        if self._rewrites:
            self._reporter.rewrite(text, erase=True)
            self._open_line = True
        else:
            self._reporter.write_line(text)

    def progress(self, text: str) -> None:
        """How far inside a case; on a terminal only, and at most a few times a second."""
        now = time.monotonic()
        if self._reporter is not None and self._rewrites and not self._quiet and now - self._last_progress > 0.3:
            self._last_progress = now
            self._reporter.rewrite(text, erase=True)
            self._open_line = True


@dataclass(slots=True)
class GateRun:
    """One gate inside one pytest session. header: what is said of it before anything is measured."""

    gate: Gate
    header: list[str]
    outcome: GateOutcome | None = None
    stopped: RegressError | None = None
    reported_status: list[int] = field(default_factory=list)

    def collect(self, session: pytest.Session) -> list[pytest.Item]:
        """One item a case; arguments that are node ids of cases select them."""
        parent = GateCollector.from_parent(session, name=COLLECTOR, nodeid=COLLECTOR)
        parent.run = self
        return collected(parent, "case")

    @contextmanager
    def around(self, session: pytest.Session) -> Iterator[None]:
        """The items run after all of them have been measured."""
        self.measure(session)
        yield

    def measure(self, session: pytest.Session) -> None:
        """Measures the selected cases that can run; a fault of the whole gate ends the session with its status."""
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        quiet = session.config.getoption("verbose", 0) < 0  # pytest's terminal declares it
        chosen = [item.planned for item in session.items if isinstance(item, CaseItem) and item.planned.unfit is None]
        if not chosen:
            return
        try:
            self.outcome = self.gate.run([planned.case for planned in chosen], TerminalObserver(reporter, quiet))
        except RegressError as error:
            self.stopped = error
            pytest.exit(f"comm-regress: {error.text}", returncode=error.exit_status)
        except KeyboardInterrupt:
            self.outcome = self.gate.interrupted
            raise

    def fails(self, row: CaseRow) -> bool:
        """Whether a regressed case fails the build: not when its policy only warns or informs."""
        return any(metric.severity == "fail" for metric in row.metrics if metric.verdict is Verdict.REGRESSION)

    def failure_text(self, row: CaseRow) -> str:
        """The full report of one failing case."""
        changes = self.outcome.environment_changes if self.outcome is not None else ()
        return failure_text(row, changes)

    def status_words(self, report: pytest.CollectReport | pytest.TestReport,
                     ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """The short and the long word of a passed case; pytest's own for everything else."""
        if self.outcome is None or not isinstance(report, pytest.TestReport) or report.when != "call":
            return None
        verdict = dict(report.user_properties).get("verdict")
        if not report.passed or verdict is None:
            return None
        kind = Verdict(verdict)
        return "passed", _LETTERS.get(kind, "."), (VERDICT_WORDS[kind], dict(_MARKUP[kind]) or {"green": True})

    def set_exit_status(self, session: pytest.Session) -> None:
        """The gate's own status where pytest's would say too much (1 for an invalid case) or too little."""
        status = int(session.exitstatus)
        if status not in (0, 1):
            return
        # Where nothing could be measured, or all that was measured is well, an error is a case that cannot run here.
        measured = self.outcome.exit_status if self.outcome is not None else 0
        session.exitstatus = EXIT_UNTRUSTED if measured == 0 and status == 1 else measured

    def summarise(self, reporter: pytest.TerminalReporter) -> None:
        """Table, explanations, summary line, paths."""
        if self.outcome is None:
            return
        result = self.outcome.result
        reporter.write_sep("=", "comm-regress")
        for text, verdict in table_lines(result):
            reporter.write_line(text, **_MARKUP[verdict])
        for text in explanation_lines(result):
            reporter.write_line(text)
        for warning in result.warnings:
            reporter.write_line(f"warning: {warning}", yellow=True)
        for text in self.outcome.environment_changes:
            reporter.write_line(f"different since the baseline: {text}")
        for kind, path in result.artifacts.items():
            reporter.write_line(f"{kind}: {path}")
        reporter.write_line(f"comm-regress: {summary_line(result)} (status {self.outcome.exit_status})",
                            **_MARKUP[result.verdict])


def _path(root: Path, text: str | None) -> Path | None:
    return None if text is None else (root / text if not Path(text).is_absolute() else Path(text))


def open_gate(config: pytest.Config, options: Mapping[str, Any]) -> GateRun:
    """The gate as the options ask for it; a RegressError becomes one clean line and exit status 4."""
    here = config.invocation_params.dir
    thresholds = _path(here, options["config"])
    if thresholds is None and (config.rootpath / "thresholds.yaml").is_file():
        thresholds = config.rootpath / "thresholds.yaml"
    history = options["history"]
    if history is None:
        history = str(config.rootpath / ".comm-regress")
    elif "://" not in history:
        history = str(here / history)
    request = GateRequest(
        root=config.rootpath, config=thresholds, history=history, device=options["device"],
        launches=options["launches"], budget=options["budget"], trace=options["trace"], base=options["base"],
        accept=options["accept"], json=_path(here, options["json"]), html=_path(here, options["html"]),
        measure=not config.option.collectonly)
    try:
        gate = open_session_gate(request)
        return GateRun(gate, gate.header())
    except RegressError as error:
        if error.exit_status == EXIT_USAGE:
            raise pytest.UsageError(f"comm-regress: {error.text}") from None
        pytest.exit(f"comm-regress: {error.text}", returncode=error.exit_status)
