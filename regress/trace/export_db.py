"""An SQLite database that `nsys export` wrote: opening it, knowing its schema, and reading columns out of it.

A missing table and one without rows both read as "not traced": nsys leaves out tables without rows, or with
--lazy=false (as we export) creates every table it knows, whatever was traced. So rows are evidence and tables are none.
From nsys 2025.6 on rows come in no promised order, so nothing here relies on any.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regress.errors import TraceInputError, TraceUnfitError

KNOWN_MAJOR = 3
NEWEST_KNOWN_MINOR = 25
_CHUNK_ROWS = 131_072
_BATCH_ROWS = 32_768
_BUSY_SECONDS = 2.0
_FAMILY_SUFFIX = re.compile(r"(.+?)_V\d+$")
_META_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")

Columns = tuple[NDArray[np.int64], ...]


@dataclass(frozen=True, slots=True)
class Schema:
    """Versions an export names: of nsys and of the schema. version is "" before exports carried them (nsys 2022)."""

    product: str
    version: str
    warnings: tuple[str, ...] = ()


def check_file(path: Path) -> None:
    """Refuse what cannot be a whole SQLite database, before SQLite is asked.

    The header holds page size and page count, which shows a truncated copy without reading it all
    (https://www.sqlite.org/fileformat2.html#the_database_header).
    """
    size = path.stat().st_size
    if size == 0:
        raise TraceInputError("the file is empty", where=str(path), next_step="export the report again")
    with path.open("rb") as file:
        header = file.read(100)
    if not header.startswith(b"SQLite format 3\0") or len(header) < 100:
        raise TraceInputError("not an SQLite database", where=str(path),
                              accepted="an export of Nsight Systems (.sqlite), a report (.nsys-rep) or Kineto JSON")
    page = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    counted = header[24:28] == header[92:96]
    if counted and size < pages * (65536 if page == 1 else page):
        raise TraceInputError(f"truncated: {size} bytes of {pages * page}", where=str(path),
                              next_step="copy or export it again")


class ExportDb:
    """One open export. Use `open_export`, which turns SQLite's errors into one line."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._columns: dict[str, frozenset[str]] = {}
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
        self._families: dict[str, list[str]] = {}
        for name in names:
            suffixed = _FAMILY_SUFFIX.fullmatch(name)
            self._families.setdefault(suffixed.group(1) if suffixed else name, []).append(name)

    def tables(self, family: str) -> tuple[str, ...]:
        """The physical tables of a logical one (`NAME`, `NAME_V2`, ...), none where it was not traced."""
        return tuple(sorted(self._families.get(family, ())))

    def columns(self, table: str) -> frozenset[str]:
        """Column names of a physical table."""
        if table not in self._columns:
            self._columns[table] = frozenset(r[1] for r in self._connection.execute(f'PRAGMA table_info("{table}")'))
        return self._columns[table]

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> Iterator[tuple[object, ...]]:
        """The rows of a query, one by one."""
        yield from self._connection.execute(sql, parameters)

    def batches(self, sql: str, parameters: Sequence[object] = ()) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a query as SQLite gives them, some 30,000 at a time."""
        cursor = self._connection.execute(sql, parameters)
        while batch := cursor.fetchmany(_BATCH_ROWS):
            yield batch

    def count(self, family: str) -> int:
        """Rows of a logical table, 0 where it was not traced."""
        return sum(int(str(row[0])) for table in self.tables(family)
                   for row in self.rows(f'SELECT COUNT(*) FROM "{table}"'))

    def chunks(self, family: str, wanted: Sequence[str], where: str = "") -> Iterator[Columns]:
        """Integer columns of every table of the family, some 130,000 rows at a time; NULL reads as -1.

        Raises TraceInputError when a table with rows lacks a wanted column: then the schema is none we know.
        """
        for table in self.tables(family):
            lacking = [name for name in wanted if name not in self.columns(table)]
            if lacking and not any(self.rows(f'SELECT 1 FROM "{table}" LIMIT 1')):
                continue
            if lacking:
                raise TraceInputError(f"table {table} has no column {', '.join(lacking)}", where=str(self.path),
                                      accepted=f"schemas {KNOWN_MAJOR}.1 to {KNOWN_MAJOR}.{NEWEST_KNOWN_MINOR}",
                                      next_step="export the report with a known nsys")
            fields = ", ".join(f'IFNULL("{name}", -1)' for name in wanted)
            cursor = self._connection.execute(f'SELECT {fields} FROM "{table}" {where}')
            width = len(wanted)
            while True:
                values = itertools.chain.from_iterable(itertools.islice(cursor, _CHUNK_ROWS))
                try:
                    flat = np.fromiter(values, np.int64)
                except (TypeError, ValueError, OverflowError) as error:  # SQLite keeps any value in any column
                    raise self.odd_value(table) from error
                if len(flat) == 0:
                    break
                block = flat.reshape(-1, width)
                yield tuple(block[:, i] for i in range(width))

    def odd_value(self, table: str) -> TraceInputError:
        """The error for a number where a text belongs, or the other way round."""
        return TraceInputError(f"damaged database: table {table} holds a value of another type than nsys writes",
                               where=str(self.path), next_step="export it again")

    def strings(self) -> tuple[NDArray[np.int64], list[str]]:
        """All of StringIds: ids in ascending order, and the text of each."""
        pairs: list[tuple[int, str | None]] = []
        for table in self.tables("StringIds"):
            for id_, text in self._connection.execute(f'SELECT id, value FROM "{table}"'):
                if not isinstance(id_, int) or not isinstance(text, str | None):
                    raise self.odd_value(table)
                pairs.append((id_, text))
        pairs.sort(key=itemgetter(0))
        return np.array([p[0] for p in pairs], np.int64), [p[1] or "" for p in pairs]


def read_schema(db: ExportDb) -> Schema:
    """Versions of the export; a newer minor schema is a warning, an unknown major one raises TraceInputError."""
    meta: dict[str, str] = {}
    for family in _META_TABLES:
        for table in db.tables(family):
            meta.update((str(name), str(value)) for name, value in db.rows(f'SELECT name, value FROM "{table}"'))
    version = meta.get("EXPORT_SCHEMA_VERSION", "")
    product = meta.get("EXPORT_PRODUCT_VERSION", "")
    if not version:
        return Schema(product, "", ("the export names no schema version (nsys before 2023): read as the oldest known",))
    major, minor = (int(part) if part.isdigit() else -1 for part in [*version.split("."), "0"][:2])
    if major != KNOWN_MAJOR:
        raise TraceInputError(f"schema {version} of nsys {product or 'unknown'}", where=str(db.path),
                              accepted=f"schemas {KNOWN_MAJOR}.*", next_step="export the report with a known nsys, "
                              "or upgrade comm-regress")
    if minor > NEWEST_KNOWN_MINOR:
        return Schema(product, version, (f"schema {version} is newer than {KNOWN_MAJOR}.{NEWEST_KNOWN_MINOR}, the "
                                         "newest known: renamed columns may read as missing",))
    return Schema(product, version)


@contextmanager
def open_export(path: Path) -> Iterator[ExportDb]:
    """The export at `path`, read-only. Whatever SQLite finds wrong becomes a TraceInputError of one line."""
    check_file(path)
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
    try:
        yield ExportDb(path, connection)
    except sqlite3.OperationalError as error:
        locked = "locked" in str(error) or "busy" in str(error)
        raise TraceInputError(f"the database cannot be read: {error}", where=str(path), accepted="a finished export",
                              next_step="wait for its writer to finish" if locked else "export it again") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter where a name or message is no text
        raise TraceInputError(f"damaged database: {error}", where=str(path), next_step="export it again") from error
    finally:
        connection.close()


def no_kernels(db: ExportDb) -> TraceUnfitError:
    """The error for an export without kernels, with the reason the export itself gives."""
    if db.count("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
        return TraceUnfitError("CUDA graphs were traced as a whole, so no kernel is in the trace", where=str(db.path),
                               next_step="profile with --cuda-graph-trace=node")
    return TraceUnfitError("no GPU kernel in the trace", where=str(db.path), accepted="a capture with CUDA tracing",
                           next_step="profile with --trace=cuda,nvtx and check that the capture range was opened")
