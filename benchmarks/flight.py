"""PyTorch's flight recorder, written down when the launcher asks for it: what this rank's groups are in the middle of.

A rank that hangs sits in a C call, and its main thread runs no Python any more; a thread of its own waits in the kernel
for somebody to open a named pipe for writing, and costs nothing until then. Such calls let go of the interpreter, so
the thread can run while they wait. Names of files are a contract with the reader, `regress.measure.flight_recorder`:

    rank<rank>.flight.pipe      to be opened for writing: makes the rank dump, once
    rank<rank>.flight.<name>    what one of torch's functions gave, whole
    rank<rank>.flight.done      there is no more to come
    flight-timeout-rank<rank>   what NCCL's watchdog writes by itself when a collective exceeds its timeout
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

_JSON = (("_dump_fr_trace_json", "all.json"), ("_dump_nccl_trace_json", "nccl.json"))
"""torch 2.8 on; 2.5 on, in builds with NCCL. Which of them knows NCCL's groups differs between versions: both are
written and the reader folds them."""
_PICKLE = ("_dump_nccl_trace", "nccl.pickle")
"""torch 2.4 has nothing else."""


def stand_by(folder: Path, rank: int, backend: str, environment: MutableMapping[str, str]) -> None:
    """Starts the thread, where this torch can dump. Imports torch; to be called before the communicator is made.

    How much is recorded is left as torch and the user have it: recording costs time in every call, and what is
    measured is what the user's own training would do. Only where NCCL's watchdog writes is chosen, unless it is set.
    """
    import torch

    functions = _functions(getattr(torch._C, "_distributed_c10d", None))
    if not functions:
        return
    if backend == "nccl" and not {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"} & environment.keys():
        renamed = any(name == "all.json" for name, _ in functions)  # both names came with torch 2.8
        variable = "TORCH_FR_DUMP_TEMP_FILE" if renamed else "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
        environment[variable] = str(folder / "flight-timeout-rank")
    pipe = folder / f"rank{rank}.flight.pipe"
    try:
        os.mkfifo(pipe)
    except OSError:  # a file system without named pipes: a hang is then told as without a recorder
        return
    threading.Thread(target=_wait_and_dump, args=(pipe, functions), name="comm-regress flight recorder",
                     daemon=True).start()


def _functions(c10d: Any) -> list[tuple[str, Callable[..., bytes]]]:
    """What this torch can dump with, by the end of the file's name."""
    found = [(name, getattr(c10d, function)) for function, name in _JSON if hasattr(c10d, function)]
    if not found and hasattr(c10d, _PICKLE[0]):
        plain: Callable[..., bytes] = getattr(c10d, _PICKLE[0])
        found = [(_PICKLE[1], lambda: plain(includeStackTraces=False))]
    return found


def _wait_and_dump(pipe: Path, functions: list[tuple[str, Callable[..., bytes]]]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main thread's
    with pipe.open("rb"):  # returns when somebody opens it for writing
        pass
    for name, dump in functions:
        target = pipe.with_suffix(f".{name}")
        unfinished = target.with_suffix(".tmp")
        try:
            unfinished.write_bytes(dump())
            unfinished.replace(target)
        except (RuntimeError, TypeError, ValueError, OSError) as error:  # the rank is lost anyway; the others' count
            print(f"comm-regress: no flight recorder dump {name}: {error}", file=sys.stderr, flush=True)
    pipe.with_suffix(".done").touch()
