"""`regress scrub TRACE...`: takes what a trace must not carry out of SQLite exports, before somebody uploads them."""

from __future__ import annotations

import argparse
from pathlib import Path

from regress.commands import add_json, print_json
from regress.errors import TraceInputError
from regress.trace.nsys_privacy import scrub_sqlite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The exports, changed in place."""
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="SQLite export of nsys; it is changed in place")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Scrubs each file and says how much was taken out; nothing is changed where one of them is no export."""
    paths = [Path(name) for name in arguments.traces]
    for path in paths:
        _check(path)
    changed = {str(path): scrub_sqlite(path) for path in paths}
    if arguments.json:
        print_json({"changed_rows": changed})
        return 0
    for name, rows in changed.items():
        print(f"{name}: {rows} rows taken out or disguised" if rows else f"{name}: nothing to take out")
    return 0


def _check(path: Path) -> None:
    """Refuses what cannot be scrubbed by its name, before anything is changed."""
    if path.name.endswith(".nsys-rep"):
        raise TraceInputError("a report cannot be scrubbed", where=str(path), accepted="its SQLite export",
                              next_step="`nsys export --type sqlite`, scrub that, and keep the report to yourself")
    if not path.is_file():
        raise TraceInputError("no such file", where=str(path), accepted="a SQLite export of nsys")
