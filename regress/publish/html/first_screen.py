"""The first screen as HTML: verdict in words, why, the machine, and the table worst first. Works without scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from regress.publish.html.data_block import series_id
from regress.record import Diagnosis, Run, Scalar, Verdict
from regress.trend import EnvironmentChange, Trend
from regress.trend.overview import (
    Headline,
    Row,
    belief,
    changes_in_words,
    commit_name,
    explanations,
    fact_name,
    format_interval,
    headline,
    recent_changes,
    shown,
    visible,
)
from regress.units import format_change, format_value

MARKS = {Verdict.PASS: "●", Verdict.REGRESSION: "■", Verdict.IMPROVEMENT: "★", Verdict.INCONCLUSIVE: "◆",
         Verdict.NO_BASELINE: "○", Verdict.INVALID: "✕"}
SPARK_WIDTH, SPARK_HEIGHT = 120, 26
ROWS_AT_FIRST, ROWS_AT_MOST = 12, 40
REASONS_AT_FIRST = 3
EXPLANATIONS_AT_FIRST = 1


def text(value: object) -> str:
    """Foreign text made safe for HTML, in its own direction."""
    return escape(visible(value), quote=True)


def first_screen(trend: Trend, ordered: Sequence[Row]) -> str:
    """Everything above the charts."""
    run, words = trend.latest, headline(trend, ordered)
    if run is None or words is None:
        return ('<section class="verdict empty"><h1>No runs yet</h1><p>Run <code>pytest --comm-regress</code> '
                "and open this report again.</p></section>")
    return (f'{_verdict(trend, run, words)}<div class="pair">{_why(trend, run, ordered)}{_machine(trend, run)}</div>'
            f"{_table(trend, ordered)}")


def _verdict(trend: Trend, run: Run, words: Headline) -> str:
    detail = "".join(f"<p{kind}>{escape(line)}</p>" for line, kind in (
        (words.detail, ""), (words.since, ' class="since-commit"')) if line)
    commit = text(commit_name(trend.runs[trend.latest_index or 0]))
    branch = f" on <bdi>{text(run.commit.branch)}</bdi>" if run.commit.branch else ""
    return (f'<section class="verdict v-{words.verdict.value}"><h1><span class="mark" aria-hidden="true">'
            f"{MARKS[words.verdict]}</span> {escape(words.sentence)}</h1>{detail}"
            f'<p class="quiet">Latest run: <bdi>{commit}</bdi>{branch}, '
            f'<time datetime="{text(run.started_at)}">{text(run.started_at[:16].replace("T", " "))}</time> UTC</p>'
            "</section>")


def _why(trend: Trend, run: Run, ordered: Sequence[Row]) -> str:
    found = explanations(run)
    body = "".join(_explanation(diagnosis) for diagnosis in found[:EXPLANATIONS_AT_FIRST])
    if len(found) > EXPLANATIONS_AT_FIRST:
        more = "".join(_explanation(diagnosis) for diagnosis in found[EXPLANATIONS_AT_FIRST:])
        body += f"<details><summary>{len(found) - EXPLANATIONS_AT_FIRST} more</summary><ul>{more}</ul></details>"
    with_it = _came_with(trend, ordered)
    if with_it:
        body = (f"<li><strong>Changed in the same run:</strong> {escape(changes_in_words(with_it))}. "
                "Measure the old version again to tell it from the commit.</li>") + body
    if not body:
        body = f"<li>{_nothing_found(run)}</li>"
    return f'<section class="why"><h2>Why</h2><ul>{body}</ul></section>'


def _came_with(trend: Trend, ordered: Sequence[Row]) -> list[EnvironmentChange]:
    since = {row.since for row in ordered if row.verdict is Verdict.REGRESSION and row.since is not None}
    return [change for change in trend.changes if change.run in since]


def _nothing_found(run: Run) -> str:
    if run.verdict is Verdict.REGRESSION:
        return "No rule explains it. <code>regress explain</code> on a trace of this case shows more."
    return "Nothing to explain."


def _explanation(diagnosis: Diagnosis) -> str:
    evidence = ", ".join(f"{text(name.replace('_', ' '))} {text(_figure(value))}"
                         for name, value in diagnosis.evidence.items())
    case = f' <span class="quiet">{text(diagnosis.case)}</span>' if diagnosis.case else ""
    return (f'<li><strong>{text(diagnosis.cause)}</strong>{case}<br>Try: {text(diagnosis.suggestion)}'
            + (f'<br><span class="quiet">Seen: {evidence}</span>' if evidence else "")
            + "".join(f"<br>Leads to: {text(one.cause)}" for one in diagnosis.consequences) + "</li>")


def _figure(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, float) else shown(value)


def _machine(trend: Trend, run: Run) -> str:
    sentence, reasons = belief(run)
    shown_reasons = "".join(f"<li>{text(reason)}</li>" for reason in reasons[:REASONS_AT_FIRST])
    if len(reasons) > REASONS_AT_FIRST:
        shown_reasons += f"<li>and {len(reasons) - REASONS_AT_FIRST} more</li>"
    changes = recent_changes(trend)
    changed = "".join(
        f'<li class="changed"><strong>{text(fact_name(c.fact))}</strong> '
        f"{text(shown(c.before))} → {text(shown(c.after))} "
        f'<span class="quiet">at <bdi>{text(commit_name(trend.runs[c.run]))}</bdi></span></li>' for c in changes)
    facts = _facts(run.environment.must_match)
    reported = _facts({k: v for k, v in run.environment.reported.items() if "_" not in k or k.islower()})
    variables = _facts({k: v for k, v in run.environment.reported.items() if "_" in k and not k.islower()})
    return (f'<section class="machine"><h2>Is the machine to be believed?</h2>'
            f"<p><strong>{escape(sentence)}</strong></p>"
            f'<ul class="reasons">{shown_reasons}</ul>'
            + (f'<ul class="changes" aria-label="Changed since the baseline">{changed}</ul>' if changed
               else '<p class="quiet">Nothing reported changed since the baseline.</p>')
            + f'<dl class="facts">{facts}</dl><details><summary>Software, host and health</summary>'
            f'<dl class="facts">{reported}{_facts(run.health)}{variables}</dl></details></section>')


def _facts(facts: dict[str, Scalar]) -> str:
    return "".join(f"<div><dt>{text(fact_name(name))}</dt>"
                   f"<dd>{text(_figure(value))}</dd></div>" for name, value in facts.items() if value is not None)


def _table(trend: Trend, ordered: Sequence[Row]) -> str:
    judged = [row for row in ordered if row.verdict is not None]
    telling = sum(row.verdict not in (Verdict.PASS, Verdict.NO_BASELINE) for row in judged)
    first = max(ROWS_AT_FIRST, min(telling, ROWS_AT_MOST))
    body = "".join(_row(trend, row, i >= first or row.verdict is None) for i, row in enumerate(ordered))
    hidden = len(ordered) - sum(row.verdict is not None for row in ordered[:first])
    button = (f'<button type="button" id="all-rows" aria-expanded="false">Show all {len(ordered)} series</button>'
              if hidden else "")
    heads = "".join(f'<th scope="col">{name}</th>' for name in (
        "Case and metric", "Last runs", "Now", "Baseline", "Change", "Verdict", "Since"))
    return ('<section class="series-table"><h2>Series, worst first</h2><div class="tools">'
            '<label>Filter <input id="filter" type="search" placeholder="allreduce 16MiB" autocomplete="off"></label>'
            f'{button}</div><table id="overview"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
            "</section>")


def _row(trend: Trend, row: Row, later: bool) -> str:
    series, finding = row.series, row.finding
    verdict = row.verdict.value if row.verdict else "not judged"
    name = f"{text(series.case.id)} <b>{text(series.metric)}</b>"
    change = "–"
    if finding and finding.change is not None:
        interval = format_interval(finding)
        change = format_change(finding.change) + (f" <small>{interval}</small>" if interval else "")
    nothing = " none" if row.since is None else ""
    since = "–" if row.since is None else f"<bdi>{text(commit_name(trend.runs[row.since]))}</bdi>"
    if row.since is not None and not row.since_exactly:
        since = f"<small>first seen at</small> {since}"
    now = format_value(row.now, series.unit) if row.now is not None else "not measured"
    mark = MARKS[row.verdict] if row.verdict else "·"
    gate = "" if finding is None or finding.gated else " <small>not gated</small>"
    reason = f' title="{text(finding.reason)}"' if finding else ""
    baseline = finding.baseline if finding else None
    cells = (f'<td data-head="Last runs">{sparkline(row, baseline)}</td>'
             f'<td data-head="Now" class="n">{now}</td>'
             f'<td data-head="Baseline" class="n">{format_value(baseline, series.unit)}</td>'
             f'<td data-head="Change" class="n">{change}</td>'
             f'<td data-head="Verdict"{reason}><span class="tag v-{verdict.replace(" ", "-")}">'
             f'<span aria-hidden="true">{mark}</span> {verdict}</span>{gate}</td>'
             f'<td data-head="Since" class="since{nothing}">{since}</td>')
    return (f'<tr{" class=later" if later else ""}><th scope="row"><button type="button" class="open" '
            f'data-series="{series_id(series)}" aria-expanded="false">{name}</button></th>{cells}</tr>')


def sparkline(row: Row, baseline: float | None) -> str:
    """The last medians as an inline picture: a line, its last point, and the baseline dashed."""
    values, series = row.recent, row.series
    if not values:
        return ""
    known = [*values, baseline] if baseline is not None else values
    low, high = min(known), max(known)
    span = (high - low) or math.ulp(high) or 1.0

    def place(i: int, value: float) -> tuple[float, float]:
        x = 3 + (SPARK_WIDTH - 6) * (i / (len(values) - 1) if len(values) > 1 else 1.0)
        return round(x, 1), round(3 + (SPARK_HEIGHT - 6) * (1 - (value - low) / span if high > low else 0.5), 1)

    line = " ".join(f"{x:g},{y:g}" for x, y in (place(i, value) for i, value in enumerate(values)))
    x, y = place(len(values) - 1, values[-1])
    dashed = "" if baseline is None else f'<path class="base" d="M0 {place(0, baseline)[1]:g}H{SPARK_WIDTH}"/>'
    label = f"{len(values)} runs, {format_value(values[0], series.unit)} to {format_value(values[-1], series.unit)}"
    return (f'<svg class="spark" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" width="{SPARK_WIDTH}" '
            f'height="{SPARK_HEIGHT}" role="img" aria-label="{escape(label)}">{dashed}'
            f'<polyline points="{line}"/><circle cx="{x:g}" cy="{y:g}" r="2.5"/></svg>')
