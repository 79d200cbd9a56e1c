"""The gate's result as text: the final table, one failing case, one summary line. Pure: results in, lines out."""

from __future__ import annotations

from collections import Counter

from regress.record import SEVEREST_FIRST, Verdict
from regress.result import CaseRow, GateResult, MetricRow
from regress.units import Unit, counted, format_change, format_value

VERDICT_WORDS = {
    Verdict.PASS: "PASS",
    Verdict.REGRESSION: "REGRESSION",
    Verdict.IMPROVEMENT: "IMPROVED",
    Verdict.INCONCLUSIVE: "INCONCLUSIVE",
    Verdict.NO_BASELINE: "NO BASELINE",
    Verdict.INVALID: "INVALID",
}
_COUNTED = {
    Verdict.PASS: ("unchanged", "unchanged"),
    Verdict.REGRESSION: ("regression", "regressions"),
    Verdict.IMPROVEMENT: ("improvement", "improvements"),
    Verdict.INCONCLUSIVE: ("inconclusive", "inconclusive"),
    Verdict.NO_BASELINE: ("without baseline", "without baseline"),
    Verdict.INVALID: ("invalid", "invalid"),
}
_HEADINGS = ("case", "metric", "now", "baseline", "change", "verdict")


def change_text(row: MetricRow) -> str:
    """The change with its interval: `+12.3 % [+9.1, +15.6]`; a dash where there is nothing to compare with."""
    text = format_change(row.change)
    if row.change is None or row.interval is None:
        return text
    low, high = row.interval
    if row.change >= 2:
        return f"{text} [×{low + 1:.2f}, ×{high + 1:.2f}]"
    return f"{text} [{low * 100:+.1f}, {high * 100:+.1f}]"


def _cells(case: CaseRow) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for index, row in enumerate(case.metrics):
        unit = Unit(row.unit)
        lines.append((case.case if index == 0 else "", row.metric, format_value(row.now, unit),
                      format_value(row.baseline, unit), change_text(row), VERDICT_WORDS[row.verdict]))
    return lines or [(case.case, "", "", "", "", VERDICT_WORDS[case.verdict])]


def table_lines(result: GateResult) -> list[tuple[str, Verdict | None]]:
    """The final table, worst case first: each line with the verdict that colours it, None for headings.

    A reason follows under every case that is not simply a pass.
    """
    blocks = [(case, _cells(case)) for case in result.cases]
    rows = [_HEADINGS, *(cells for _, lines in blocks for cells in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]

    def line(cells: tuple[str, ...]) -> str:
        return "  ".join(
            cell.rjust(width) if heading in ("now", "baseline") else cell.ljust(width)
            for cell, width, heading in zip(cells, widths, _HEADINGS, strict=True)).rstrip()

    text: list[tuple[str, Verdict | None]] = [(line(_HEADINGS), None)]
    for case, lines in blocks:
        reasons: dict[Verdict, str] = {}
        for index, cells in enumerate(lines):
            row = case.metrics[index] if case.metrics else None
            text.append((line(cells), row.verdict if row else case.verdict))
            if row is not None and row.verdict not in (Verdict.PASS, Verdict.NO_BASELINE):
                reasons.setdefault(row.verdict, row.reason)
        # Time and bandwidth say the same thing twice: one reason for each verdict of a case is enough here. Of one
        # that goes on with a rank's last lines, `failure_text` has the rest.
        told = [*reasons.values(), *(case.warnings if case.verdict not in (Verdict.PASS, Verdict.NO_BASELINE) else ())]
        text.extend((f"    {line_of.partition(chr(10))[0]}", None) for line_of in told)
    return text


def summary_line(result: GateResult) -> str:
    """`3 regressions, 1 improvement, 56 unchanged`: cases by verdict, worst first."""
    counts = Counter(case.verdict for case in result.cases)
    parts = [f"{counts[v]} {_COUNTED[v][counts[v] != 1]}" for v in SEVEREST_FIRST if counts[v]]
    return ", ".join(parts) if parts else "no case was measured"


def explanation_lines(result: GateResult) -> list[str]:
    """What the trace says of cases that are not well, and what is critical anywhere: each once, with what to try."""
    lines: list[str] = []
    seen: set[str] = set()
    for case in result.cases:
        unwell = case.verdict in (Verdict.REGRESSION, Verdict.INCONCLUSIVE, Verdict.INVALID)
        for finding in case.findings:
            if finding["cause"] not in seen and (unwell or finding["severity"] == "critical"):
                seen.add(finding["cause"])
                lines += [f"{finding['severity']}: {finding['rule']}: {finding['cause']}", f"    try: {finding['try']}",
                          *(f"    leads to {one['rule']}: {one['cause']}" for one in finding.get("consequences", ()))]
    return lines


def failure_headline(case: CaseRow) -> str:
    """One failing case on one line, for summaries that have the case's name already."""
    if not case.metrics:
        return VERDICT_WORDS[case.verdict]
    worst = case.metrics[0]
    told = worst.reason if worst.change is None else f"{worst.metric} {change_text(worst)}"
    return f"{VERDICT_WORDS[case.verdict]}: {told}"


def failure_text(case: CaseRow, environment_changes: tuple[str, ...]) -> str:
    """One failing case in full: what, by how much, against what, how sure, what differs, how to run it again."""
    lines = [f"{case.case}: {VERDICT_WORDS[case.verdict]}"]
    # Where results are wrong there are no figures, and that every one of them is missing needs no telling.
    wrong = [row for row in case.metrics if row.detector == "correctness"]
    for row in wrong or case.metrics:
        if row.verdict is Verdict.PASS:
            continue
        if row.now is None:
            lines.append(f"  {row.metric}: {row.reason}")
            continue
        unit = Unit(row.unit)
        lines.append(f"  {row.metric} ({row.statistic}): {format_value(row.now, unit)} now, "
                     f"{format_value(row.baseline, unit)} in the baseline, {change_text(row)}: "
                     f"{VERDICT_WORDS[row.verdict]} by {row.detector}, "
                     f"{counted(row.launches, 'launch', 'launches')}")
        lines.append(f"    {row.reason}")
        lines += [f"    note: {warning}" for warning in row.warnings]
    lines += [f"  {warning}" for warning in case.warnings]
    for finding in case.findings:
        lines += [f"  why: {finding['cause']}", f"    try: {finding['try']}"]
    if environment_changes:
        lines.append(f"  different since the baseline: {'; '.join(environment_changes)}")
    lines.append(f"  again: {case.rerun}")
    return "\n".join(lines)
