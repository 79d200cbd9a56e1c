"""The commands of the console script, one file each: arguments in, text or JSON on stdout, exit status out."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from regress.catalog import Shelves
from regress.config import Config, load_config
from regress.history.store import DEFAULT_FOLDER, History, open_history


def add_history(parser: argparse.ArgumentParser) -> None:
    """The option that says where the history is."""
    parser.add_argument("--history", metavar="URL", default=DEFAULT_FOLDER,
                        help=f"history folder or postgresql://... (default: {DEFAULT_FOLDER})")


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option that asks for JSON on stdout."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def history_of(arguments: argparse.Namespace) -> History:
    """The history that the arguments name, beside the repository of the working folder."""
    return open_history(arguments.history, repository=Path.cwd())


def config_of(arguments: argparse.Namespace, shelves: Shelves) -> Config:
    """The thresholds that `--config` names, else thresholds.yaml of the working folder, else the packaged one."""
    here = Path("thresholds.yaml")
    chosen = Path(arguments.config) if arguments.config else here if here.is_file() else None
    return load_config(chosen, shelves.catalog())


def print_json(value: Any) -> None:
    """Any record or JSON value, indented, on stdout."""
    write_json(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def write_json(content: bytes) -> None:
    """JSON on stdout, as UTF-8 whatever the terminal's encoding: a reader of JSON takes no other."""
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def color_wanted() -> bool:
    """Whether stdout is a terminal that should get colour (NO_COLOR is respected)."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ
