"""Where the traces of runs are kept: a folder for each run, in it one for each traced launch (`launch003`).

A run is traced once for each world size, and again where a traced figure is in doubt; a profiler names its files the
same each time.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

KEPT_RUNS = 5
"""Runs whose traces are kept: a launch's are a few megabytes, and only those of the latest runs are ever opened."""


def keep_trace(paths: Sequence[Path], run: Path, launch: int) -> None:
    """Copies the files of that launch; OSError where they cannot be kept, and then none of them is."""
    folder = run / f"launch{launch:03d}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.copyfile(path, folder / path.name)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)  # half a trace would be taken for a whole one
        with suppress(OSError):  # other launches of the run are in it
            run.rmdir()
        raise


def kept_traces(run: Path) -> tuple[tuple[Path, ...], ...]:
    """The files of each traced launch, newest first; none where nothing is kept.

    Last come files beside the folders of launches: earlier versions kept what was traced last, and that alone.
    """
    if not run.is_dir():
        return ()
    folders = sorted((path for path in run.iterdir() if path.is_dir()), key=lambda path: (len(path.name), path.name))
    launches = [tuple(sorted(path for path in folder.iterdir() if path.is_file())) for folder in [run, *folders]]
    return tuple(files for files in reversed(launches) if files)


def forget_old(runs: Path) -> None:
    """Keeps the traces of the latest runs in that folder."""
    if runs.is_dir():
        kept = sorted((path for path in runs.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
        for old in kept[:-KEPT_RUNS]:
            shutil.rmtree(old, ignore_errors=True)
