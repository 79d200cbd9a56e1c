"""What a rank leaves behind: one result file a case, and its progress, line by line."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from regress.record import Progress, RankResult, to_json


@dataclass(slots=True)
class Outbox:
    """The files of one rank in the results folder of a launch. Nothing here may be called inside a timed loop."""

    folder: Path
    rank: int
    _progress: IO[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._progress = (self.folder / f"rank{self.rank}.progress.jsonl").open("ab", buffering=0)

    def progress(self, case: str, operation: str, done: bool, iterations: int | None = None,
                 planned: int | None = None) -> None:
        """Says that an operation begins or has ended. `case` is "" for what belongs to the launch as a whole."""
        line = Progress(time.time(), case, operation, done, iterations, planned)
        self._progress.write(to_json(line) + b"\n")

    def result(self, index: int, result: RankResult) -> None:
        """Writes the result of the case at that place of the launch, whole or not at all."""
        target = self.folder / f"rank{self.rank}.case{index}.json"
        unfinished = target.with_suffix(".json.tmp")
        unfinished.write_bytes(to_json(result))
        unfinished.replace(target)
