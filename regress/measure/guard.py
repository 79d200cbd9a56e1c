"""The first thing that runs in a rank process: ties its life to the launcher's, then runs the rank's program.

It imports the standard library only, so that a rank is under guard before the seconds that torch takes to load.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import runpy
import signal
import sys
import time
from pathlib import Path

LAUNCH_MARK = "COMM_REGRESS_LAUNCH"
"""Variable that every process of a launch inherits, whoever its parent becomes."""
AGENT_PID = "COMM_REGRESS_AGENT_PID"
STACK_SIGNAL = signal.SIGUSR2
"""Makes a rank write the stacks of all its threads to its stderr: sent to a rank that hangs, before it is ended."""

_PR_SET_PDEATHSIG = 1
_ROOT = str(Path(__file__).resolve().parents[2])


def boot_command(python: str, module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs `main()` of one of our modules, whatever folder named `regress` the user has.

    `python -m` would take a package from the working directory or from PYTHONPATH first; this looks beside
    ourselves for the import of this package alone and leaves the order of the path to the user afterwards.
    """
    code = (f"import sys; sys.path.insert(0, {_ROOT!r}); import {module} as ours; sys.path.remove({_ROOT!r}); "
            f"sys.path.append({_ROOT!r}); ours.main()")
    return (python, "-c", code, *arguments)


def process_file(folder: Path, rank: int) -> Path:
    """Where a rank leaves its process id and that moment on the monotonic clock, as soon as it is under guard.

    All processes of a host read the same monotonic clock, and nobody can set it.
    """
    return folder / f"rank{rank}.pid"


def die_with_parent() -> None:
    """Asks the kernel to kill this process when the thread that started it ends (Linux: prctl(2), PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.environ.get(AGENT_PID, str(os.getppid())) != str(os.getppid()):
            raise SystemExit("the launching agent ended before this rank began")


def main() -> None:
    """Runs `RESULTS_DIR -m MODULE ARGUMENT...` or `RESULTS_DIR SCRIPT ARGUMENT...` from the command line, guarded."""
    folder, *program = sys.argv[1:]
    die_with_parent()
    faulthandler.register(STACK_SIGNAL, all_threads=True)
    pid_file = process_file(Path(folder), int(os.environ["RANK"]))
    unfinished = pid_file.with_suffix(".tmp")
    unfinished.write_text(f"{os.getpid()} {time.monotonic()}")
    unfinished.replace(pid_file)
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        runpy.run_path(program[0], run_name="__main__")
