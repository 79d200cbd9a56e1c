"""From what a failed launch left behind to the words that name the rank, the cause and the fix."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence

from regress.measure.agent import RankFailure

TAIL_LINES = 12

_HINTS = (
    (re.compile(r"No space left on device.*(?:shm|nccl-)|/dev/shm|shared memory segment|shmem_allocator", re.I | re.S),
     "shared memory is too small or full: give the container --shm-size=1g or --ipc=host, "
     "and remove stale /dev/shm/nccl-* files"),
    (re.compile(r"EADDRINUSE|address already in use", re.I),
     "another process took the port: run again, or end what is listening"),
    (re.compile(r"No module named '?torch'?(?![\w.])", re.I), "install PyTorch for this Python: pip install torch"),
    (re.compile(r"Duplicate GPU detected", re.I),
     "two ranks were given one GPU: use fewer ranks, or a machine with more GPUs"),
    (re.compile(r"CUDA out of memory|cudaErrorMemoryAllocation", re.I),
     "the GPU's memory is full: end its other users (nvidia-smi), or measure smaller messages"),
    (re.compile(r"operation not supported", re.I),
     "the driver refuses this operation on a partitioned or old GPU: see `regress doctor`"),
)


def is_port_clash(text: str) -> bool:
    """Whether a port was taken between being chosen and being bound."""
    return re.search(r"EADDRINUSE|address already in use", text, re.I) is not None


def hint(text: str) -> str | None:
    """The fix for a failure that is the machine's fault, known by what the rank or the engine printed."""
    return next((words for pattern, words in _HINTS if pattern.search(text)), None)


def root_first(failures: Sequence[RankFailure]) -> tuple[RankFailure, ...]:
    """Failures, likely root cause first.

    A rank killed by a signal comes before one with an exit status, because its peers then fail with "connection
    closed"; SIGTERM comes last, because torchrun's engine sends it to those that were still well.
    """
    def order(failure: RankFailure) -> tuple[int, int]:
        if failure.exit_code == -signal.SIGTERM:
            return 2, failure.rank
        return (0 if failure.exit_code < 0 else 1), failure.rank
    return tuple(sorted(failures, key=order))


def exit_words(exit_code: int) -> str:
    """How a process ended, in words."""
    if exit_code >= 0:
        return f"exited with status {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = "unknown"
    return f"was ended by signal {-exit_code} ({name})"


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """The last lines of what a process wrote, blank ones left out."""
    return "\n".join([line.rstrip() for line in text.splitlines() if line.strip()][-lines:])


def innermost(text: str, lines: int = TAIL_LINES) -> str:
    """The innermost calls of the main thread in what faulthandler wrote last; the last lines where it wrote nothing.

    faulthandler writes each thread's most recent call first, and the thread that got the signal last.
    """
    _, found, stack = text.rpartition("(most recent call first):\n")
    if not found:
        return tail(text, lines)
    calls = [line.rstrip() for line in stack.splitlines()]
    return "\n".join(calls[:lines])


def describe_failures(failures: Sequence[RankFailure], stderr: Mapping[int, str], where: Mapping[int, str]) -> str:
    """One text for ranks that failed: the likely cause with its stderr, where it stood, then the other ranks.

    stderr: whole standard error by rank. where: how far each rank came, by rank.
    """
    first, *others = root_first(failures)
    parts = [f"rank {first.rank} {exit_words(first.exit_code)}"]
    if first.rank in where:
        parts[0] += f" ({where[first.rank]})"
    advice = next((words for f in (first, *others) if (words := hint(stderr.get(f.rank, "")))), None)
    if advice:
        parts.append(advice)
    parts += [f"rank {other.rank} {exit_words(other.exit_code)}" for other in others
              if other.exit_code != -signal.SIGTERM]
    last = tail(stderr.get(first.rank, ""))
    return "; ".join(parts) + (f"\nlast lines of rank {first.rank}'s stderr:\n{last}" if last else "")
