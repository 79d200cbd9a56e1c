"""`python -m regress` is the `regress` command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from regress.cli import main


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "regress", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("comm-regress ")
    wrong = subprocess.run([sys.executable, "-m", "regress", "nonsense"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 4
    assert "usage: regress" in wrong.stderr


def test_output_that_cannot_be_written_is_no_regression() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "regress", "schema", "run"], stdout=full, stderr=subprocess.PIPE,
                              text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "regress schema: No space left on device\n")


@pytest.mark.parametrize("both", [False, True])
def test_a_reader_that_has_had_enough_is_no_fault(both: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "regress", "schema", "run"], stdout=writing,
                          stderr=writing if both else subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, None if both else "")


def test_a_gate_whose_output_goes_nowhere_ends_as_one_without_an_answer(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "regress", "run", "--list"], stdout=writing, stderr=writing,
                          cwd=tmp_path, check=False)
    os.close(writing)
    assert done.returncode == 3


def test_a_fault_of_our_own_is_no_regression(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
                                             ) -> None:
    def broken(_arguments: object) -> int:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("regress.commands.schema.run", broken)
    assert main(["schema", "run"]) == 3
    assert "ZeroDivisionError: planted" in capfd.readouterr().err
