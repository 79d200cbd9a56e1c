"""`regress show`: the report's first table in the terminal."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import msgspec

from regress.commands import add_history, add_json, color_wanted, history_of, print_json
from regress.publish.terminal_history import show_table
from regress.reporting import chosen_runs, git_order, stored_change_points
from regress.result import gate_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What of the history."""
    parser.add_argument("--since", metavar="TIME", help="only runs since this ISO 8601 time, e.g. 2026-01-31")
    parser.add_argument("--case", action="append", default=[], metavar="PATTERN",
                        help="only cases whose id matches this shell pattern; repeatable")
    add_history(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints it; plain where stdout is no terminal."""
    with history_of(arguments) as history:
        runs = chosen_runs(history, arguments.since, arguments.case)
    if arguments.json:
        print_json(msgspec.to_builtins(gate_result(runs[0], 0)) if runs else None)
        return 0
    width = shutil.get_terminal_size((100, 24)).columns
    print(show_table(runs, width, color_wanted(), change_points=stored_change_points(runs),
                     git_order=git_order(Path.cwd())))
    return 0
