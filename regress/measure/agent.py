"""The agent: one process per gate that imports torch once and starts the ranks of each launch by torchrun's engine.

`torchrun` itself imports torch (more than a second) before it starts a rank, for every launch anew. The agent pays
that once; each launch is still fresh rank processes, a fresh rendezvous and a fresh port, through
`torch.distributed.launcher.api.elastic_launch`, which is what torchrun's command line calls.

Requests come as JSON lines through a named pipe. The launcher holds its other end open, so the end of that file means
that the launcher is gone, and then nothing of the launch may survive: no process, and none of the temporary folders
that the launcher had entrusted to the agent. Answers are files.
"""

from __future__ import annotations

import inspect
import os
import queue
import sys
import threading
from pathlib import Path

import msgspec

from regress.measure.guard import AGENT_PID, LAUNCH_MARK
from regress.measure.processes import end_marked

UNFIT_STATUS = 78
"""Exit status of an agent that has no torch to launch with (EX_CONFIG of sysexits.h)."""


_REMOVE = "import shutil, sys; [shutil.rmtree(folder, ignore_errors=True) for folder in sys.argv[1:]]"


def entrusted_file(folder: Path) -> Path:
    """Beside the agent's pipe: folders to remove when the launcher is killed before it can, one a line."""
    return folder / "entrusted"


class Request(msgspec.Struct, frozen=True):
    """One launch. environment: overrides of the agent's own, None to unset. answer: file to leave an Answer in."""

    mark: str
    world_size: int
    command: tuple[str, ...]
    folder: str
    answer: str
    environment: dict[str, str | None]


class RankFailure(msgspec.Struct, frozen=True):
    """A rank that did not exit with 0. exit_code: as subprocess has it, negative for a signal."""

    rank: int
    exit_code: int


class Answer(msgspec.Struct, frozen=True):
    """How a launch ended: failures by rank, or what kept the engine from running it."""

    failures: tuple[RankFailure, ...] = ()
    error: str | None = None


def _read_requests(pipe: Path, requests: queue.Queue[Request], gate_mark: str) -> None:
    """Feeds the queue; ends and removes everything when the launcher at the other end of the pipe is gone."""
    # A plain open would wait for ever for a launcher that was killed before this process came up.
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "rb") as stream:
        for line in stream:
            requests.put(msgspec.json.decode(line, type=Request))
    end_marked(gate_mark, grace_seconds=1.0)
    try:
        # In place of this process, whose main thread could still write into a folder, or end it half way.
        folders = entrusted_file(pipe.parent).read_text().splitlines()
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", _REMOVE, *folders])  # noqa: S606  no shell meant
    except OSError:
        os._exit(1)


def _run(request: Request) -> Answer:
    """One launch through torchrun's engine, in this (the main) thread: its signal handling needs that."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    command = list(request.command)
    # torch 2.4 tells ranks to meet at the host's full name, which need not resolve, whatever local_addr says.
    if "local_addr" not in inspect.signature(RendezvousStoreInfo.build).parameters:
        command = ["/usr/bin/env", "MASTER_ADDR=127.0.0.1", *command]
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=request.world_size, run_id=request.mark.replace("/", "-"),
        rdzv_backend="c10d", rdzv_endpoint="localhost:0", local_addr="127.0.0.1", max_restarts=0,
        monitor_interval=0.05, logs_specs=DefaultLogsSpecs(log_dir=str(Path(request.folder, "logs")),
                                                           redirects=Std.ALL))
    try:
        elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as failed:
        return Answer(tuple(RankFailure(rank, failure.exitcode) for rank, failure in failed.failures.items()))
    return Answer()


def _serve(request: Request) -> None:
    """Runs one request in its folder and with its environment, and leaves the answer."""
    changed: dict[str, str | None] = {**request.environment, LAUNCH_MARK: request.mark, AGENT_PID: str(os.getpid())}
    before = {name: os.environ.get(name) for name in changed}
    _set_environment(changed)
    os.chdir(request.folder)
    try:
        answer = _run(request)
    except Exception as error:  # the engine's own failure is an answer too: the launcher must not wait for a deadline
        answer = Answer(error=f"{type(error).__name__}: {error}")
    finally:
        _set_environment(before)
    unfinished = Path(request.answer + ".tmp")
    unfinished.write_bytes(msgspec.json.encode(answer))
    unfinished.replace(request.answer)


def _set_environment(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def main() -> None:
    """Serves launches: `PIPE GATE_MARK [once]` on the command line; with `once` it ends after the first."""
    pipe, gate_mark, *once = sys.argv[1:]
    requests: queue.Queue[Request] = queue.Queue()
    threading.Thread(target=_read_requests, args=(Path(pipe), requests, gate_mark), daemon=True).start()
    try:
        import torch.distributed.launcher.api  # noqa: F401  the seconds this takes are the reason for the agent
    except ImportError as error:
        sys.stderr.write(f"torch's launcher cannot be imported by {sys.executable}: {error}\n")
        raise SystemExit(UNFIT_STATUS) from error
    while True:
        _serve(requests.get())
        if once:
            return


def encode(message: Request) -> bytes:
    """A request as the pipe carries it: one line."""
    return msgspec.json.encode(message) + b"\n"
