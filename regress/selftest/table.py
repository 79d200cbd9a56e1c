"""The trials as people read them: the table, and what it comes to."""

from __future__ import annotations

from collections.abc import Sequence

from regress.selftest.trials import Trial

_HEADINGS = ("fault", "expected", "cause", "seen", "seconds", "")


def _outcome(trial: Trial) -> str:
    if trial.seen is None:
        return "-"
    return "ok" if trial.seen.caught else "MISSED" if trial.fault.name != "none" else "FALSE ALARM"


def table_lines(trials: Sequence[Trial]) -> list[str]:
    """The table, with what the gate said under each row that went wrong or could not be shown."""
    rows = [_HEADINGS, *((
        trial.fault.name, "not red" if len(trial.fault.verdicts) > 1 else trial.fault.verdicts[0].value,
        trial.cause or "-", trial.seen.verdict.value if trial.seen is not None else "-",
        f"{trial.seconds:.1f}" if trial.seen is not None else "-", _outcome(trial)) for trial in trials)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines = texts[:1]
    for text, trial in zip(texts[1:], trials, strict=True):
        lines.append(text)
        if trial.note:
            lines.append(f"    {trial.note}")
    return lines


def verdict_line(trials: Sequence[Trial]) -> str:
    """What it comes to, in one sentence."""
    shown = [trial for trial in trials if trial.seen is not None]
    missed = [trial.fault.name for trial in shown if not trial.passed]
    absent = len(trials) - len(shown)
    not_here = f"; {absent} cannot be shown on this machine" if absent else ""
    if not shown:
        return f"nothing was tried{not_here}"
    if missed:
        return f"do not trust the gate here: {', '.join(missed)} not judged as expected{not_here}"
    return f"all {len(shown)} trials were judged as expected{not_here}"
