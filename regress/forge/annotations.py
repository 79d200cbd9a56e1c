"""Workflow commands: the lines a step prints to have something shown at the top of a run and on its pull request.

GitHub shows 10 errors and 10 warnings of a step and silently drops the rest, so the worst come first and no more are
printed. Escaping is that of the runner's own toolkit: %, CR and LF in the message, and : and , in a property.
"""

from __future__ import annotations

import itertools

from regress.forge.markdown import one_line
from regress.forge.page import headline
from regress.forge.result_file import Judged, worst_rows
from regress.record import Verdict
from regress.result import GateResult
from regress.terminal import VERDICT_WORDS, change_text
from regress.units import Unit, counted, format_value

MOST_OF_A_KIND = 10


def message(text: str) -> str:
    """The part after `::`."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def property_value(text: str) -> str:
    """The value of `title=` and its like."""
    return message(text).replace(":", "%3A").replace(",", "%2C")


def command(level: str, title: str, text: str) -> str:
    """One line for stdout. level: error, warning or notice."""
    return f"::{level} title={property_value(one_line(title))}::{message(text)}"


def annotation_lines(result: GateResult) -> list[str]:
    """One error for each regression that fails the build and each invalid case, one warning for each that only warns
    or stayed undecided; at most 10 of each, worst first, and a notice with the counts."""
    errors, warnings = [], []
    for judged in worst_rows(result):
        verdict, severity = judged.row.verdict, judged.row.severity
        if verdict is Verdict.INVALID or (verdict is Verdict.REGRESSION and severity == "fail"):
            errors.append(_of_row("error", judged))
        elif verdict is Verdict.INCONCLUSIVE or (verdict is Verdict.REGRESSION and severity == "warn"):
            warnings.append(_of_row("warning", judged))
    for case in result.cases:
        # A case without any number (a hang, a wrong result) has no row to speak for it.
        if case.verdict is Verdict.INVALID and not any(row.verdict is Verdict.INVALID for row in case.metrics):
            said = "\n".join([*map(one_line, case.warnings[:5]), f"again: {one_line(case.rerun)}"])
            errors.insert(0, command("error", f"{one_line(case.case)}: INVALID", said))
    warnings += [command("warning", "comm-regress", one_line(text)) for text in result.warnings]
    summary = headline(result)
    hidden = sum(max(0, len(kind) - MOST_OF_A_KIND) for kind in (errors, warnings))
    if hidden:
        summary += f"; {hidden} more in the job summary: GitHub shows {MOST_OF_A_KIND} of a kind"
    return [*itertools.islice(errors, MOST_OF_A_KIND), *itertools.islice(warnings, MOST_OF_A_KIND),
            command("notice", "comm-regress", summary)]


def _of_row(level: str, judged: Judged) -> str:
    case, row = judged.case, judged.row
    unit = Unit(row.unit)
    figures = f"{format_value(row.now, unit)} now, {format_value(row.baseline, unit)} in the baseline, " \
              f"{change_text(row)}, {counted(row.launches, 'launch', 'launches')}"
    return command(level, f"{one_line(case.case)}: {VERDICT_WORDS[row.verdict]}",
                   f"{one_line(row.metric)}: {figures}\n{one_line(row.reason)}\nagain: {one_line(case.rerun)}")
