"""One result as Markdown: job summary, pull-request comment and GitLab's note are this page, cut differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from regress.forge.markdown import Section, code, link, one_line, prose, table_row, utf8_bytes, utf16_units
from regress.forge.markdown import fitted as fit
from regress.forge.result_file import Judged, commit_fact, run_fact, texts, worst_rows
from regress.forge.trend_blocks import trend_blocks
from regress.record import Verdict
from regress.result import CaseRow, GateResult
from regress.terminal import VERDICT_WORDS, change_text, summary_line
from regress.units import Unit, format_value

SUMMARY_BYTES = 900 * 1024
"""GitHub drops a step's summary whole beyond 1 MiB, and summaries cut at 1,000,000 were still refused."""

COMMENT_CHARACTERS = 60_000
"""GitHub refuses a comment beyond 65,536 characters, GitLab a note beyond 1,000,000."""

SYMBOLS = {Verdict.PASS: "✅", Verdict.REGRESSION: "❌", Verdict.IMPROVEMENT: "🚀", Verdict.INCONCLUSIVE: "❔",
           Verdict.NO_BASELINE: "🆕", Verdict.INVALID: "⛔"}

MEANINGS = {
    Verdict.PASS: "Nothing is slower.",
    Verdict.REGRESSION: "Communication got slower, and the slowdown was measured again before this build failed.",
    Verdict.IMPROVEMENT: "Something got faster and nothing got slower.",
    Verdict.INCONCLUSIVE: "The launches, or the machine, were too unsteady to tell; nothing is proven slower.",
    Verdict.NO_BASELINE: "NO BASELINE: the first run here. It was recorded, and later runs are compared with it.",
    Verdict.INVALID: "The measurement cannot be trusted, so it says nothing about this commit.",
}

_HEADINGS = ("", "case", "metric", "now", "baseline", "change", "launches", "verdict")
_TRENDS = 3

Trends = Mapping[tuple[str, str], Sequence[float]]
"""(case id, metric) to the medians of earlier runs and this one, oldest first, in the metric's unit."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the page knows beside the result. status_known: whether the result's exit status is the gate's own."""

    trends: Trends = field(default_factory=dict)
    run_url: str | None = None
    status_known: bool = True


def summary_page(result: GateResult, around: Surroundings) -> str:
    """Everything, worst first, at most 900 KiB of UTF-8."""
    return fit([_opening(result, around), _table(worst_rows(result)), _reasons(result), _explanations(result),
                _trend(result, around), _warnings(result), _measured(result), _environment(result), _files(result)],
               SUMMARY_BYTES, utf8_bytes)


def comment_page(result: GateResult, around: Surroundings, marker: str = "") -> str:
    """The same for a conversation, at most 60,000 characters: what passed is folded away. Begins with the marker."""
    rows = worst_rows(result)
    quiet = (Verdict.PASS, Verdict.NO_BASELINE)
    loud = [judged for judged in rows if judged.row.verdict not in quiet]
    calm = [judged for judged in rows if judged.row.verdict in quiet]
    opening = _opening(result, around)
    sections = [Section("\n".join(filter(None, [marker, opening.head]))), *([_table(loud)] if loud else []),
                _reasons(result), _explanations(result), _trend(result, around), _warnings(result),
                *([_table(calm, folded=True)] if calm else []), _environment(result)]
    return fit(sections, COMMENT_CHARACTERS, utf16_units)


def headline(result: GateResult) -> str:
    """The title in plain text: `REGRESSION: 2 regressions, 5 unchanged`."""
    return f"{VERDICT_WORDS[result.verdict]}: {summary_line(result)}"


def _opening(result: GateResult, around: Surroundings) -> Section:
    facts = [f"exit status {result.exit_status}"] if around.status_known else []
    sha, subject = commit_fact(result, "sha"), commit_fact(result, "subject")
    if sha is not None:
        facts.append(f"commit {code(sha[:10])}" + (f" {prose(subject[:100])}" if subject else ""))
    for name, words in (("id", "run {}"), ("launches", "{} launches"), ("tool_version", "comm-regress {}")):
        value = run_fact(result, name)
        if value is not None:
            facts.append(words.format(code(value) if name == "id" else prose(value)))
    if around.run_url is not None:
        facts.append(link("job and artifacts", around.run_url))
    partial = "\n\n**Stopped early**: what follows is what had been measured by then." \
        if result.run.get("partial") is True else ""
    return Section(f"## {SYMBOLS[result.verdict]} comm-regress: {prose(headline(result))}\n\n"
                   f"{MEANINGS[result.verdict]}{partial}\n\n{' · '.join(facts)}")


