"""Moving runs between histories: one run a line (NDJSON), gzip by name, a local path or any fsspec URL."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from regress.errors import HistoryError, RecordError
from regress.history.runs import LARGEST_RUN_BYTES, Problem, checked
from regress.history.store import History
from regress.record import run_from_json, to_json


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did: runs added, runs that were there already, and lines that are no runs."""

    added: int
    already: int
    problems: tuple[Problem, ...]


def export(history: History, target: str) -> int:
    """Write every run, oldest first, with its samples and acceptances; returns how many.

    target: a path, - for standard output, or a URL such as s3://bucket/runs.ndjson.gz where fsspec and its driver are
    installed. A local file appears whole or not at all.
    """
    if "://" in target:
        with _opened(target, "wb") as stream:
            return _write(history, stream)
    if target == "-":
        return _write(history, sys.stdout.buffer)
    path = Path(target)
    partial = path.with_name(f".{path.name}.part{path.suffix if path.suffix == '.gz' else ''}")
    try:
        with _opened(str(partial), "wb") as stream:
            count = _write(history, stream)
        partial.replace(path)
    except OSError as error:
        raise HistoryError(f"the export cannot be written: {error.strerror or error}", where=target) from error
    finally:
        partial.unlink(missing_ok=True)
    return count


def import_(history: History, source: str) -> Imported:
    """Add every run of an export that is not there yet; a line that is no run is named and skipped.

    source: a path, - for standard input, or a URL. The same import again adds nothing: runs are told apart by run id
    and attempt. An acceptance that came with a run which is there already is remembered too.
    """
    added = already = 0
    problems: list[Problem] = []
    history.refresh()
    try:
        with _opened(source, "rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(LARGEST_RUN_BYTES + 1), b""), 1):
                where = f"{source}:{number}"
                if len(line) > LARGEST_RUN_BYTES:
                    raise HistoryError(f"a line of more than {LARGEST_RUN_BYTES >> 20} MiB", where=where,
                                       accepted="one run a line", next_step=f"{added} runs were added before")
                if not line.strip():
                    continue
                try:
                    run = checked(run_from_json(line, where), where)
                except RecordError as error:
                    problems.append(Problem(where, error.text))
                    continue
                if history.remember(run):
                    added += 1
                else:
                    already += 1
    except (OSError, EOFError, zlib.error) as error:
        raise HistoryError(f"the import stopped: {error}", where=source, accepted="an NDJSON file, .gz allowed",
                           next_step=f"{added} runs were added before; the same import may be repeated") from error
    return Imported(added, already, tuple(problems))


def _write(history: History, stream: IO[bytes]) -> int:
    count = 0
    for run in history.oldest_first():
        stream.write(to_json(run) + b"\n")
        count += 1
    return count


@contextmanager
def _opened(place: str, mode: str) -> Iterator[IO[bytes]]:
    """The stream at a path or URL, unpacked where the name ends in .gz."""
    with _raw(place, mode) as raw:
        if not place.endswith(".gz"):
            yield raw
        elif mode == "wb":
            with gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as packed:
                yield cast(IO[bytes], packed)
        else:
            with gzip.GzipFile(fileobj=raw, mode="rb") as packed:
                yield cast(IO[bytes], io.BufferedReader(packed))


@contextmanager
def _raw(place: str, mode: str) -> Iterator[IO[bytes]]:
    if place == "-":
        yield sys.stdin.buffer
        return
    if "://" not in place:
        with Path(place).open(mode) as stream:
            yield stream
        return
    try:
        import fsspec
    except ImportError as error:
        raise HistoryError(f"{place} needs fsspec", accepted="a local path",
                           next_step="pip install 'comm-regress[remote]' and the driver of that store") from error
    try:
        opened = fsspec.open(place, mode, compression=None)
        with opened as stream:
            yield stream
    except (ImportError, ValueError) as error:
        raise HistoryError(f"fsspec cannot open it: {error}", where=place, accepted="a URL that fsspec knows",
                           next_step="install the driver of that store, such as s3fs or gcsfs") from error
