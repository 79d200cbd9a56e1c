"""`regress selftest`: injects known faults into the packaged workloads, here and now, and shows what the gate says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from regress.commands import add_json, print_json
from regress.errors import UsageError
from regress.selftest.faults import FAULTS, Fault
from regress.selftest.table import table_lines, verdict_line
from regress.selftest.trials import Trial, chosen_device, exit_status, open_bench, try_faults
from regress.stopping import terminated_as_interrupted


class _Messages:
    """One line for each trial on stderr; how far a gate is inside does not matter here."""

    def message(self, text: str) -> None:
        """A line of its own."""
        print(text, file=sys.stderr, flush=True)

    def case_started(self, text: str) -> None:
        """Not said."""

    def progress(self, text: str) -> None:
        """Not said."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which faults, on which device."""
    parser.add_argument("--only", action="append", default=[], metavar="FAULT",
                        help=f"only this fault; repeatable: {', '.join(fault.name for fault in FAULTS)}")
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"),
                        help="what to try the gate on (default: GPUs where there are any)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the table; 0 when every fault that this machine can show was caught and unchanged code was not red."""
    faults = chosen(arguments.only)
    device = chosen_device(arguments.device)
    with terminated_as_interrupted(), open_bench(device, _Messages()) as bench:
        trials = tuple(try_faults(bench, faults))
    status = exit_status(trials)
    if arguments.json:
        print_json({"device": device, "exit_status": status, "trials": [as_json(trial) for trial in trials]})
        return status
    for line in table_lines(trials):
        print(line)
    print(f"regress selftest: {verdict_line(trials)}")
    return status


def chosen(names: Sequence[str]) -> tuple[Fault, ...]:
    """The faults of these names in the order of the list, all without names. UsageError for a name that is none."""
    known = {fault.name for fault in FAULTS}
    for name in names:
        if name not in known:
            raise UsageError(f"no fault {name!r}", where="--only", accepted=", ".join(fault.name for fault in FAULTS))
    return tuple(fault for fault in FAULTS if not names or fault.name in names)


def as_json(trial: Trial) -> dict[str, object]:
    """One row; `seen` is null where this machine cannot show the fault."""
    seen = trial.seen
    return {"fault": trial.fault.name, "summary": trial.fault.summary,
            "expected": [verdict.value for verdict in trial.fault.verdicts], "expected_cause": trial.cause,
            "seen": seen.verdict.value if seen is not None else None,
            "seen_cause": seen.cause if seen is not None else None,
            "caught": seen.caught if seen is not None else None, "seconds": round(trial.seconds, 1), "note": trial.note}
