"""What users of pytest have in their settings and environments: strict warnings, last-failed, odd encodings."""

from __future__ import annotations

import os
import sys
from typing import cast

import msgspec
import pytest

import regress.measure.ranks
from regress.errors import EXIT_REGRESSION, EXIT_USAGE
from regress.gate_items import TerminalObserver
from tests.acceptance import stage
from tests.acceptance.conftest import ROOT, Theatre
from tests.acceptance.recordings import ALLREDUCE


def test_warnings_may_be_errors(theatre: Theatre) -> None:
    (theatre.folder / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\naddopts = --strict-markers --strict-config\nxfail_strict = true\n")
    assert theatre.process("--comm-regress", "-q").ret == 0


def test_the_last_failed_case_can_be_run_again(theatre: Theatre) -> None:
    theatre.baseline()
    theatre.play({ALLREDUCE: 1.6})
    assert theatre.gate(cache=True).ret == EXIT_REGRESSION
    done = theatre.gate("--lf", cache=True)
    assert done.ret == EXIT_REGRESSION
    assert set(theatre.runs()[-1].verdicts) == {ALLREDUCE.id}
    theatre.play()
    assert theatre.gate("--lf", cache=True).ret == 0


def test_the_number_of_launches_can_be_chosen(theatre: Theatre) -> None:
    theatre.gate("--comm-regress-launches=5")
    assert len(theatre.runs()[0].launches) == 5


def test_without_torch_the_gate_says_how_to_get_it(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "two_ranks", regress.measure.ranks.plan_ranks)
    monkeypatch.setattr(regress.measure.ranks, "package_folder", lambda _name: None)
    done = theatre.gate()
    assert done.ret == EXIT_USAGE
    assert [line for line in done.stderr.lines if line] == [
        "ERROR: comm-regress: PyTorch is not installed; accepted: PyTorch 2.3 or newer with distributed; install it: "
        "pip install torch"]


def regress_commands(theatre: Theatre, *commands: str) -> pytest.RunResult:
    """`regress COMMAND` for each of the commands, one after the other in one process whose terminal is ASCII."""
    theatre.monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    theatre.monkeypatch.setenv("PYTHONPATH", str(ROOT))
    theatre.monkeypatch.setenv(stage.VARIABLE, msgspec.json.encode(theatre.scenario).decode())
    program = ("import sys, tests.acceptance.stage\nfrom regress.cli import main\n"
               "sys.exit(max(main(command.split()) for command in sys.argv[1:]))")
    done = theatre.pytester.run(sys.executable, "-c", program, *commands)
    assert done.ret == 0, done.stderr.str()
    return done


def test_a_terminal_that_cannot_show_every_sign_loses_the_sign_only(theatre: Theatre) -> None:
    theatre.baseline()
    newest = theatre.runs()[-1].run_id
    done = regress_commands(theatre, "run", f"history show {newest}", "show")
    done.stdout.fnmatch_lines(["*allreduce_seconds * \\xb5s *", "comm-regress: 3 unchanged (status 0)"])


def test_json_is_utf_8_whatever_the_terminal(theatre: Theatre) -> None:
    theatre.baseline()
    before, now = (run.run_id for run in theatre.runs()[-2:])
    for command in (f"compare {before} {now} --json", f"history show {now} --json"):
        assert "µs against" in regress_commands(theatre, command).stdout.str()


class Terminal:
    """What is asked of pytest's terminal reporter."""

    def __init__(self, isatty: bool) -> None:
        self.isatty, self.written = isatty, list[str]()

    def write_line(self, text: str) -> None:
        self.written.append(f"{text}\n")

    def rewrite(self, text: str, **settings: bool) -> None:
        assert settings == {"erase": True}
        self.written.append(f"\r{text}")


@pytest.mark.parametrize(("isatty", "ci", "expected"), [
    (True, False, ["\r[1/2] a", "\r60 %", "\n5 fresh launches\n", "\r[2/2] b"]),
    (True, True, ["[1/2] a\n", "5 fresh launches\n", "[2/2] b\n"]),
    (False, False, ["[1/2] a\n", "5 fresh launches\n", "[2/2] b\n"])], ids=["terminal", "terminal of CI", "file"])
def test_progress_rewrites_its_line_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, isatty: bool, ci: bool,
                                                       expected: list[str]) -> None:
    monkeypatch.delenv("CI", raising=False)
    if ci:
        monkeypatch.setitem(os.environ, "CI", "true")
    terminal = Terminal(isatty)
    observer = TerminalObserver(cast(pytest.TerminalReporter, terminal), quiet=False)
    observer.case_started("[1/2] a")
    observer.progress("60 %")
    observer.progress("61 %: too soon after the last to be shown")
    observer.message("5 fresh launches")
    observer.case_started("[2/2] b")
    assert terminal.written == expected


def test_quiet_shows_messages_only() -> None:
    terminal = Terminal(isatty=True)
    observer = TerminalObserver(cast(pytest.TerminalReporter, terminal), quiet=True)
    observer.case_started("[1/2] a")
    observer.progress("60 %")
    observer.message("waiting for a lock")
    assert terminal.written == ["waiting for a lock\n"]
