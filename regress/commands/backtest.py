"""`regress backtest`: a CSV history, as if the gate had run on every commit."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from regress.commands import print_json
from regress.errors import UsageError
from regress.judge.backtest import Backtest, backtest
from regress.judge.history_csv import read_rows
from regress.options import parse_effect
from regress.units import Unit, format_change


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The history and the effect that matters."""
    parser.add_argument("csv", metavar="CSV", help="timestamp,commit,metric,value[,unit,better]; - for stdin; rows of "
                                                   "one commit are launches")
    parser.add_argument("--min-effect", metavar="EFFECT", help="smallest change that matters, e.g. 5%%")
    parser.add_argument("--wished-rate", type=float, default=0.01, metavar="RATE",
                        help="false alarms per run that the suggested effects would have kept to (default: 0.01)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Prints alarms and the suggested effect of each metric."""
    try:
        text = sys.stdin.read() if arguments.csv == "-" else Path(arguments.csv).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(str(getattr(error, "strerror", None) or error), where=arguments.csv,
                         accepted="a readable CSV file in UTF-8") from error
    effect = None if arguments.min_effect is None else parse_effect(arguments.min_effect, Unit.SECONDS, "--min-effect")
    found = backtest(read_rows(text, arguments.csv), effect, wished_rate=arguments.wished_rate)
    if arguments.json:
        print_json(found.as_json())
        return 0
    sys.stdout.write(_text(found))
    return 0


def _text(found: Backtest) -> str:
    lines = [f"{found.runs} commits judged, {len(found.alarms)} alarm{'s' if len(found.alarms) != 1 else ''} "
             f"({found.false_alarm_rate * 100:.2f} % of the commits)"]
    lines += [f"  worse: {alarm.metric} at {alarm.commit}: {format_change(alarm.change)} "
              f"({alarm.before:.6g} to {alarm.after:.6g}), certain from {alarm.confirmed_by} on"
              for alarm in found.alarms]
    lines += [f"  better: {alarm.metric} at {alarm.commit}: {format_change(alarm.change)}"
              for alarm in found.improvements]
    lines += [f"  suspected at the end: {metric} at {commit}" for commit, metric in found.suspected]
    lines += [f"effect that would have kept false alarms to the wished rate: {metric}: "
              + ("none of those tried" if effect is None else f"{effect * 100:g} %")
              for metric, effect in found.suggested.items()]
    lines += [f"warning: {text}" for text in found.warnings]
    return "\n".join(lines) + "\n"
