"""The console script `regress`: the same engine as the plugin, and every reading command with `--json`."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from regress.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, RegressError

COMMANDS = {
    "run": "measure, judge and store, as `pytest --comm-regress` does",
    "explain": "metrics and findings of any trace: nsys reports, their SQLite exports, torch.profiler JSON",
    "compare": "judge one stored run against another",
    "backtest": "replay a CSV history as if the gate had run on every commit",
    "history": "list, show, export, import, accept and reindex stored runs",
    "report": "write the history report as one HTML page",
    "show": "the latest run and its trends in the terminal",
    "publish": "push stored runs to the configured metrics endpoints",
    "tune": "try settings of NCCL and DistributedDataParallel and say which help",
    "doctor": "what this machine can measure and what stands in the way",
    "selftest": "inject known faults here and now, and show whether the gate catches them",
    "scrub": "take environment, command line, host and user out of a trace's SQLite export",
    "schema": "print the JSON Schema of thresholds, result or stored run",
}
"""Each command is a module of `regress.commands` with `add_arguments(parser)` and `run(arguments) -> exit status`."""
MEASURING = ("run", "tune", "selftest")


class Parser(argparse.ArgumentParser):
    """argparse ends with 2, which is the status of an interrupted run here."""

    def error(self, message: str) -> NoReturn:
        """Usage and what is wrong with it, on stderr."""
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser; only the chosen command's own module is imported."""
    parser = Parser(prog="regress", description="performance gate for GPU-to-GPU communication",
                    epilog="exit status: 0 pass, 1 regression, 2 interrupted, 3 internal error, 4 usage, "
                           "10 the measurement cannot be trusted")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == chosen:
            import_module(f"regress.commands.{name}").add_arguments(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    parser = build_parser(chosen)
    if arguments == ["--version"]:
        from importlib.metadata import version

        print(f"comm-regress {version('comm-regress')}")
        return 0
    parsed = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A sign that the terminal cannot show must not cost the run that was just measured.
            stream.reconfigure(errors="backslashreplace")
    if parsed.command is None:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    try:
        status: int = import_module(f"regress.commands.{parsed.command}").run(parsed)
        sys.stdout.flush()
    except RegressError as error:
        print(f"regress {parsed.command}: {error.text}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print(f"regress {parsed.command}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        return _unwritable(parsed.command, error)
    except Exception:
        # Python ends with 1, which would say that something regressed.
        traceback.print_exc()
        return EXIT_INTERNAL
    return status


def _unwritable(command: str, error: OSError) -> int:
    """The status where output (or another file) fails: never 1, which is a regression's.

    A reader that has had enough (head, less) is no fault of ours, but it ends a gate before it has an answer.
    """
    ended = isinstance(error, BrokenPipeError)
    with contextlib.suppress(OSError):
        if not ended:
            print(f"regress {command}: {f'{error.filename}: ' if error.filename else ''}"
                  f"{error.strerror or error}", file=sys.stderr, flush=True)
    # What is still buffered would fail once more, when Python ends, and change the status.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    return EXIT_OK if ended and command not in MEASURING else EXIT_INTERNAL
