"""The history in a terminal: the latest verdict in words and the table worst first, as wide as the terminal is."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from regress.record import Run, Verdict
from regress.trend import ChangePoint, Trend
from regress.trend.fold import fold
from regress.trend.overview import (
    Row,
    belief,
    changes_in_words,
    commit_name,
    explanations,
    format_interval,
    headline,
    recent_changes,
    rows,
    visible,
)
from regress.units import format_change, format_value

BLOCKS = "▁▂▃▄▅▆▇█"
STYLES = {Verdict.PASS: "", Verdict.REGRESSION: "bold red", Verdict.IMPROVEMENT: "green",
          Verdict.INCONCLUSIVE: "yellow", Verdict.NO_BASELINE: "dim", Verdict.INVALID: "bold magenta"}
MINIMUM_WIDTH = 40
GAP = 2
SPARK = 16
SINCE_WIDTH = (10, 48)
"""Room for a short hash, and for a subject that is still one line."""
NEEDED = ("Case", "Metric", "Now", "Change", "Verdict", "Since")
DISPENSABLE = ("Now", "Since")
"""Needed columns that a very narrow terminal loses, the first one first."""
WANTED = ("Last runs", "Baseline", "Interval")
"""Columns beside the needed ones, the most telling first: added while there is room."""
ORDER = ("Case", "Metric", "Last runs", "Now", "Baseline", "Change", "Interval", "Verdict", "Since")
NUMBERS = frozenset(("Now", "Baseline", "Change", "Interval"))


def show_table(
    runs: Iterable[Run],
    width: int,
    color: bool,
    *,
    change_points: Mapping[tuple[str, str], Sequence[ChangePoint]] | None = None,
    git_order: Sequence[str] | None = None,
) -> str:
    """The first screen as text that ends in a newline.

    runs: newest first, read once. width: columns of the terminal, at least 40 are used. color: False gives plain
    text without any escape sequence, for pipes. Metrics that no detector judges are left out and counted.
    """
    trend = fold(runs, git_order)
    ordered = rows(trend, change_points)
    out = io.StringIO()
    console = Console(file=out, width=max(width, MINIMUM_WIDTH), force_terminal=color, no_color=not color,
                      color_system="standard" if color else None, highlight=False, markup=False, emoji=False,
                      legacy_windows=False)
    words = headline(trend, ordered)
    if trend.latest is None or words is None:
        console.print("No runs yet. Run: pytest --comm-regress")
        return out.getvalue()
    console.print(Text(words.sentence, STYLES[words.verdict] or "bold"))
    for line in (words.detail, words.since):
        if line:
            console.print(Text(line))
    console.print(_table(trend, ordered, console.width))
    for line in _footer(trend, trend.latest, ordered):
        console.print(Text(visible(line)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _table(trend: Trend, ordered: Sequence[Row], width: int) -> Table:
    judged = [(row, _cells(trend, row)) for row in ordered if row.verdict is not None]
    widths = {name: max([len(name), *(cells[name].cell_len for _, cells in judged)]) for name in ORDER}
    shown, stacked, since = _columns(widths, width)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, GAP, 0, 0))
    for name in shown:
        table.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap=name not in ("Case", "Metric"),
                         overflow="ellipsis" if name == "Since" else "fold",
                         max_width=since if name == "Since" else None)
    for row, cells in judged:
        if stacked:
            cells["Case"] = Text("\n").join([cells["Case"], cells["Metric"]])
        table.add_row(*(cells[name] for name in shown), style=STYLES[row.verdict] if row.verdict else "")
    return table


def _columns(widths: Mapping[str, int], width: int) -> tuple[list[str], bool, int]:
    """The columns there is room for, whether case and metric share one, one above the other, and what Since gets."""
    def taken(names: Sequence[str]) -> int:
        needed = {**widths, "Since": min(widths["Since"], SINCE_WIDTH[0])}
        return sum(needed[name] for name in names) + GAP * (len(names) - 1)

    chosen = list(NEEDED)
    stacked = taken(chosen) > width
    if stacked:
        chosen.remove("Metric")
        widths = {**widths, "Case": max(widths["Case"], widths["Metric"])}
    for name in DISPENSABLE:
        if taken(chosen) > width:
            chosen.remove(name)
    for name in WANTED:
        if taken([*chosen, name]) <= width:
            chosen.append(name)
    since = min(SINCE_WIDTH[1], SINCE_WIDTH[0] + width - taken(chosen))
    return sorted(chosen, key=ORDER.index), stacked, since


def _cells(trend: Trend, row: Row) -> dict[str, Text]:
    series, finding = row.series, row.finding
    text = {
        "Case": visible(series.case.id),
        "Metric": visible(series.metric),
        "Last runs": sparkline(row.recent[-SPARK:]),
        "Now": format_value(row.now, series.unit),
        "Baseline": format_value(finding.baseline if finding else None, series.unit),
        "Change": format_change(finding.change if finding else None),
        "Interval": format_interval(finding) or "–",
        "Verdict": row.verdict.value if row.verdict else "",
        "Since": commit_name(trend.runs[row.since]) if row.since is not None else "–",
    }
    return {name: Text(value) for name, value in text.items()}


def _footer(trend: Trend, run: Run, ordered: Sequence[Row]) -> list[str]:
    lines = [f"Why: {diagnosis.cause.rstrip('.')}. Try: {diagnosis.suggestion}" for diagnosis in explanations(run)[:1]]
    sentence, reasons = belief(run)
    lines.append(f"Machine to be believed? {sentence} {' '.join(reasons[:2])}".rstrip())
    changed = changes_in_words(recent_changes(trend))
    if changed:
        lines.append(f"Changed since the baseline: {changed}")
    unjudged = sum(row.verdict is None for row in ordered)
    if unjudged:
        lines.append(f"Not shown: {unjudged} series that no detector judges.")
    return lines


def sparkline(values: Sequence[float]) -> str:
    """One block a value; a flat line sits in the middle."""
    if not values:
        return ""
    low, high = min(values), max(values)
    if high <= low:
        return BLOCKS[3] * len(values)
    return "".join(BLOCKS[min(7, int(8 * (value - low) / (high - low)))] for value in values)
