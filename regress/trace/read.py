"""From paths to an analysis: whatever the files are, each is read and reduced on its own, then put together."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

from regress.errors import TraceInputError, TraceUnfitError
from regress.trace.analysis import Analysis, assemble
from regress.trace.kineto import read_kineto
from regress.trace.lane import Lane
from regress.trace.reduction import reduce_timeline
from regress.trace.sqlite import read_sqlite
from regress.trace.timeline import DEFAULTS, ReadOptions, Timeline, Tracer

Export = Callable[[Path, Path], object]
"""Exports an nsys report (first path) to an SQLite file (second path).

It travels to worker processes, so it must be picklable: a module's function, `functools.partial` of one, no closure.
"""

_ACCEPTED = "nsys reports (.nsys-rep) and exports (.sqlite), torch.profiler traces (.json, .json.gz)"
_PARALLEL_BYTES = 64 << 20
"""Below this much input, starting worker processes takes longer than reading."""


@dataclass(frozen=True, slots=True, eq=False)
class ReducedFile:
    """One file, reduced: all that crosses to other ranks and other processes."""

    file: str
    tracer: Tracer
    version: str
    lanes: tuple[Lane, ...]
    warnings: tuple[str, ...]


def read_timeline(path: Path, export: Export | None = None, options: ReadOptions = DEFAULTS) -> Timeline:
    """The timeline of one file, told by its content and not by its name.

    export: used for an .nsys-rep; without it such a file is refused.
    Raises TraceInputError for what is no trace, TraceUnfitError for a trace with nothing to measure.
    """
    if not path.exists():
        raise TraceInputError("no such file", where=str(path), accepted=_ACCEPTED)
    if path.is_dir():
        raise TraceInputError("a folder", where=str(path), accepted=_ACCEPTED, next_step="name the files inside it")
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise TraceInputError(f"cannot be read: {error.strerror}", where=str(path), accepted=_ACCEPTED) from error
    if path.suffix == ".qdstrm":
        raise TraceInputError("an unfinished capture (.qdstrm)", where=str(path), accepted=_ACCEPTED,
                              next_step="turn it into a report with QdstrmImporter of the nsys that captured it")
    if path.suffix == ".nsys-rep":
        return _read_report(path, export, options)
    if head.startswith((b"SQLite", b"\0")) or path.suffix in (".sqlite", ".db"):
        return read_sqlite(path, options)
    if head[:2] == b"\x1f\x8b" or head.lstrip()[:1] in (b"{", b"[") or path.suffix in (".json", ".gz"):
        return read_kineto(path, options)
    raise TraceInputError("the file is empty" if not head else "not a trace", where=str(path), accepted=_ACCEPTED)


def _read_report(path: Path, export: Export | None, options: ReadOptions) -> Timeline:
    if export is None:
        raise TraceInputError("reading a report needs nsys, and none was found", where=str(path), accepted=_ACCEPTED,
                              next_step="export it where nsys is: nsys export -t sqlite --include-blobs=true")
    with tempfile.TemporaryDirectory(prefix="comm-regress-") as folder:
        target = Path(folder) / (path.stem + ".sqlite")
        export(path, target)
        return read_sqlite(target, options)


def reduce_file(path: Path, export: Export | None = None, options: ReadOptions = DEFAULTS,
                within: str | None = None) -> ReducedFile:
    """Read and reduce one file; its kernels are gone when this returns."""
    timeline = read_timeline(path, export, options)
    lanes = reduce_timeline(timeline, within)
    return ReducedFile(str(path), timeline.tracer, timeline.version, lanes, timeline.warnings)


def read_traces(paths: Sequence[Path], *, export: Export | None = None, options: ReadOptions = DEFAULTS,
                within: str | None = None, workers: int | None = None) -> Analysis:
    """The analysis of one run from all its files.

    Every file is reduced on its own, over the cores where there is much to read, so memory is that of one file a core.
    within: text of a host range (such as `case:<case id>`) to restrict the analysis to. workers: processes; by default
    as many as help. Raises TraceInputError and TraceUnfitError, each one line that names the file.
    """
    if not paths:
        raise TraceInputError("no trace was named", accepted=_ACCEPTED)
    doubled = next((path for i, path in enumerate(paths) if path in paths[:i]), None)
    if doubled is not None:
        raise TraceInputError("named twice", where=str(doubled), accepted="each file once")
    if within is not None:
        options = replace(options, keep=options.keep | {within}, within=within)
    count = _workers(paths) if workers is None else min(workers, len(paths))
    reduce = _Reduce(export, options, within)
    files = _in_workers(reduce, paths, count) if count > 1 else [reduce(path) for path in paths]
    lanes = [lane for file in files for lane in file.lanes]
    warnings = [f"{file.file}: {text}" for file in files for text in file.warnings]
    return assemble(lanes, {f.file: (f.tracer, f.version) for f in files}, within=within, warnings=warnings)


@dataclass(frozen=True, slots=True)
class _Reduce:
    """`reduce_file` with its settings bound, so that it travels to a worker."""

    export: Export | None
    options: ReadOptions
    within: str | None

    def __call__(self, path: Path) -> ReducedFile:
        return reduce_file(path, self.export, self.options, self.within)


def _in_workers(reduce: _Reduce, paths: Sequence[Path], count: int) -> list[ReducedFile]:
    """Every file reduced, in order of `paths`; an error of one is raised as it is without workers."""
    size = max(1, len(paths) // (count * 8))
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("fork")) as pool:
        try:
            return list(pool.map(reduce, paths, chunksize=size))
        except BrokenProcessPool as error:
            raise TraceUnfitError("a process that was reading them was killed, most likely for want of memory",
                                  where=", ".join(map(str, paths)),
                                  next_step="read fewer files at once, or on a machine with more memory") from error


def _workers(paths: Sequence[Path]) -> int:
    size = sum(path.stat().st_size for path in paths if path.is_file())
    return min(len(paths), os.cpu_count() or 1) if size >= _PARALLEL_BYTES else 1
