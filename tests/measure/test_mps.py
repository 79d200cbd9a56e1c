from __future__ import annotations

import time
from pathlib import Path

import pytest

from regress.measure import mps
from regress.measure.mps import own_mps
from regress.measure.processes import alive

CONTROL = """#!/bin/sh
# A daemon as far as files go: `-d` leaves a process id, commands come on standard input.
echo "$* $CUDA_MPS_PIPE_DIRECTORY" >> "$JOURNAL"
if [ "$1" = "-d" ]; then
    [ -n "$REFUSES" ] && { echo "Cannot find MPS control daemon process"; exit 1; }
    sleep 300 </dev/null >/dev/null 2>&1 &
    echo $! > "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
    touch "$CUDA_MPS_PIPE_DIRECTORY/control"
    exit 0
fi
read command
echo "$command" >> "$JOURNAL"
[ -f "$CUDA_MPS_PIPE_DIRECTORY/control" ] || exit 1
[ -n "$STUBBORN" ] && exit 0
[ "${command%% *}" = quit ] && kill $(cat "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid")
exit 0
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    program = tmp_path / "bin" / mps.PROGRAM
    program.parent.mkdir()
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setattr(mps, "_DEFAULT_PIPE", tmp_path / "nobody")
    monkeypatch.setattr(mps, "PLACES", ())
    monkeypatch.setattr(mps, "QUIT_SECONDS", 0.5)
    return {"PATH": f"{program.parent}:/usr/bin:/bin", "JOURNAL": str(tmp_path / "journal")}


def test_a_service_of_our_own_lives_for_the_block(settings: dict[str, str]) -> None:
    with own_mps(environment=settings) as session:
        assert session.running
        assert session.reason is None
        assert set(session.environment) == {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"}
        pipe = Path(session.environment["CUDA_MPS_PIPE_DIRECTORY"])
        pid = int((pipe / f"{mps.PROGRAM}.pid").read_text())
        assert alive(pid)
    assert not alive(pid)
    assert not pipe.exists()
    assert Path(settings["JOURNAL"]).read_text().split("\n")[-2] == "quit -t 1"


def test_a_daemon_that_will_not_quit_is_killed(settings: dict[str, str]) -> None:
    with own_mps(environment={**settings, "STUBBORN": "1"}) as session:
        pipe = Path(session.environment["CUDA_MPS_PIPE_DIRECTORY"])
        pid = int((pipe / f"{mps.PROGRAM}.pid").read_text())
        assert alive(pid)
    deadline = time.monotonic() + 10  # the kernel ends it when it next would run, which a busy machine delays
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(pid)


def test_a_service_that_does_not_start_is_a_reason(settings: dict[str, str]) -> None:
    with own_mps(environment={**settings, "REFUSES": "1"}) as session:
        assert not session.running
        assert session.environment == {}
        assert session.reason is not None
        assert "did not start: Cannot find MPS control daemon process" in session.reason


def test_without_the_program_the_gpu_time_slices(settings: dict[str, str], tmp_path: Path) -> None:
    with own_mps(environment={**settings, "PATH": str(tmp_path)}) as session:
        assert not session.running
        assert session.reason is not None
        assert "is not installed" in session.reason


def test_somebody_elses_daemon_is_used_and_never_ended(settings: dict[str, str], tmp_path: Path) -> None:
    pipe = tmp_path / "theirs"
    pipe.mkdir()
    (pipe / "control").touch()
    with own_mps(environment={**settings, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}) as session:
        assert session.running
        assert session.environment == {}
    journal = Path(settings["JOURNAL"]).read_text()
    assert "quit" not in journal
    assert "-d" not in journal


def test_what_a_dead_daemon_left_is_no_service(settings: dict[str, str], tmp_path: Path) -> None:
    pipe = tmp_path / "theirs"
    pipe.mkdir()
    (pipe / "control").mkdir()  # there, and nobody answers
    with own_mps(environment={**settings, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}) as session:
        assert session.running
        assert session.environment["CUDA_MPS_PIPE_DIRECTORY"] != str(pipe)
