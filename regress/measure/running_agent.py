"""The launcher's end of an agent: starting its process, handing it a request, ending it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from regress.errors import EnvironmentUnfitError, MeasurementError
from regress.measure.agent import UNFIT_STATUS, Request, encode, entrusted_file
from regress.measure.failure import exit_words, tail
from regress.measure.guard import LAUNCH_MARK, boot_command


@dataclass(slots=True)
class RunningAgent:
    """An agent process (or the command wrapped around it), the pipe its requests go through, and its output."""

    process: subprocess.Popen[bytes]
    pipe: IO[bytes]
    output: Path

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self.process.poll() is None

    def hand(self, request: Request) -> None:
        """Gives the agent a launch to run; it answers with a file."""
        self.pipe.write(encode(request))

    def entrust(self, folder: Path) -> None:
        """Has the agent remove that folder, should this process be killed before it does so itself."""
        _entrust(self.output.parent, [folder])

    def stop(self) -> None:
        """Kills it: an idle agent holds nothing, and the ranks of a busy one die with it."""
        self.process.kill()
        self.process.wait()
        self.pipe.close()

    def death_words(self) -> str:
        """Why there is no answer although the process has ended. EnvironmentUnfitError where it has no torch."""
        last = tail(self.output.read_text(errors="replace"))
        if self.process.returncode == UNFIT_STATUS:
            raise EnvironmentUnfitError(last.splitlines()[-1], accepted="PyTorch with distributed",
                                        next_step="install an official build for this Python: pip install torch")
        return (f"the launching process {exit_words(self.process.returncode)} before the ranks had ended"
                f"\nlast lines of its output:\n{last}")


def _entrust(agent: Path, folders: Iterable[Path]) -> None:
    with entrusted_file(agent).open("a", encoding="utf-8") as stream:
        stream.writelines(f"{folder.absolute()}\n" for folder in folders)


def absolute_path_list(paths: str, folder: Path) -> str:
    """A PYTHONPATH that means from any folder what it means from this one: ranks run in folders of their own."""
    return os.pathsep.join(str(folder / path) for path in paths.split(os.pathsep)) if paths else ""


def _absolute_program(program: str) -> str:
    return str(Path.cwd() / program) if os.sep in program else program


def start_agent(python: str, folder: Path, *, gate: str, mark: str, prefix: tuple[str, ...] = (),
                environment: Mapping[str, str] | None = None, entrusted: Iterable[Path] = ()) -> RunningAgent:
    """Starts an agent with its files in `folder`; under a wrapping command it serves one launch and ends.

    gate: the mark that everything of this gate begins with; mark: this agent's own. entrusted: folders that the agent
    removes when this process is killed before it does so itself. The agent has a session of its own, so that Ctrl-C
    reaches the gate alone, which then ends the ranks in order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pipe_path, output = folder / "requests", folder / "output.log"
    pipe_path.unlink(missing_ok=True)
    os.mkfifo(pipe_path, 0o600)
    _entrust(folder, entrusted)
    command = boot_command(_absolute_program(python), "regress.measure.agent", str(pipe_path), gate,
                           *(["once"] if prefix else []))
    wrapping = [_absolute_program(prefix[0]), *prefix[1:]] if prefix else []
    # Opened for reading as well, so that opening does not wait for an agent that may never come up.
    pipe = os.fdopen(os.open(pipe_path, os.O_RDWR), "wb", buffering=0)
    # Peers of a rank that died get TERM, and KILL after this long (torch's default is 30 s; older releases ignore it)
    variables = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5", **os.environ, **(environment or {}), LAUNCH_MARK: mark}
    if "PYTHONPATH" in variables:
        variables["PYTHONPATH"] = absolute_path_list(variables["PYTHONPATH"], Path.cwd())
    try:
        with output.open("wb") as log:
            process = subprocess.Popen([*wrapping, *command], cwd=folder, stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=subprocess.STDOUT, start_new_session=True, env=variables)
    except OSError as error:
        pipe.close()
        raise MeasurementError(f"cannot run {(*prefix, *command)[0]!r}: {error.strerror}", where="launch",
                               accepted="a program that can be executed") from error
    return RunningAgent(process, pipe, output)
