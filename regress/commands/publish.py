"""`regress publish`: stored runs to metrics endpoints, and a gate's JSON to GitHub or GitLab."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec

from regress.catalog import open_shelves
from regress.commands import add_history, add_json, config_of, history_of, print_json
from regress.errors import EXIT_UNTRUSTED, PublishError, UsageError
from regress.forge.command import add_github_arguments, add_gitlab_arguments, run_github, run_gitlab
from regress.publish import Result
from regress.publish.spool import Delivery, verified
from regress.publishing import configured_sinks, repository_name, spool_of

_FORGES = {"github": (add_github_arguments, run_github), "gitlab": (add_gitlab_arguments, run_gitlab)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`github`, `gitlab`, or `sinks` with runs to push again."""
    targets = parser.add_subparsers(dest="target", metavar="TARGET", required=True)
    for name, (add, _) in _FORGES.items():
        add(targets.add_parser(name, help=f"summary and comment on {'GitHub' if name == 'github' else 'GitLab'}"))
    sinks = targets.add_parser("sinks", help="retry what waits, and push stored runs to the configured sinks")
    sinks.add_argument("runs", nargs="*", metavar="RUN", help="run ids to push again (default: only what waits)")
    sinks.add_argument("--since", metavar="TIME", help="push every run since this ISO 8601 time")
    sinks.add_argument("--verify", action="store_true", help="read one sample of each pushed run back")
    sinks.add_argument("--config", metavar="PATH", help="thresholds file that names the sinks")
    add_history(sinks)
    add_json(sinks)


def run(arguments: argparse.Namespace) -> int:
    """Pushes; status 10 when something was not delivered."""
    if arguments.target in _FORGES:
        return _FORGES[arguments.target][1](arguments)
    shelves = open_shelves()
    config = config_of(arguments, shelves)
    sinks = configured_sinks(config, shelves)
    if not sinks:
        raise UsageError("no sink is configured", where=config.source, accepted="a section publish",
                         next_step=f"choose among {', '.join(shelves.sinks)}; see docs/thresholds.md")
    spool = spool_of(arguments.history)
    deliveries: list[Delivery] = list(spool.retry(sinks, time.time(), at_once=True))
    checks: list[str] = []
    problems: list[str] = []
    with history_of(arguments) as history:
        runs = [history.get(run_id) for run_id in arguments.runs]
        runs += list(history.runs(since=arguments.since, samples=True)) if arguments.since else []
    # Oldest first: without an out-of-order window a server takes nothing older than what it has.
    unique = {(stored.run_id, stored.attempt): stored for stored in runs}
    for stored in sorted(unique.values(), key=lambda stored: (stored.started_at, stored.attempt)):
        result = Result(stored, repository_name(Path.cwd()))
        deliveries += spool.publish(sinks, result, time.time())
        if arguments.verify:
            try:
                checks += [f"{sink}: {found}" for sink, found in verified(sinks, result).items()]
            except PublishError as error:
                problems.append(error.text)
    problems += [f"{delivery.sink}: {text}" for delivery in deliveries for text in delivery.problems]
    if arguments.json:
        print_json({"deliveries": msgspec.to_builtins(deliveries), "verified": checks, "problems": problems})
    else:
        for delivery in deliveries:
            for text in delivery.sent:
                print(f"{delivery.sink} {delivery.destination}: {text}")
        for text in checks:
            print(text)
        for text in problems:
            print(text, file=sys.stderr)
        if not any(delivery.sent for delivery in deliveries) and not problems:
            print("nothing to push: no payload waits and no run was named")
    return EXIT_UNTRUSTED if problems else 0
