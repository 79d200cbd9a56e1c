"""`regress report`: the history as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from regress.catalog import open_shelves
from regress.commands import add_history, add_json, config_of, history_of, print_json
from regress.reporting import write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to, and what of the history."""
    parser.add_argument("-o", "--output", metavar="PATH", default="comm-regress.html",
                        help="file to write (default: comm-regress.html)")
    parser.add_argument("--since", metavar="TIME", help="only runs since this ISO 8601 time, e.g. 2026-01-31")
    parser.add_argument("--case", action="append", default=[], metavar="PATTERN",
                        help="only cases whose id matches this shell pattern; repeatable")
    parser.add_argument("--config", metavar="PATH", help="thresholds file, for the limit lines")
    add_history(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Writes it and says where."""
    target = Path(arguments.output)
    with history_of(arguments) as history:
        count = write_report(history, target, Path.cwd(), config_of(arguments, open_shelves()),
                             since=arguments.since, cases=arguments.case)
    if arguments.json:
        print_json({"path": str(target), "runs": count})
    else:
        print(f"{target}: {count} run{'s' if count != 1 else ''}")
    return 0
