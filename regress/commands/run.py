"""`regress run`: the gate without pytest around it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from regress.commands import color_wanted, write_json
from regress.config import matches
from regress.errors import EXIT_INTERRUPTED, EXIT_NO_CASES, EnvironmentUnfitError, UsageError
from regress.gate_options import GATE_OPTIONS
from regress.record import Verdict
from regress.result import GateOutcome, result_json
from regress.session import GateRequest, open_gate
from regress.terminal import explanation_lines, failure_text, summary_line, table_lines

_COLORS = {Verdict.REGRESSION: "31;1", Verdict.INVALID: "31", Verdict.INCONCLUSIVE: "33", Verdict.NO_BASELINE: "33",
           Verdict.IMPROVEMENT: "32"}


class ConsoleObserver:
    """Progress on stderr, so that stdout holds the result alone."""

    def __init__(self) -> None:
        self._rewrites = sys.stderr.isatty()

    def message(self, text: str) -> None:
        """A line of its own."""
        print(text, file=sys.stderr, flush=True)

    def case_started(self, text: str) -> None:
        """A line of its own, or the same line rewritten on a terminal."""
        print(f"\r\x1b[K{text}" if self._rewrites else text, end="" if self._rewrites else "\n", file=sys.stderr,
              flush=True)

    def progress(self, text: str) -> None:
        """On a terminal only."""
        if self._rewrites:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The gate's flags without their prefix, and which cases."""
    for name, settings in GATE_OPTIONS:
        more = {"nargs": "?", "const": "-", "help": "write the result as JSON; without PATH to stdout"}
        parser.add_argument(f"--{name}", **{**settings, **(more if name == "json" else {})})
    parser.add_argument("--case", action="append", default=[], metavar="PATTERN",
                        help="only cases whose id matches this shell pattern; repeatable")
    parser.add_argument("--quick", action="store_true",
                        help="an answer within a minute: two short launches, no trace; for a desk, before a push")
    parser.add_argument("--list", action="store_true", help="print the cases and measure nothing")


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints, and ends with the gate's exit status."""
    here = Path.cwd()
    to_stdout = arguments.json == "-"
    config = Path(arguments.config) if arguments.config else None
    if config is None and (here / "thresholds.yaml").is_file():
        config = here / "thresholds.yaml"
    gate = open_gate(GateRequest(
        root=here, config=config, history=arguments.history or ".comm-regress", device=arguments.device,
        launches=arguments.launches, budget=arguments.budget, trace=arguments.trace, base=arguments.base,
        accept=arguments.accept, json=Path(arguments.json) if arguments.json and not to_stdout else None,
        html=Path(arguments.html) if arguments.html else None, measure=not arguments.list,
        quick=arguments.quick))
    chosen = [planned for planned in gate.plan
              if not arguments.case or any(matches(planned.case.id, pattern) for pattern in arguments.case)]
    if not chosen:
        raise UsageError(f"no case matches {', '.join(arguments.case)}", where="--case",
                         accepted=", ".join(planned.case.id for planned in gate.plan))
    if arguments.list:
        for planned in chosen:
            print(planned.case.id + (f"  (not here: {planned.unfit})" if planned.unfit else ""))
        return 0
    fit = [planned.case for planned in chosen if planned.unfit is None]
    if not fit:
        raise EnvironmentUnfitError(f"none of the {len(chosen)} cases can run here: {chosen[0].unfit}",
                                    accepted="a machine that has what the cases need")
    observer = ConsoleObserver()
    for line in gate.header():
        observer.message(f"comm-regress: {line}")
    try:
        outcome = gate.run(fit, observer)
    except KeyboardInterrupt:
        if gate.interrupted is not None:
            _print(gate.interrupted, to_stdout)
        return EXIT_INTERRUPTED
    _print(outcome, to_stdout)
    return outcome.exit_status if outcome.result.cases else EXIT_NO_CASES


def _print(outcome: GateOutcome, as_json: bool) -> None:
    if as_json:
        write_json(result_json(outcome.result))
        return
    colored = color_wanted()
    for case in outcome.result.cases:
        if case.verdict in (Verdict.REGRESSION, Verdict.INVALID):
            print(failure_text(case, outcome.environment_changes) + "\n")
    for text, verdict in table_lines(outcome.result):
        code = _COLORS.get(verdict) if verdict is not None and colored else None
        print(f"\x1b[{code}m{text}\x1b[0m" if code else text)
    for text in explanation_lines(outcome.result):
        print(text)
    for warning in outcome.result.warnings:
        print(f"warning: {warning}")
    for kind, path in outcome.result.artifacts.items():
        print(f"{kind}: {path}")
    print(f"comm-regress: {summary_line(outcome.result)} (status {outcome.exit_status})")
