"""What a launch's folder and its rank processes show, while it runs and after."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from regress.errors import RecordError
from regress.measure.guard import process_file
from regress.measure.processes import age_seconds, alive
from regress.measure.progress import ProgressReader
from regress.record import LaunchSpec, Progress, RankResult, rank_result_from_json


@dataclass(slots=True)
class Watch:
    """One launch under observation. pids, started, ended: by rank; times on the monotonic clock."""

    folder: Path
    world_size: int
    reader: ProgressReader = field(init=False)
    pids: dict[int, int] = field(default_factory=dict)
    started: dict[int, float] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    last_progress: float | None = None

    def __post_init__(self) -> None:
        self.reader = ProgressReader(self.folder, self.world_size)

    def look(self, on_progress: Callable[[Progress], None] | None = None) -> None:
        """Reads new progress, hands that of rank 0 on, and notes which rank processes have started and ended."""
        now = time.monotonic()
        for rank, line in self.reader.poll():
            self.last_progress = now
            if rank == 0 and on_progress is not None:
                on_progress(line)
        for rank in range(self.world_size):
            if rank not in self.pids and process_file(self.folder, rank).exists():
                pid, guarded = process_file(self.folder, rank).read_text().split()
                self.pids[rank] = int(pid)
                # One that has ended already has no age: it began when it came under guard, or a moment before.
                age = age_seconds(self.pids[rank])
                self.started[rank] = float(guarded) if age is None else now - age
            if rank in self.pids and rank not in self.ended and not alive(self.pids[rank]):
                self.ended[rank] = now

    def overdue(self, deadline: float, case_deadline: float | None) -> str | None:
        """Which deadline has passed, in words, or None."""
        now = time.monotonic()
        if now - self.began > deadline:
            return f"the launch did not end within {deadline:g} s"
        if case_deadline is not None and self.last_progress is not None and now - self.last_progress > case_deadline:
            return f"no rank made progress for {case_deadline:g} s"
        return None

    @property
    def running(self) -> list[int]:
        """Ranks whose process has been seen and has not ended."""
        return [rank for rank in self.pids if rank not in self.ended]

    @property
    def where(self) -> dict[int, str]:
        """How far each rank came, in words."""
        return {state.rank: state.text.partition(": ")[2] for state in self.reader.states}

    @property
    def rank_wall_seconds(self) -> float:
        """The longest rank process, from the start of its interpreter to its end (to now where it still runs)."""
        now = time.monotonic()
        return max((self.ended.get(rank, now) - start for rank, start in self.started.items()), default=0.0)


def read_log(folder: Path, rank: int, stream: str) -> str:
    """What a rank wrote to "stdout" or "stderr"; empty where it wrote nothing."""
    return "".join(path.read_text(errors="replace") for path in log_files(folder, f"{rank}/{stream}.log"))


def log_files(folder: Path, name: str = "*/std*.log") -> list[Path]:
    """Standard output and error of the ranks, where torchrun's engine puts them: run, attempt, rank, stream."""
    return sorted(folder.glob(f"logs/*/attempt_*/{name}"))


def read_results(spec: LaunchSpec, folder: Path, world_size: int) -> tuple[tuple[RankResult | None, ...], ...]:
    """The ranks' result files: for each case, for each rank, None where there is no whole file."""
    return tuple(tuple(_read_result(folder / f"rank{rank}.case{position}.json") for rank in range(world_size))
                 for position in range(len(spec.cases)))


def _read_result(path: Path) -> RankResult | None:
    try:
        return rank_result_from_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    except RecordError:  # a rank that was ended while it wrote: missing, like one that never began
        return None


def missing_words(spec: LaunchSpec, results: tuple[tuple[RankResult | None, ...], ...]) -> str | None:
    """Names the ranks that left no result of a case, or None when all are there."""
    missing: dict[int, list[str]] = {}
    for case, ranks in zip(spec.cases, results, strict=True):
        for rank, result in enumerate(ranks):
            if result is None:
                missing.setdefault(rank, []).append(case.id)
    if not missing:
        return None
    parts = [f"rank {rank} left no result of {cases[0]}" + (f" and {len(cases) - 1} more" if len(cases) > 1 else "")
             for rank, cases in missing.items()]
    return "; ".join(parts)
