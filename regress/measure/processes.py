"""Finding and ending every process of a launch: children, grandchildren, and those that were adopted by init."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from regress.measure.guard import LAUNCH_MARK

_PROC = Path("/proc")


def marked(mark: str, spare: frozenset[int] = frozenset()) -> list[int]:
    """Living processes whose environment carries a launch mark that begins with `mark`, `spare` left out.

    The mark is inherited, so it finds a process whatever session, group or parent it has moved to. Zombies do not
    count. Empty where there is no /proc. ValueError for an empty mark, which would be everybody's.
    """
    if not mark:
        raise ValueError("an empty launch mark would match the processes of other gates")
    wanted = f"{LAUNCH_MARK}={mark}".encode()
    found = []
    for entry in _PROC.glob("[0-9]*"):
        pid = int(entry.name)
        if pid in spare or pid == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # ended meanwhile, or somebody else's
            continue
        if any(item.startswith(wanted) for item in environment.split(b"\0")) and alive(pid):
            found.append(pid)
    return found


def alive(pid: int) -> bool:
    """Whether the process runs: neither gone nor a zombie that nobody has reaped yet."""
    try:
        state = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def end_marked(mark: str, *, grace_seconds: float, spare: frozenset[int] = frozenset()) -> list[int]:
    """Ends the marked processes: SIGTERM, and SIGKILL for those that are left after the grace. Returns survivors.

    A survivor of SIGKILL sits in the kernel (uninterruptible), as with a wedged driver.
    """
    for number, patience in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 5.0)):
        pids = marked(mark, spare)
        deadline = time.monotonic() + patience
        while pids:
            for pid in pids:
                send(pid, number)
            time.sleep(0.05)
            pids = marked(mark, spare)  # looked for again: a process may have started another meanwhile
            if time.monotonic() >= deadline:
                break
    return marked(mark, spare)


def send(pid: int, number: signal.Signals) -> None:
    """Sends the signal; a process that is gone is what we wanted."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def age_seconds(pid: int) -> float | None:
    """How long the process has been running (proc(5): field 22 of stat, in clock ticks since boot); None if gone."""
    try:
        started = int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
