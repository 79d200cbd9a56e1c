"""`regress compare RUN RUN`: judges one stored run against another, as they are."""

from __future__ import annotations

import argparse
from dataclasses import replace

from regress.catalog import open_shelves
from regress.commands import add_history, add_json, config_of, history_of, write_json
from regress.errors import HistoryError
from regress.judge.baseline import environment_changes
from regress.judge.verdict import compare
from regress.record import Verdict
from regress.result import cases_of, gate_result, result_json
from regress.session import gated_policies
from regress.terminal import failure_text, summary_line, table_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two runs, and the thresholds to judge with."""
    parser.add_argument("before", metavar="BEFORE", help="run id, or the beginning of one: the baseline")
    parser.add_argument("now", metavar="NOW", help="run id, or the beginning of one: the run to judge")
    parser.add_argument("--config", metavar="PATH", help="thresholds file (default: thresholds.yaml here, else the "
                                                         "packaged one)")
    add_history(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the comparison; exit status 1 on a regression."""
    shelves = open_shelves()
    config = config_of(arguments, shelves)
    with history_of(arguments) as history:
        before, now = history.get(arguments.before), history.get(arguments.now)
    different = sorted(fact for fact in {*before.environment.must_match, *now.environment.must_match}
                       if before.environment.must_match.get(fact) != now.environment.must_match.get(fact))
    if different:
        facts = "; ".join(f"{fact}: {before.environment.must_match.get(fact)} there, "
                          f"{now.environment.must_match.get(fact)} here" for fact in different)
        raise HistoryError(f"the two runs were measured in different environments: {facts}",
                           accepted="two runs whose must-match facts agree",
                           next_step="`regress history list` shows each run's environment")
    judgement = compare(now, before, gated_policies(config, shelves, cases_of(now)))
    judged = replace(now, verdict=judgement.verdict, verdicts=judgement.verdicts, findings=judgement.findings,
                     warnings=judgement.warnings)
    result = gate_result(judged, judgement.exit_status)
    if arguments.json:
        write_json(result_json(result))
        return judgement.exit_status
    changes = environment_changes(now.environment, before.environment)
    print(f"run {now.run_id} against run {before.run_id}")
    for case in result.cases:
        if case.verdict in (Verdict.REGRESSION, Verdict.INVALID):
            print(failure_text(case, changes) + "\n")
    for text, _ in table_lines(result):
        print(text)
    for change in changes:
        print(f"different: {change}")
    print(f"comm-regress: {summary_line(result)} (status {judgement.exit_status})")
    return judgement.exit_status
