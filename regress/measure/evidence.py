"""What a launch that hung left behind, kept where it outlives the gate's temporary folders."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from regress.measure.launch import LaunchResult

KEPT_GATES = 5
"""Gates whose hangs are kept: only the latest are ever opened."""
MOST_BYTES = 32 << 20
"""Of one file. Of a longer log the end is kept, which is where it hung; a longer dump is what no reader takes."""


def keep_evidence(result: LaunchResult, folder: Path) -> LaunchResult:
    """Copies the result's evidence to a folder of this launch in `folder`, and says in its error where it is.

    Where it cannot be kept the error says that. Unchanged where there is none.
    """
    if not result.evidence:
        return result
    target = folder / f"launch{result.index:03d}-{result.role}"
    try:
        target.mkdir(parents=True, exist_ok=True)
        (folder.parent / ".gitignore").write_text("*\n")
        for path in map(Path, result.evidence):
            # torchrun's engine calls every rank's log the same, in a folder named by the rank
            _copy(path, target / (f"rank{path.parent.name}.{path.name}" if path.suffix == ".log" else path.name))
        _forget_old(folder.parent)
        words = f"kept for looking closer: {target}"
    except OSError as error:
        words = f"what it left could not be kept in {target}: {error.strerror or error}"
    return dataclasses.replace(result, error=f"{result.error or 'it hung'}\n{words}")


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as reading, target.open("wb") as writing:
        reading.seek(max(source.stat().st_size - MOST_BYTES, 0))
        shutil.copyfileobj(reading, writing)


def _forget_old(folder: Path) -> None:
    kept = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for old in kept[:-KEPT_GATES]:
        shutil.rmtree(old, ignore_errors=True)
