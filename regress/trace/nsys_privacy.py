"""What a trace must not carry: nsys stores the whole environment and command line of what it launches in its report.

Two defences. `scrubbed_environment` gives the traced launch an allow-listed environment, so that neither the report nor
the export holds a token. `scrub_sqlite` takes environment, command line, host and user out of an export, for a report
that somebody else recorded. A `.nsys-rep` cannot be scrubbed: publish exports only.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from regress.errors import TraceInputError

KEPT_NAMES = frozenset({
    "PATH", "HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "LANG", "TMPDIR", "TZ",
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
})
"""Variables a rank process needs to start, find its libraries and know its place."""

KEPT_PREFIXES = (
    "PYTHON", "LC_", "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_", "NCCL_", "TORCH", "PYTORCH_", "GLOO_", "OMP_", "KMP_",
    "MKL_", "OPENBLAS_", "MASTER_", "TP_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "UCX_", "FI_", "MLX5_", "NVSHMEM_",
    "REGRESS_",
)
"""Families of variables that change how ranks are launched or how they communicate: without them the traced launch
would not be the one that was timed."""

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE|PRIVATE|APIKEY|JWT|(^|_)(KEY|AUTH|PASS|PWD|PAT)(_|$)",
                          re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/\s:@]+:[^/\s@]+@")

_CAPTURE_NAMES = ("%ENVIRONMENT_VARIABLE%", "%:COMMAND", "%:ARGUMENT\\_%", "%:WORKING\\_DIR", "%USER\\_NAME",
                  "DEVICE\\_DISPLAY\\_NAME")
_EXPORT_NAMES = ("EXPORT\\_HOST", "EXPORT\\_USER", "EXPORT%\\_PATH%", "EXPORT%\\_FILE")
_SYSTEM_NAMES = ("DeviceEnvironment", "SystemUID", "TargetInstallDir", "InjectionFilesStoragePath")


def scrubbed_environment(environ: Mapping[str, str], keep: Iterable[str] = ()) -> dict[str, str]:
    """The part of an environment that a traced launch may see: allow-listed, less what looks like a secret.

    keep: names to let through whatever they look like. A secret is one by its name (TOKEN, KEY, PASSWORD …) or by its
    value (an address with user and password in it), and is dropped also when its family is allowed.
    """
    kept = frozenset(keep)
    return {name: value for name, value in environ.items() if name in kept or _harmless(name, value)}


def hidden_names(environ: Mapping[str, str], keep: Iterable[str] = ()) -> tuple[str, ...]:
    """The names that `scrubbed_environment` leaves out, sorted; names only, so that they may be on a command line."""
    return tuple(sorted(set(environ) - set(scrubbed_environment(environ, keep))))


def _harmless(name: str, value: str) -> bool:
    allowed = name in KEPT_NAMES or name.startswith(KEPT_PREFIXES)
    return allowed and not _SECRET_NAME.search(name) and not _SECRET_VALUE.search(value)


def scrub_sqlite(path: Path) -> int:
    """Take environment, command line, host, user and printed output out of an export, in place; rows changed.

    Covers where releases from 2022 to 2025 keep them: META_DATA_CAPTURE, META_DATA_EXPORT (EXPORT_META_DATA before
    2023), TARGET_INFO_SYSTEM_ENV, and the texts behind ProcessStreams and ANALYSIS_FILE. The host's name becomes a
    short hash, as exports of several nodes must still be told apart. The file is rewritten, so the removed text is not
    left in free pages. TraceInputError when it is no database or is locked.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as connection:
            columns = _columns(connection)
            with connection:
                changed = sum(_delete_named(connection, columns, table, names) for table, names in (
                    ("META_DATA_CAPTURE", _CAPTURE_NAMES), ("META_DATA_EXPORT", _EXPORT_NAMES),
                    ("EXPORT_META_DATA", _EXPORT_NAMES), ("TARGET_INFO_SYSTEM_ENV", _SYSTEM_NAMES)))
                changed += _disguise_host(connection, columns)
                changed += _empty_files(connection, columns) + _empty_assignments(connection, columns)
            connection.execute("VACUUM")
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise TraceInputError(f"cannot take the environment out of it: {error}", where=str(path),
                              accepted="a SQLite export of nsys that nothing else has open") from error
    return changed


def _columns(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {table: frozenset(row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,)))
            for table in tables}


def _delete_named(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]], table: str,
                  names: tuple[str, ...]) -> int:
    """Delete the rows of a name/value table whose name is like one of `names`; the tables are named in this file."""
    if "name" not in columns.get(table, frozenset()):
        return 0
    condition = " OR ".join("name LIKE ? ESCAPE '\\'" for _ in names)
    return connection.execute(f"DELETE FROM {table} WHERE {condition}", names).rowcount


def _disguise_host(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]]) -> int:
    if not {"name", "value"} <= columns.get("TARGET_INFO_SYSTEM_ENV", frozenset()):
        return 0
    names = connection.execute("SELECT value, rowid FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'").fetchall()
    named = [(f"host-{hashlib.blake2b(str(name).encode(), digest_size=4).hexdigest()}", row) for name, row in names
             if not re.fullmatch(r"host-[0-9a-f]{8}", str(name))]
    connection.executemany("UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE rowid = ?", named)
    return len(named)


def _empty_files(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]]) -> int:
    """Empty the texts of files that nsys took along: what the program printed, and its logs."""
    changed = 0
    for table in ("ProcessStreams", "ANALYSIS_FILE"):
        for column in sorted({"filenameId", "contentId"} & columns.get(table, frozenset())):
            changed += connection.execute("UPDATE StringIds SET value = '' WHERE id IN "
                                          f"(SELECT {column} FROM {table})").rowcount
        if table in columns:
            changed += connection.execute(f"DELETE FROM {table}").rowcount
    return changed


def _empty_assignments(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]]) -> int:
    """Empty texts of the form NAME=value, which processes leave behind by changing their title; never a range's."""
    if "value" not in columns.get("StringIds", frozenset()):
        return 0
    ranges = ("AND id NOT IN (SELECT textId FROM NVTX_EVENTS WHERE textId IS NOT NULL)"
              if "textId" in columns.get("NVTX_EVENTS", frozenset()) else "")
    found = [row for row in connection.execute(f"SELECT value, id FROM StringIds WHERE value LIKE '%=%' {ranges}")
             if re.match(r"[A-Z_][A-Z0-9_]*=", str(row[0]))]
    connection.executemany("UPDATE StringIds SET value = '' WHERE id = ?", [(row[1],) for row in found])
    return len(found)
