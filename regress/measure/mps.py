"""CUDA's multi-process service for the gate's own lifetime, so that two ranks on one GPU run side by side.

Only a daemon that this module started is ever ended; somebody else's is used as it is, or left alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from regress.measure.processes import alive, send

PROGRAM = "nvidia-cuda-mps-control"
PLACES = ("/usr/local/nvidia/bin", "/usr/bin", "/usr/local/cuda/bin")
PIPE_VARIABLE, LOG_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_DEFAULT_PIPE = Path("/tmp/nvidia-mps")  # noqa: S108  NVIDIA's documented default
_COMMAND_SECONDS = 15
QUIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class MpsSession:
    """What ranks need to use the service. running: whether there is one, ours or another's.

    environment: variables for the ranks, empty without a service of ours. reason: why there is none, or whose it is.
    """

    running: bool
    environment: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None


def find_program(environment: Mapping[str, str]) -> str | None:
    """The control program on PATH, or where container toolkits put it."""
    path = os.pathsep.join([environment.get("PATH", ""), *PLACES])
    return shutil.which(PROGRAM, path=path)


def foreign_service(environment: Mapping[str, str], program: str | None) -> Path | None:
    """The pipe folder of a living daemon that somebody else runs for processes like ours, or None.

    A daemon that was killed leaves its folder behind, so it is asked for its servers, which changes nothing.
    """
    folder = Path(environment.get(PIPE_VARIABLE) or _DEFAULT_PIPE)
    if not (folder / "control").exists():
        return None
    dead = program is not None and _command([program], {**environment, PIPE_VARIABLE: str(folder)}, "get_server_list\n")
    return None if dead else folder


@contextmanager
def own_mps(*, mark: Mapping[str, str] | None = None, entrust: Callable[[Path], None] = lambda _: None,
            environment: Mapping[str, str] | None = None) -> Iterator[MpsSession]:
    """Runs a service for the block, with pipe and log folders of its own; yields why not where it cannot.

    mark: further variables for the daemon, by which the launcher's agent finds and ends it should the gate be killed
    (`TorchrunLauncher.mark`); entrust: called with the service's folder for the same (`TorchrunLauncher.entrust`).
    environment: os.environ.
    """
    known = dict(os.environ if environment is None else environment)
    program = find_program(known)
    foreign = foreign_service(known, program)
    if foreign is not None:
        yield MpsSession(True, reason=f"the service of another user at {foreign} is used and left running")
        return
    if program is None:
        yield MpsSession(False, reason=f"{PROGRAM} is not installed: without it the GPU time-slices between the ranks")
        return
    # Unix socket names are short: a folder directly below the temporary one, not in the gate's scratch.
    folder = Path(tempfile.mkdtemp(prefix="crmps-"))
    entrust(folder)
    folders = {PIPE_VARIABLE: str(folder / "pipe"), LOG_VARIABLE: str(folder / "log")}
    for path in folders.values():
        Path(path).mkdir()
    settings = {**known, **(mark or {}), **folders}
    try:
        problem = _command([program, "-d"], settings) or _command([program], settings, "get_server_list\n")
        if problem is None:
            yield MpsSession(True, folders)
        else:
            yield MpsSession(False, reason=f"{PROGRAM} did not start: {problem}")
    finally:
        _end(program, settings, folder)


def _command(command: list[str], settings: Mapping[str, str], text: str = "") -> str | None:
    """Runs the control program; what went wrong, or None. Its output goes to a file: the daemon keeps it open."""
    with tempfile.TemporaryFile("w+") as output:
        try:
            done = subprocess.run(command, input=text, stdout=output, stderr=subprocess.STDOUT, text=True,
                                  env=dict(settings), timeout=_COMMAND_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        output.seek(0)
        said = output.read().strip()
    return None if done.returncode == 0 else said or f"exit status {done.returncode}"


def _end(program: str, settings: Mapping[str, str], folder: Path) -> None:
    """Asks our daemon to quit, and kills it by the id in its own pipe folder where it does not."""
    pid_file = folder / "pipe" / f"{PROGRAM}.pid"
    pid = _pid(pid_file)
    _command([program], settings, "quit -t 1\n")
    deadline = time.monotonic() + QUIT_SECONDS
    while pid is not None and alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    if pid is not None and alive(pid):
        send(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _pid(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
