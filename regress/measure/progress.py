"""What the ranks say while they run: their progress files, read as they grow, and the words for a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from regress.record import Progress


@dataclass(frozen=True, slots=True)
class RankState:
    """How far a rank came. finished: the last operation it ended; begun: the one it was in, None between two."""

    rank: int
    finished: Progress | None = None
    begun: Progress | None = None

    def after(self, line: Progress) -> RankState:
        """The state once the rank has written this line."""
        if line.done:
            return RankState(self.rank, line, None)
        return RankState(self.rank, self.finished, line)

    @property
    def text(self) -> str:
        """"rank 1: last finished warm-up of allreduce[...], in isolated of allreduce[...] (12 of 40)"."""
        last = "finished no operation" if self.finished is None else f"last finished {_operation(self.finished)}"
        now = "" if self.begun is None else f", in {_operation(self.begun)}"
        return f"rank {self.rank}: {last}{now}"


def _operation(line: Progress) -> str:
    words = f"{line.operation} of {line.case}" if line.case else line.operation
    if line.iterations is not None and line.iterations_planned is not None:
        words += f" ({line.iterations} of {line.iterations_planned})"
    return words


def progress_file(folder: Path, rank: int) -> Path:
    """Where rank `rank` appends its progress, one JSON object a line."""
    return folder / f"rank{rank}.progress.jsonl"


@dataclass(slots=True)
class ProgressReader:
    """Follows the progress files of one launch."""

    folder: Path
    world_size: int
    states: list[RankState] = field(init=False)
    _offsets: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.states = [RankState(rank) for rank in range(self.world_size)]
        self._offsets = [0] * self.world_size

    def poll(self) -> list[tuple[int, Progress]]:
        """The lines written since the last call as (rank, line), in each rank's order.

        A line still being written waits for the next call; one that is no Progress is passed over, because a rank
        that is dying may cut it anywhere.
        """
        found = []
        for rank in range(self.world_size):
            for line in self._new_lines(rank):
                try:
                    item = msgspec.json.decode(line, type=Progress)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue
                self.states[rank] = self.states[rank].after(item)
                found.append((rank, item))
        return found

    def _new_lines(self, rank: int) -> list[bytes]:
        try:
            with progress_file(self.folder, rank).open("rb") as stream:
                stream.seek(self._offsets[rank])
                text = stream.read()
        except FileNotFoundError:
            return []
        whole = text[:text.rfind(b"\n") + 1]
        self._offsets[rank] += len(whole)
        return whole.splitlines()


def format_states(states: Sequence[RankState]) -> str:
    """Where every rank stood, in one line."""
    return "; ".join(state.text for state in states)


def format_progress(line: Progress, *, position: int, cases: int, launch: int, launches: int,
                    seconds_left: float | None) -> str:
    """One line for a person: "[3/12] allreduce[...] · isolated 12/40 · launch 2/3 · about 35 s left".

    position: which of `cases` it is, from 1; launch: which of `launches`, from 1; seconds_left: None when unknown.
    """
    parts = [f"[{position}/{cases}] {line.case}", line.operation]
    if line.iterations is not None and line.iterations_planned is not None:
        parts[-1] += f" {line.iterations}/{line.iterations_planned}"
    parts.append(f"launch {launch}/{launches}")
    if seconds_left is not None:
        parts.append(f"about {format_left(seconds_left)} left")
    return " · ".join(parts)


def format_left(seconds: float) -> str:
    """Time left, as coarse as it is known: "8 s", "1 min 40 s", "12 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60 // 10 * 10} s"
    return f"{round(whole / 60)} min"
