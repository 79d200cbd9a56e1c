"""The hook that runs before every job: forks, a busy machine and left-over shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.github.jobs import pull_event, workflow_run_event

HOOK = Path(__file__).parents[2] / "docker" / "job-started.sh"
IDLE = "0, NVIDIA H200, 4, Enabled, Disabled\n1, NVIDIA H200, 0, Enabled, Disabled\n"
PUSH = {"repository": {"full_name": "org/project"}, "ref": "refs/heads/main"}


def hook(folder: Path, event: dict[str, Any] | None, gpus: str | None = IDLE, **variables: str,
         ) -> subprocess.CompletedProcess[str]:
    programs, shared = folder / "bin", folder / "shm"
    programs.mkdir(exist_ok=True)
    shared.mkdir(exist_ok=True)
    if gpus is not None:
        (folder / "gpus").write_text(gpus)
    smi = programs / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncat {folder}/gpus\n")
    smi.chmod(0o755)
    path = folder / "event.json"
    if event is not None:
        path.write_text(json.dumps(event))
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "GITHUB_EVENT_PATH": str(path),
                   "REGRESS_SHM": str(shared), **variables}
    return subprocess.run(["bash", "-e", str(HOOK)], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("event", [PUSH, pull_event(), workflow_run_event()])
def test_the_repositorys_own_code_may_run(tmp_path: Path, event: dict[str, Any]) -> None:
    done = hook(tmp_path, event)
    assert done.returncode == 0, done.stdout
    assert "GPU 0: NVIDIA H200, persistence Enabled, MIG Disabled" in done.stdout


def deleted_fork() -> dict[str, Any]:
    event = pull_event(fork=True)
    event["pull_request"]["head"]["repo"] = None
    return event


@pytest.mark.parametrize("event", [pull_event(fork=True), workflow_run_event(fork=True), deleted_fork(), None])
def test_code_from_a_fork_or_of_unknown_origin_may_not(tmp_path: Path, event: dict[str, Any] | None) -> None:
    done = hook(tmp_path, event)
    assert done.returncode == 1
    assert done.stdout.startswith("::error title=This runner refused the job::code from a fork")


def test_a_throw_away_machine_may_allow_forks(tmp_path: Path) -> None:
    assert hook(tmp_path, pull_event(fork=True), REGRESS_ALLOW_FORKS="1").returncode == 0


def test_a_busy_gpu_ends_the_job(tmp_path: Path) -> None:
    done = hook(tmp_path, PUSH, "0, NVIDIA H200, 71234, Enabled, Disabled\n")
    assert done.returncode == 1
    assert "GPU 0 ( NVIDIA H200 ) has 71234 MiB in use before the job starts" in done.stdout


def test_a_gpu_that_does_not_answer_ends_the_job(tmp_path: Path) -> None:
    done = hook(tmp_path, PUSH, "0, NVIDIA H200, [Unknown Error], Enabled, Disabled\n")
    assert done.returncode == 1
    assert "does not tell its memory" in done.stdout


def test_only_old_left_overs_of_nccl_and_torch_are_removed(tmp_path: Path) -> None:
    shared = tmp_path / "shm"
    shared.mkdir()
    for name in ("nccl-old", "torch_old", "nccl-new", "other-old", "nccl-held"):
        (shared / name).write_text("x")
        if not name.endswith("new"):
            os.utime(shared / name, (time.time() - 7200,) * 2)
    with (shared / "nccl-held").open():
        assert hook(tmp_path, PUSH).returncode == 0
    assert {path.name for path in shared.iterdir()} == {"nccl-new", "other-old", "nccl-held"}
