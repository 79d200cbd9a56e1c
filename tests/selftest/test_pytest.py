"""`pytest --comm-regress --comm-regress-selftest`: one item a fault, and a status that says whether to trust it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

from regress.catalog import open_shelves
from regress.errors import MeasurementError
from regress.measuring import Observer
from regress.selftest.faults import FAULTS, INVALID, NOT_RED, RED, Cause, Fault
from regress.selftest.trials import Bench, FaultyLauncher
from regress.selftest_items import COLLECTOR
from tests.selftest.played import PlayedLauncher

pytestmark = pytest.mark.usefixtures("alone")
ALONE = Cause("the verdict alone")
FEW = (Fault("none", "the same code again", "", NOT_RED, cpu=ALONE, times=2),
       Fault("slow", "every step is slower", "ddp_step", RED, cpu=ALONE),
       Fault("wrong", "wrong values", "allreduce", INVALID, launches=1, cpu=Cause("values", words="wrong result")),
       Fault("p2p", "no direct way", "allreduce", RED, cuda=ALONE))
Play = Callable[..., pytest.RunResult]


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Before pytester looks: it forgets the modules that a run loads, and a variant that is loaded twice is two.

    So must the module be whose names the tests replace: it is imported above.
    """
    open_shelves()


@pytest.fixture
def play(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Runs pytest in this process with a few faults; `launcher` is what their ranks would do."""
    monkeypatch.setattr("regress.selftest_items.FAULTS", FEW)

    def run(launcher: PlayedLauncher, *arguments: str) -> pytest.RunResult:
        @contextmanager
        def bench(device: str, observer: Observer) -> Iterator[Bench]:
            yield Bench(pytester.path / "bench", device, observer, FaultyLauncher(launcher))

        (pytester.path / "bench").mkdir(exist_ok=True)
        monkeypatch.setattr("regress.selftest_items.open_bench", bench)
        return pytester.runpytest_inprocess(
            "-p", "no:cacheprovider", "--comm-regress", "--comm-regress-selftest", "--comm-regress-device=cpu",
            *arguments)

    return run


def good() -> PlayedLauncher:
    return PlayedLauncher(slower={"slow": 3.0}, wrong=("wrong",))


def lines_of(done: pytest.RunResult, start: str) -> list[str]:
    return [line for line in done.stdout.lines if line.startswith(start)]


def test_a_gate_that_works_passes_fault_by_fault(play: Play) -> None:
    done = play(good(), "-v", "-rs")
    assert done.ret == 0
    done.assert_outcomes(passed=3, skipped=1)
    done.stdout.fnmatch_lines(["comm-regress: selftest on cpu: *", "baseline 1/3", "slow: every step is slower"])
    assert lines_of(done, "SKIPPED") == [
        "SKIPPED [1] comm-regress-selftest::p2p: not on this machine: needs a GPU"]
    assert [line.split()[0] for line in lines_of(done, "none ")] == ["none", "none"], "both of its trials are rows"
    assert "comm-regress selftest: all 4 trials were judged as expected; 1 cannot be shown on this machine" in \
        done.stdout.lines


def test_a_missed_fault_fails_with_the_rows_note(play: Play, pytester: pytest.Pytester) -> None:
    done = play(PlayedLauncher(wrong=("wrong",)), "--junitxml=out.xml")
    assert done.ret == 1
    done.assert_outcomes(passed=2, failed=1, skipped=1)
    (summary,) = lines_of(done, "FAILED")
    assert summary.startswith("FAILED comm-regress-selftest::slow - step_seconds: ")
    assert "Traceback" not in done.stdout.str() and "selftest_items.py" not in done.stdout.str()
    assert [line.split()[-1] for line in lines_of(done, "slow ")] == ["MISSED", "MISSED"], "its failure and the table"
    assert lines_of(done, "comm-regress selftest:") == [
        "comm-regress selftest: do not trust the gate here: slow not judged as expected; "
        "1 cannot be shown on this machine"]
    suite = ElementTree.parse(pytester.path / "out.xml").getroot()[0]  # noqa: S314  pytest wrote it
    (failure,) = suite.iter("failure")
    assert failure.attrib["message"].startswith("step_seconds: ")
    (case,) = (case for case in suite.iter("testcase") if case.attrib["name"] == "slow")
    assert {item.attrib["name"]: item.attrib["value"] for item in case.iter("property")} == {
        "expected": "regression", "seen": "pass"}


def test_unchanged_code_that_is_red_fails(play: Play) -> None:
    launcher = good()
    launcher.slower = {"slow": 3.0, "none": 1.0}
    assert play(launcher, "-k", "none").ret == 0
    launcher.slower = {"none": 3.0}
    done = play(launcher, "-k", "none")  # the baseline is there already, and was measured at the plain speed
    assert done.ret == 1
    assert lines_of(done, "none ")[-1].endswith("FALSE ALARM")


@pytest.mark.parametrize("arguments", [("-k", "wrong"), ("comm-regress-selftest::wrong",)], ids=["k", "node id"])
def test_only_what_is_selected_is_tried(play: Play, arguments: tuple[str, ...]) -> None:
    launcher = good()
    done = play(launcher, *arguments)
    assert done.ret == 0
    done.assert_outcomes(passed=1, deselected=3 if arguments[0] == "-k" else 0)
    assert launcher.asked == ["wrong"]


def test_an_unknown_fault_names_those_there_are(play: Play) -> None:
    done = play(good(), "comm-regress-selftest::gremlins")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: no fault 'comm-regress-selftest::gremlins' here; faults on this machine: "
                               "comm-regress-selftest::none, *"])


def test_collecting_tries_nothing(play: Play) -> None:
    launcher = good()
    done = play(launcher, "--collect-only", "-q")
    assert done.ret == 0
    assert lines_of(done, "comm-regress-selftest::") == [f"comm-regress-selftest::{fault.name}" for fault in FEW]
    assert launcher.asked == []


def test_a_fault_of_the_whole_gate_is_its_status_and_no_verdict(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> Iterator[None]:
        raise MeasurementError("the devices of this host: in use by process 7", next_step="run it again")

    monkeypatch.setattr("regress.selftest_items.try_faults", busy)
    done = play(good())
    assert done.ret == 10
    done.stdout.fnmatch_lines(["*comm-regress: the devices of this host: in use by process 7; run it again*"])
    assert lines_of(done, "comm-regress selftest:") == []


@pytest.mark.parametrize(("arguments", "words"), [
    (["--comm-regress-selftest"],
     "--comm-regress-selftest without --comm-regress measures nothing; add --comm-regress"),
    (["--comm-regress", "--comm-regress-selftest", "--comm-regress-launches=2"],
     "--comm-regress-launches with --comm-regress-selftest: its thresholds, history and launches are its own; "
     "accepted beside it: --comm-regress-device"),
])
def test_what_means_nothing_is_refused(pytester: pytest.Pytester, arguments: list[str], words: str) -> None:
    done = pytester.runpytest_inprocess(*arguments)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {words}" in done.stderr.lines


def test_the_items_are_the_faults_of_the_command(pytester: pytest.Pytester) -> None:
    done = pytester.runpytest_inprocess("--comm-regress", "--comm-regress-selftest", "--collect-only", "-q")
    assert lines_of(done, f"{COLLECTOR}::") == [f"{COLLECTOR}::{fault.name}" for fault in FAULTS]


def test_real_ranks_with_a_wrong_value(tmp_path: Path, outside: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--comm-regress", "--comm-regress-selftest",
         "--comm-regress-device=cpu", "comm-regress-selftest::wrong-value"], cwd=tmp_path, capture_output=True,
        text=True, check=False, env=outside)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "wrong-value: rank 1 adds a wrong value to an all-reduce" in lines, "said while it runs, not captured"
    assert "comm-regress selftest: all 1 trials were judged as expected" in lines
    assert [*tmp_path.iterdir(), *Path(outside["TMPDIR"]).iterdir()] == [], "neither a history nor a folder is left"
