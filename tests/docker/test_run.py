"""docker/run.sh against a docker that records its arguments, and the Dockerfile under a linter."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(folder: Path, *words: str, **variables: str) -> list[str]:
    """The arguments that docker was called with, in a repository with a space in its name."""
    fake, repository = folder / "docker", folder / "my repository"
    fake.write_text(f"#!/bin/sh\nfor word in \"$@\"; do printf '%s\\0' \"$word\"; done > {folder}/called\n")
    fake.chmod(0o755)
    repository.mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "REGRESS_DOCKER": str(fake), **variables}
    subprocess.run([str(ROOT / "docker" / "run.sh"), *words], cwd=repository, env=environment, check=True,
                   stdin=subprocess.DEVNULL, capture_output=True)
    return (folder / "called").read_text().split("\0")[:-1]


def pairs(arguments: list[str]) -> list[tuple[str, str]]:
    return list(itertools.pairwise(arguments))


def test_the_flags_that_matter(tmp_path: Path) -> None:
    arguments = run(tmp_path)
    assert arguments[0] == "run"
    assert {"--rm", "--init", "--ipc=host"} <= set(arguments)
    for pair in (("--gpus", "all"), ("--ulimit", "memlock=-1"), ("--cap-drop", "ALL"),
                 ("--security-opt", "no-new-privileges"), ("--user", f"{os.getuid()}:{os.getgid()}"),
                 ("--volume", f"{tmp_path}/my repository:/work"),
                 ("--volume", f"{tmp_path}/.local/state/comm-regress/my repository:/history")):
        assert pair in pairs(arguments)
    assert arguments[-1] == "comm-regress"
    assert (tmp_path / ".local/state/comm-regress/my repository").is_dir()


def test_no_capability_unless_gpu_metrics_are_asked_for(tmp_path: Path) -> None:
    assert "--cap-add" not in run(tmp_path)
    assert ("--cap-add", "SYS_ADMIN") in pairs(run(tmp_path, REGRESS_GPU_METRICS="1"))
    assert "--privileged" not in run(tmp_path, REGRESS_GPU_METRICS="1")


def test_shared_memory_of_its_own_replaces_the_hosts(tmp_path: Path) -> None:
    arguments = run(tmp_path, REGRESS_SHM_SIZE="8g")
    assert ("--shm-size", "8g") in pairs(arguments)
    assert "--ipc=host" not in arguments


def test_another_command_and_image_keep_their_words(tmp_path: Path) -> None:
    arguments = run(tmp_path, "pytest", "--comm-regress", "-k", "a b", REGRESS_IMAGE="mine:1", REGRESS_GPUS="device=0")
    assert arguments[-5:] == ["mine:1", "pytest", "--comm-regress", "-k", "a b"]
    assert ("--gpus", "device=0") in pairs(arguments)


def test_the_commit_goes_in_and_secrets_do_not(tmp_path: Path) -> None:
    arguments = run(tmp_path, GITHUB_SHA="a" * 40, CI="true", NCCL_DEBUG="INFO", GITHUB_TOKEN="secret",
                    AWS_SECRET_ACCESS_KEY="secret")
    names = {value for flag, value in pairs(arguments) if flag == "--env"}
    assert names == {"HOME=/tmp", "GITHUB_SHA", "CI", "NCCL_DEBUG"}


def linter(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{name} is not installed")
    return found


def test_hadolint() -> None:
    checked = subprocess.run([linter("hadolint"), str(ROOT / "docker" / "Dockerfile")], capture_output=True, text=True,
                             check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", ["run.sh", "job-started.sh"])
def test_shellcheck(name: str) -> None:
    checked = subprocess.run([linter("shellcheck"), str(ROOT / "docker" / name)], capture_output=True, text=True,
                             check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_image_is_pinned_and_does_not_run_as_root() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text()
    assert "--checksum=sha256:" in text
    assert "torch==${TORCH}" in text
    assert text.rstrip().endswith("FROM gate")
    for stage in ("gate", "profiling"):
        body = text.split(f" AS {stage}\n", 1)[1].split("\nFROM ", 1)[0]
        assert [line for line in body.splitlines() if line.startswith("USER ")][-1] == "USER ${UID}"
