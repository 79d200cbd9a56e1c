"""Turn an nsys report into SQLite, and say plainly when that cannot be done.

`nsys stats` and `nsys export` have been seen to end with status 0 on a broken report, and to leave a database with
three tables on one from a newer release. So the file is looked into before it is handed on.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from regress.errors import TraceInputError
from regress.trace.nsys import Nsys
from regress.trace.nsys_flags import Command, Need, arguments

EXPORT_SECONDS = 900.0
"""Longest time an export may take; one of 10 million kernels takes minutes."""

EXPECTED_TABLES = frozenset({"StringIds", "TARGET_INFO_SESSION_START_TIME"})
"""Tables that every complete export has had since 2022, whatever was traced."""


def export_sqlite(nsys: Nsys, report: Path, out: Path | None = None, timeout: float = EXPORT_SECONDS) -> Path:
    """Export `report` to SQLite with NVTX payloads where this nsys can; the path of the database.

    out: where to, default beside the report. TraceInputError when the report is not there, is the raw `.qdstrm`, is
    from a newer release, or is broken. The database appears under its name only when it is complete.
    """
    out = report.with_suffix(".sqlite") if out is None else out
    _check_report(nsys, report)
    partial = out.with_name(out.name + ".partial")
    command = (str(nsys.path), "export",
               *arguments(Command.EXPORT, nsys.export_flags, frozenset({Need.ALWAYS}), {"output": str(partial)}),
               str(report))
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout,
                              stdin=subprocess.DEVNULL, check=False)
        printed = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        printed = f"it had not ended after {timeout:.0f} s"
    except OSError as error:
        printed = str(error)
    if not EXPECTED_TABLES.issubset(_tables(partial)):
        partial.unlink(missing_ok=True)
        raise _failed(nsys, report, printed)
    partial.replace(out)
    return out


def _check_report(nsys: Nsys, report: Path) -> None:
    if not report.is_file():
        raise TraceInputError("no such file", where=str(report), accepted="a .nsys-rep report")
    if report.stat().st_size == 0:
        raise TraceInputError("the file is empty", where=str(report), accepted="a .nsys-rep report",
                              next_step="look for a full disk, or for nsys having been killed")
    if report.suffix == ".qdstrm":
        raise TraceInputError("a raw .qdstrm is no report yet", where=str(report), accepted="a .nsys-rep report",
                              next_step=nsys.importer.obstacle or f"run {nsys.importer.path} on it")


def _tables(database: Path) -> frozenset[str]:
    """Names of the tables in a database, none when it is not there or not one."""
    if not database.is_file():
        return frozenset()
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            return frozenset(row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'"))
    except (sqlite3.Error, UnicodeDecodeError):
        return frozenset()


def _failed(nsys: Nsys, report: Path, printed: str) -> TraceInputError:
    newer = re.search(r"Version number is invalid: (\d+)\D(\d+)", printed)
    if newer:
        return TraceInputError(f"written by nsys {newer[1]}.{newer[2]}, which nsys {nsys.version} cannot read",
                               where=str(report), accepted="a report of the same or an older release",
                               next_step="set REGRESS_NSYS to the nsys that wrote it")
    last = next((line for line in reversed(printed.splitlines()) if line.strip()), "nothing was printed")
    return TraceInputError(f"nsys {nsys.version} could not export it: {last.strip()[:200]}", where=str(report),
                           accepted="a complete .nsys-rep of the same or an older release",
                           next_step="export it with the nsys that wrote it, or record it again")
