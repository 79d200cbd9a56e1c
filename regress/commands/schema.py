"""`regress schema`: the JSON Schemas, for editors and for readers of our files."""

from __future__ import annotations

import argparse

from regress.catalog import open_shelves
from regress.commands import print_json
from regress.config import config_schema
from regress.record import run_schema
from regress.result import result_schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which schema."""
    parser.add_argument("what", nargs="?", default="thresholds", choices=("thresholds", "result", "run"),
                        help="thresholds: thresholds.yaml (default); result: --comm-regress-json; run: a stored run")
    parser.add_argument("--json", action="store_true", help="accepted for uniformity: a schema always is JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints it."""
    makers = {"thresholds": lambda: config_schema(open_shelves().catalog()), "result": result_schema,
              "run": run_schema}
    print_json(makers[arguments.what]())
    return 0
