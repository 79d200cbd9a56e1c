"""The command: its table, its JSON, its status; and the injection in real ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regress.cli import main
from regress.record import Verdict
from regress.selftest.faults import FAULTS, Seen
from regress.selftest.table import table_lines, verdict_line
from regress.selftest.trials import INJECT, Trial, loaded

FAULT = {fault.name: fault for fault in FAULTS}


def test_real_ranks_with_a_wrong_value_and_one_that_is_killed(
        tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Real gloo ranks: both faults must be invalid, whatever else this host does meanwhile."""
    assert main(["selftest", "--device", "cpu", "--only", "wrong-value", "--only", "rank-killed", "--json"]) == 0
    out, err = capfdbinary.readouterr()
    said = json.loads(out)
    assert (said["device"], said["exit_status"]) == ("cpu", 0)
    wrong, killed = said["trials"]
    assert wrong["fault"] == "wrong-value"
    assert wrong["seen"] == killed["seen"] == "invalid"
    assert "differ from the only right" in wrong["seen_cause"] or "element 3" in wrong["seen_cause"]
    assert "SIGKILL" in killed["seen_cause"]
    assert b"Error in sitecustomize" not in err
    assert not (tmp_path / ".comm-regress").exists(), "the user's history is not touched"


def test_nothing_is_left_of_a_selftest_that_is_killed(outside: dict[str, str]) -> None:
    temporary, deadline = Path(outside["TMPDIR"]), time.monotonic() + 120
    with subprocess.Popen([sys.executable, "-m", "regress", "selftest", "--device", "cpu", "--only", "hang"],
                          stderr=subprocess.DEVNULL, env=outside) as process:
        while not list(temporary.glob("comm-regress-*/launch*")):
            assert process.poll() is None
            assert time.monotonic() < deadline, "no launch"
            time.sleep(0.05)
        process.kill()
    while left := list(temporary.iterdir()):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_fault_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--only", "gremlins"]) == 4
    assert "--only: no fault 'gremlins'; accepted: none, sleep-one-rank" in capsys.readouterr().err


def test_the_table_says_what_was_missed_and_what_cannot_be_shown() -> None:
    trials = (Trial(FAULT["none"], "none", Seen(Verdict.PASS, None, True), 3.0),
              Trial(FAULT["hang"], "where rank 1 hangs", Seen(Verdict.PASS, None, False), 9.0, "p25 as before"),
              Trial(FAULT["p2p-off"], "another transport", None, 0.0, "not on this machine: needs a GPU"))
    lines = table_lines(trials)
    assert lines[0].split() == ["fault", "expected", "cause", "seen", "seconds"]
    assert lines[1].split() == ["none", "not", "red", "none", "pass", "3.0", "ok"]
    assert lines[2].endswith("MISSED")
    assert lines[3] == "    p25 as before"
    assert lines[5] == "    not on this machine: needs a GPU"
    assert verdict_line(trials) == ("do not trust the gate here: hang not judged as expected; "
                                    "1 cannot be shown on this machine")
    assert verdict_line(trials[:1]) == "all 1 trials were judged as expected"


def test_the_sitecustomize_that_was_there_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    for fault, said in (("sleep-all-ranks", "mine\n"), ("none", "mine\n")):
        done = subprocess.run([sys.executable, "-c", "pass"], capture_output=True, text=True, check=True, env={
            "PYTHONPATH": f"{INJECT}:{tmp_path}", "RANK": "0", "REGRESS_SELFTEST_FAULT": fault})
        assert (done.stdout, done.stderr) == (said, "")


def test_without_another_one_nothing_is_said(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-S", "-c", "import sitecustomize"], capture_output=True, text=True,
                          check=True, cwd=tmp_path, env={"PYTHONPATH": str(INJECT), "RANK": "1",
                                                         "REGRESS_SELFTEST_FAULT": "hang"})
    assert (done.stdout, done.stderr) == ("", "")


def test_a_load_is_gone_when_its_trial_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regress.selftest.trials.LOADS_PER_CORE", 1)
    monkeypatch.setattr("regress.selftest.trials.allowed_cores", lambda: 1)
    started: list[subprocess.Popen[bytes]] = []
    plain = subprocess.Popen

    def popen(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        started.append(plain(*arguments, **options))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr("regress.selftest.trials.subprocess.Popen", popen)
    with loaded("cpu"):
        assert [process.poll() for process in started] == [None]
    assert [process.returncode for process in started] == [-9]
