"""One self-contained HTML page of a history: opens offline, asks the network for nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from regress.publish.html.data_block import data_block
from regress.publish.html.first_screen import first_screen
from regress.publish.html.page import page
from regress.publish.html.sweep import sweeps
from regress.publish.html.views import CollectiveSkew, Limits, RankStrip, TraceView
from regress.record import Run
from regress.trend import ChangePoint
from regress.trend.fold import fold
from regress.trend.overview import rows

__all__ = ["CollectiveSkew", "Limits", "RankStrip", "TraceView", "build_report"]


def build_report(
    runs: Iterable[Run],
    *,
    commit_url_template: str | None = None,
    change_points: Mapping[tuple[str, str], Sequence[ChangePoint]] | None = None,
    git_order: Sequence[str] | None = None,
    trace: TraceView | None = None,
    limits: Mapping[tuple[str, str], Limits] | None = None,
) -> str:
    """The whole page as text.

    runs: newest first (by start); read once, so a generator over the history will do. The first is "the latest run".
    commit_url_template: http(s) address with `{sha}` in it; None, or anything else, makes no links.
    change_points, limits: by case id and metric, for the latest run's environment.
    git_order: full commit hashes, oldest first. trace: one step of the last traced run.
    Raises UsageError where Bokeh is not installed.
    """
    trend = fold(runs, git_order)
    steps = change_points or {}
    template = commit_url_template if _is_web_address(commit_url_template) else None
    block = data_block(trend, commit_url_template=template, change_points=steps, limits=limits or {},
                       sweeps=sweeps(trend), trace=trace)
    return page(first_screen(trend, rows(trend, steps)), block)


def _is_web_address(template: str | None) -> bool:
    return template is not None and template.startswith(("https://", "http://")) and "{sha}" in template
