"""A history folder: run files as the record of truth, and a SQLite index beside them that follows the folder.

The index is written ahead (WAL) and shared by any number of processes of one host. It belongs on a local disk.
"""

from __future__ import annotations

import fcntl
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

from regress.errors import HistoryError, HistoryWriteError, RecordError
from regress.history import index
from regress.history.index import Bound, Connection, Row
from regress.history.runs import AcceptedMark, Entry, Problem, RunFiles
from regress.record import Run

INDEX = "index.sqlite"
_BUSY_SECONDS = 60.0
# A folder's time stamp moves in ticks of a few milliseconds: one that is younger than this may still hide a change.
_STAMP_SETTLED_NS = 2_000_000_000
_BATCH = 50


class _SqliteConnection:
    def __init__(self, link: sqlite3.Connection) -> None:
        self._link = link

    def rows(self, statement: str, values: Mapping[str, Bound] | None = None) -> list[Row]:
        return self._link.execute(statement, dict(values or {})).fetchall()

    def many(self, statement: str, values: Sequence[Mapping[str, Bound]]) -> int:
        return self._link.executemany(statement, values).rowcount


def _lock_file(path: Path) -> IO[str]:
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise HistoryError(f"the lock of the index cannot be opened: {error.strerror}", where=str(path),
                           accepted="a folder on a local disk that this user may write",
                           next_step="free some disk space, or give another one with --comm-regress-history") from error


class SqliteDatabase:
    """The index file. One that is no database, or is damaged, is replaced: it can always be built again."""

    types: Mapping[str, str] = {"key": "INTEGER PRIMARY KEY", "blob": "BLOB", "clustered": " WITHOUT ROWID"}

    def __init__(self, path: Path) -> None:
        self._path = path
        # Switching to WAL and replacing a damaged file do not wait for other processes by themselves.
        with _lock_file(path.with_suffix(".lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._link = self._open()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise HistoryError(f"the index cannot be opened: {error}", where=str(path),
                                       accepted="a folder on a local disk",
                                       next_step="free some disk space" if "full" in str(error) else "") from error
                for suffix in ("", "-wal", "-shm"):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
                self._link = self._open()

    def _open(self) -> sqlite3.Connection:
        link = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            link.execute("PRAGMA journal_mode = WAL")
            # Losing the last transactions in a power cut costs nothing: the files are flushed, the index follows them.
            link.execute("PRAGMA synchronous = NORMAL")
            link.execute("PRAGMA cache_size = -16384")
            link.execute("BEGIN IMMEDIATE")
            index.create(_SqliteConnection(link), self.types)
            link.execute("COMMIT")
        except sqlite3.DatabaseError:
            link.close()
            raise
        return link

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Connection]:
        """HistoryWriteError where the engine gives up: locked for too long, a full disk, a file damaged meanwhile."""
        try:
            self._link.execute(begin)
            yield _SqliteConnection(self._link)
            self._link.execute("COMMIT")
        except BaseException as error:
            if self._link.in_transaction:  # on a full disk the engine has already undone it
                self._link.execute("ROLLBACK")
            if not isinstance(error, sqlite3.Error):
                raise
            raise HistoryWriteError(
                f"the index cannot be used: {error}", where=str(self._path), accepted="a folder on a local disk",
                next_step="end the process that holds it, and try again" if "locked" in str(error) else
                "free some disk space, or remove the index: it is built again from the runs") from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A snapshot: what others write meanwhile is not seen."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """The one writer of the moment; others wait for up to a minute."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    def close(self) -> None:
        """Close the index file."""
        self._link.close()


class FolderBackend:
    """Runs in files, index in SQLite."""

    def __init__(self, root: Path, compress: bool = False) -> None:
        self.files = RunFiles(root, compress)
        self.database = SqliteDatabase(root / INDEX)

    @property
    def location(self) -> str:
        """The folder."""
        return str(self.files.root)

    def add(self, run: Run) -> str:
        """Write the file, then index it. The run is safe once the file is: the index catches up by itself."""
        path = self.files.write(run)
        entry = self.files.entry(path.name)
        try:
            with self.database.writing() as connection:
                index.put(connection, run, entry)
        except HistoryWriteError as error:
            raise HistoryWriteError(f"the run is stored, but the index does not take it: {error.seen}", where=str(path),
                                    next_step="free some disk space and run `regress history reindex`") from error
        return str(path)

    def load(self, location: str) -> Run:
        """The run in that file."""
        return self.files.read(location)

    def sync(self, rebuild: bool = False) -> None:
        """Bring the index up to date with the folder: new files in, vanished ones out, changed ones again."""
        looked_ns = time.time_ns()
        stamp = self.files.runs_dir.stat().st_mtime_ns
        with self.database.reading() as connection:
            if not rebuild and index.meta(connection, "folder") == str(stamp):
                return
            seen = {} if rebuild else index.known(connection)
        there = self.files.entries()
        changed = [entry for name, entry in there.items() if seen.get(name) != entry]
        stale = [name for name, entry in seen.items() if there.get(name) != entry]
        if rebuild:
            with self.database.writing() as connection:
                index.clear(connection)
        elif stale:
            with self.database.writing() as connection:
                index.forget(connection, stale)
        self._index(sorted(changed, key=lambda entry: entry.name))
        if looked_ns - stamp > _STAMP_SETTLED_NS:
            with self.database.writing() as connection:
                index.set_meta(connection, "folder", str(stamp))

    def _index(self, entries: Sequence[Entry]) -> None:
        """In batches, so that memory does not grow with the number of runs and other writers get their turn."""
        remaining = iter(entries)
        while batch := list(islice(remaining, _BATCH)):
            read = [(entry, self._readable(entry)) for entry in batch]
            with self.database.writing() as connection:
                series = index.SeriesKeys(connection)
                for entry, found in read:
                    if isinstance(found, Run):
                        index.put(connection, found, entry, series)
                    else:
                        index.put_problem(connection, found, entry)

    def _readable(self, entry: Entry) -> Run | Problem:
        try:
            return self.files.read(entry.name)
        except RecordError as error:
            return Problem(entry.name, error.text)

    def mark(self, mark: AcceptedMark) -> None:
        """Write an acceptance file."""
        self.files.mark(mark)

    def marks(self) -> tuple[list[AcceptedMark], list[Problem]]:
        """All acceptance files, and those that cannot be read."""
        return self.files.marks()

    def drop_samples(self, location: str) -> int:
        """Rewrite one file without samples and index it again; returns the bytes freed."""
        freed = self.files.drop_samples(location)
        entry = self.files.entry(location)
        run = self.files.read(location)
        with self.database.writing() as connection:
            index.forget(connection, [location])
            index.put(connection, run, entry)
        return freed

    def close(self) -> None:
        """Close the index."""
        self.database.close()


