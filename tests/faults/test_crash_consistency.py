"""A gate, or a command, that dies at any operation on the history: each run is whole or absent, and nothing is lost.

`crash_driver` does it, with recorded launches: SIGKILL before each operation in turn ("kill"), a power cut that loses
what was not flushed ("power"), and a disk that takes nothing from there on ("full"). After each it reads every file,
lists the history, and runs the next gate, which must find its baseline.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STORING = ["open runs/.tmp", "write half of runs/.tmp", "fsync runs/.tmp", "rename runs/.tmp", "fsync folder runs/",
           "unlink runs/.tmp", "sql BEGIN index.sqlite/.sqlite"]
"""What storing a run is, up to the index."""


def searched(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """What the driver found at each point."""
    clean = {name: value for name, value in os.environ.items()
             if name != "CI" and not name.startswith(("GITHUB_", "GITLAB_", "PYTEST_", "COMM_REGRESS_"))}
    done = subprocess.run([sys.executable, "-m", "tests.faults.crash_driver", str(folder), *arguments], cwd=ROOT,
                          env=clean, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def nothing_is_lost(folder: Path, scenario: str, death: str) -> list[str]:
    """The operations that were died at; asserts that no death did harm."""
    points = searched(folder, scenario, death)
    harm = [f"{point['operation']} ({point['point']}): {point['fault']}" for point in points if point["fault"]]
    assert not harm, f"{len(harm)} of {len(points)} points\n" + "\n".join(harm)
    return [point["operation"] for point in points]


@pytest.mark.parametrize("death", ["kill", pytest.param("power", marks=pytest.mark.slow), "full"])
def test_a_gate_that_dies_at_any_operation_on_the_history(tmp_path: Path, death: str) -> None:
    operations = nothing_is_lost(tmp_path, "gate", death)
    place, storing = operations.index(STORING[0]), STORING[:2] if death == "full" else STORING
    assert operations[place:place + len(storing)] == storing
    assert "copy to traces/.gz" in operations
    assert operations.count("open runs/.tmp") == 2, "storing the run, and dropping the samples of an old one"
    assert "write half of spool/.tmp" in operations


@pytest.mark.slow
@pytest.mark.parametrize("death", ["kill", "power", "full"])
@pytest.mark.parametrize(("scenario", "operation"), [
    ("first gate", "mkdir accepted/"), ("prune", "open runs/.tmp"), ("import", "open runs/.tmp"),
    ("reindex", "open index.lock/.lock"), ("accept", "open accepted/.tmp")])
def test_any_command_that_dies_at_any_operation(tmp_path: Path, scenario: str, operation: str, death: str) -> None:
    assert operation in nothing_is_lost(tmp_path, scenario, death)


@pytest.mark.parametrize(("death", "planted"), [
    ("kill", "in place"), pytest.param("power", "unflushed", marks=pytest.mark.slow)])
def test_the_search_finds_a_planted_fault(tmp_path: Path, death: str, planted: str) -> None:
    *well, bad = searched(tmp_path, "gate", death, planted)
    assert [point["fault"] for point in well] == [""] * len(well)
    assert "msgspec.DecodeError" in bad["fault"], "half a run, read back"
