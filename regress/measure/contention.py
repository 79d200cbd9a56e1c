"""How much CPU time other processes took while a launch ran: what was busy on the host, less what was this gate's.

A look before the first launch does not see the job that begins a minute later. Two gates of unchanged code in 114 came
out red on a 2-core host, both from launches beside which somebody had started a build.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
OTHERS_SHARE = 0.1
"""Others took at least this share of the cores' time, and..."""
BUSY_SHARE = 0.85
"""...at least this share of it was used: with idle cores to spare they are in nobody's way."""


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Clock ticks of all cores since boot, those that were idle, and those that processes and this gate's used."""

    total: int
    idle: int
    used: int
    ours: int


@dataclass(slots=True)
class Contention:
    """Launches that were watched, those of them in which others were in the way, and the largest share they took."""

    launches: int = 0
    contended: int = 0
    worst: float = 0.0

    @contextmanager
    def launch(self) -> Iterator[None]:
        """Watches the launch that is made in the block."""
        before = read_use()
        yield
        self.add(before, read_use())

    def add(self, before: CpuUse | None, after: CpuUse | None) -> None:
        """Counts a launch between two readings; one that cannot be told is not counted."""
        if before is None or after is None or after.total <= before.total:
            return
        total = after.total - before.total
        others = max(0, (after.used - before.used) - (after.ours - before.ours)) / total
        self.launches += 1
        if others >= OTHERS_SHARE and 1 - (after.idle - before.idle) / total >= BUSY_SHARE:
            self.contended += 1
            self.worst = max(self.worst, others)


def read_use(root: Path = _ROOT) -> CpuUse | None:
    """The counters now (proc(5): /proc/stat, /proc/PID/stat); None where there is no such /proc.

    Interrupts are nobody's. A process's own time is counted with that of its children that have ended, so that ranks
    count once their parent, a child of this process, has reaped them: read between launches.
    """
    try:
        words = (root / "proc/stat").read_text().partition("\n")[0].split()
        ticks = [int(word) for word in words[1:9]]  # user nice system idle iowait irq softirq steal
        own = os.getpid()
        ours = sum(sum(times) for pid, parent, times in _processes(root) if own in (pid, parent))
    except (OSError, ValueError, IndexError):
        return None
    return CpuUse(sum(ticks), ticks[3] + ticks[4], sum(ticks[:3]), ours)


def _processes(root: Path) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Each process's id, its parent's, and its ticks: user, system, and the same of its children that have ended."""
    for entry in (root / "proc").glob("[0-9]*"):
        try:
            words = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        yield int(entry.name), int(words[1]), tuple(int(word) for word in words[11:15])
