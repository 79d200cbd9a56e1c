"""`regress history`: what is stored, moved, accepted and rebuilt."""

from __future__ import annotations

import argparse
import datetime
import getpass
import os
import sys

from regress.catalog import open_shelves
from regress.commands import add_history, add_json, config_of, history_of, print_json
from regress.errors import EXIT_UNTRUSTED, UsageError
from regress.history.exchange import export, import_
from regress.history.store import History
from regress.record import Run
from regress.result import gate_result
from regress.terminal import summary_line, table_lines
from regress.units import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """list, show, export, import, reindex, accept, prune."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="stored runs, newest first")
    listing.add_argument("--limit", type=int, default=20, metavar="N", help="at most N runs (default: 20)")
    show = actions.add_parser("show", help="one run in full")
    show.add_argument("run", metavar="RUN", help="a run id, or the beginning of one")
    exporting = actions.add_parser("export", help="all runs as NDJSON")
    exporting.add_argument("target", nargs="?", default="-", metavar="FILE", help="a file, or - for stdout (default)")
    importing = actions.add_parser("import", help="runs from NDJSON; those already there stay as they are")
    importing.add_argument("source", nargs="?", default="-", metavar="FILE", help="a file, or - for stdin (default)")
    accept = actions.add_parser("accept", help="make a run the anchor that later runs are compared with")
    accept.add_argument("run", metavar="RUN", help="a run id, or the beginning of one")
    accept.add_argument("--reason", required=True, help="one sentence that says why")
    accept.add_argument("--case", action="append", metavar="CASE", help="only this case; repeatable (default: all)")
    accept.add_argument("--config", metavar="PATH", help="thresholds file that may allow it where CI is set")
    prune = actions.add_parser("prune", help="drop raw samples of old runs; statistics stay")
    prune.add_argument("--keep", type=int, default=200, metavar="N", help="runs that keep their samples (default: 200)")
    reindex = actions.add_parser("reindex", help="rebuild the index from the stored runs")
    for action in (listing, show, exporting, importing, accept, prune, reindex):
        add_history(action)
        add_json(action)


def run(arguments: argparse.Namespace) -> int:
    """Does it; unreadable files are named on stderr and left alone."""
    with history_of(arguments) as history:
        status = _ACTIONS[arguments.action](history, arguments)
        for problem in history.problems():
            print(f"not read: {problem.text}", file=sys.stderr)
    return status


def _row(run: Run) -> dict[str, object]:
    return {"run": run.run_id, "attempt": run.attempt, "started_at": run.started_at, "commit": run.commit.sha,
            "branch": run.commit.branch, "verdict": run.verdict.value, "partial": run.partial,
            "environment": run.environment.fingerprint, "cases": len(run.verdicts),
            "accepted": run.accepted.reason if run.accepted is not None else None}


def _list(history: History, arguments: argparse.Namespace) -> int:
    rows = [_row(run) for run in history.runs(arguments.limit)]
    if arguments.json:
        print_json(rows)
        return 0
    if not rows:
        print(f"no runs in {history.location}")
    for row in rows:
        marks = " partial" if row["partial"] else ""
        marks += f" accepted: {row['accepted']}" if row["accepted"] else ""
        print(f"{row['run']}  {str(row['started_at'])[:16].replace('T', ' ')}  {str(row['commit'] or '-')[:10]:10}  "
              f"{row['branch'] or '-'}  {row['verdict']}  {row['cases']} cases{marks}")
    return 0


def _show(history: History, arguments: argparse.Namespace) -> int:
    stored = history.get(arguments.run)
    if arguments.json:
        print_json(stored)
        return 0
    result = gate_result(stored, 0)
    print(f"run {stored.run_id} of {stored.started_at}, commit {stored.commit.sha or 'unknown'} "
          f"({stored.commit.subject or 'no subject'})")
    for name, value in {**stored.environment.must_match, **stored.environment.reported}.items():
        if value is not None:
            print(f"  {name}: {value}")
    for text, _ in table_lines(result):
        print(text)
    print(summary_line(result))
    return 0


def _export(history: History, arguments: argparse.Namespace) -> int:
    count = export(history, arguments.target)
    print(f"{counted(count, 'run')} exported", file=sys.stderr)
    return 0


def _import(history: History, arguments: argparse.Namespace) -> int:
    imported = import_(history, arguments.source)
    if arguments.json:
        print_json(imported)
    else:
        print(f"{counted(imported.added, 'run')} added, {imported.already} were there already")
    for problem in imported.problems:
        print(f"not read: {problem.text}", file=sys.stderr)
    return EXIT_UNTRUSTED if imported.problems else 0


def _accept(history: History, arguments: argparse.Namespace) -> int:
    _refuse_in_ci(arguments)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    accepted = history.accept(arguments.run, arguments.reason, getpass.getuser(), now, arguments.case)
    if arguments.json:
        print_json(_row(accepted))
    else:
        which = ", ".join(arguments.case) if arguments.case else "all cases"
        print(f"run {accepted.run_id} is the anchor of {which}: later runs are compared from here on")
    return 0


def _refuse_in_ci(arguments: argparse.Namespace) -> None:
    """As the gate does: what a pull request's job may run must not say what later runs are compared with."""
    if os.environ.get("CI") and not config_of(arguments, open_shelves()).gate.accept_in_ci:
        raise UsageError("accepting a new anchor while CI is set", where="regress history accept",
                         accepted="`gate: {accept_in_ci: true}` in the thresholds file", next_step="accept on a desk")


def _prune(history: History, arguments: argparse.Namespace) -> int:
    freed = history.prune(arguments.keep)
    print_json({"freed_bytes": freed}) if arguments.json else print(f"{freed} bytes freed")
    return 0


def _reindex(history: History, arguments: argparse.Namespace) -> int:
    count = history.reindex()
    print_json({"runs": count}) if arguments.json else print(f"{counted(count, 'run')} indexed")
    return 0


_ACTIONS = {"list": _list, "show": _show, "export": _export, "import": _import, "accept": _accept, "prune": _prune,
            "reindex": _reindex}
