"""`regress doctor`: what this machine can measure, and what stands in the way, each with the fix."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from regress.commands import add_history, add_json, color_wanted, print_json
from regress.doctor.collect import Question, collect_facts
from regress.doctor.facts import Level
from regress.doctor.report import examine, report_json, report_lines
from regress.errors import EXIT_OK

_COLORS = {Level.OK: "32", Level.WARN: "33", Level.BLOCKS: "31;1"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to look at, and how strictly."""
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto",
                        help="what is to be measured: NCCL on GPUs (cuda), gloo on the CPU (cpu), or whichever is "
                             "there (default: auto)")
    parser.add_argument("--config", metavar="PATH",
                        help="thresholds file (default: thresholds.yaml of this folder, else the packaged one)")
    parser.add_argument("--ci", action="store_true",
                        help="end with status 10 when something blocks, or would leave a run inconclusive")
    add_history(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Looks, prints; without --ci it ends with 0 whatever it found."""
    here = Path.cwd()
    config = Path(arguments.config) if arguments.config else None
    if config is None and Path("thresholds.yaml").is_file():
        config = Path("thresholds.yaml")
    report = examine(collect_facts(Question(here, config, arguments.history, arguments.device)))
    if arguments.json:
        print_json(report_json(report))
    else:
        colored = color_wanted()
        for text, level in report_lines(report):
            print(f"\x1b[{_COLORS[level]}m{text}\x1b[0m" if colored and level is not None else text)
    if not arguments.ci:
        return EXIT_OK
    for finding in report.obstacles:
        print(f"regress doctor: {finding.name}: {finding.seen}; {finding.fix}", file=sys.stderr)
    return report.ci_status