def _table(rows: Sequence[Judged], folded: bool = False) -> Section:
    if not rows:
        return Section("No metric was judged.")
    head = "\n".join([table_row(_HEADINGS), table_row([":-:", "-", "-", "-:", "-:", "-:", "-:", "-"])])
    opening = f"<details><summary>{len(rows)} more, unchanged or without baseline</summary>\n\n" if folded else ""
    return Section(opening + head, tuple(map(_table_line, rows)), "\n</details>" if folded else "",
                   lambda count: f"\n… and {count} more rows, none of them worse: all are in the JSON result.")


def _table_line(judged: Judged) -> str:
    row, unit = judged.row, Unit(judged.row.unit)
    return table_row([SYMBOLS[row.verdict], code(judged.case.case), code(row.metric), format_value(row.now, unit),
                      format_value(row.baseline, unit), change_text(row), str(row.launches),
                      VERDICT_WORDS[row.verdict] + ("" if row.severity == "fail" else f" ({prose(row.severity)})")])


def _reasons(result: GateResult) -> Section:
    """Each case that is not simply a pass: why, by which detector, and the command that measures it again."""
    cases = [case for case in result.cases if case.verdict not in (Verdict.PASS, Verdict.NO_BASELINE)]
    return Section("### Why" if cases else "", tuple(map(_reason, cases)))


def _reason(case: CaseRow) -> str:
    lines = [f"- {SYMBOLS[case.verdict]} {code(case.case)} {VERDICT_WORDS[case.verdict]}"]
    for row in case.metrics:
        if row.verdict not in (Verdict.PASS, Verdict.NO_BASELINE):
            needed = "" if row.needed_launches is None else f" About {row.needed_launches} launches would decide it."
            lines.append(f"  - {code(row.metric)} ({prose(row.statistic)}, {prose(row.detector)}): "
                         f"{prose(row.reason)}{needed}")
            lines += [f"    - note: {prose(text)}" for text in row.warnings[:5]]
    lines += [f"  - {prose(text)}" for text in case.warnings[:10]]
    lines.append(f"  - again: {code(case.rerun)}")
    return "\n".join(lines)


def _explanations(result: GateResult) -> Section:
    seen: dict[str, None] = {}
    for case in result.cases:
        for finding in case.findings:
            said = [prose(text) for text in texts(finding, "cause")]
            tries = [f"  - try: {prose(text)}" for text in texts(finding, "try")]
            rule = "".join(f"**{prose(text)}**: " for text in texts(finding, "rule"))
            if said:
                seen["\n".join([f"- {rule}{said[0]}", *tries])] = None
    return Section("### What the trace says" if seen else "", tuple(seen))


def _trend(result: GateResult, around: Surroundings) -> Section:
    lines: list[str] = []
    for judged in worst_rows(result):
        values = around.trends.get((judged.case.case, judged.row.metric), ())
        if len(values) > 1 and len(lines) < _TRENDS:
            unit = Unit(judged.row.unit)
            lines.append(f"- {trend_blocks(values)} {code(judged.case.case)} {code(judged.row.metric)}: "
                         f"{format_value(min(values), unit)} to {format_value(max(values), unit)} over "
                         f"{len(values)} runs, oldest first")
    return Section("### Trend of the worst" if lines else "", tuple(lines))


def _warnings(result: GateResult) -> Section:
    return Section("### Warnings" if result.warnings else "", tuple(f"- {prose(text)}" for text in result.warnings))


def _measured(result: GateResult) -> Section:
    lines = [table_row([code(case.case), code(row.metric), format_value(row.now, Unit(row.unit)), str(row.launches)])
             for case in result.cases for row in case.measured]
    if not lines:
        return Section("")
    head = "\n".join([table_row(("case", "metric", "now", "launches")), table_row(("-", "-", "-:", "-:"))])
    return Section(f"<details><summary>Measured and not judged: {len(lines)} figures</summary>\n\n{head}",
                   tuple(lines), "\n</details>")


def _environment(result: GateResult) -> Section:
    facts = [f"- {prose(name)}: {prose(value)}"
             for name, value in {**result.environment.must_match, **result.environment.reported}.items()
             if value is not None]
    if not facts:
        return Section("")
    return Section(f"<details><summary>Environment {result.environment.fingerprint}</summary>\n",
                   tuple(facts), "\n</details>")


def _files(result: GateResult) -> Section:
    return Section("### Files on the runner" if result.artifacts else "",
                   tuple(f"- {prose(kind)}: {code(one_line(path))}" for kind, path in result.artifacts.items()))
