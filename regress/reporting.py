"""The history report: stored runs, git's order and the remote's commit pages, into one HTML file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from regress.config import Config, matches
from regress.errors import HistoryWriteError, UsageError
from regress.git import ask_git
from regress.history.store import History
from regress.judge.change_points import run_change_points
from regress.judge.detectors.limit import LimitOptions
from regress.publish.html import Limits, build_report
from regress.record import Run, Verdict
from regress.result import cases_of
from regress.step_picture import latest_picture
from regress.trend import ChangePoint
from regress.whole_file import write_whole


def commit_url_template(root: Path) -> str | None:
    """`https://host/owner/repo/commit/{sha}` from the remote "origin"; None where it is no web address."""
    remote = ask_git(root, "remote", "get-url", "origin")
    match = re.fullmatch(r"(?:https?://(?:[^@/]+@)?|ssh://(?:[^@/]+@)?|[^@/]+@)([^/:]+)(?::\d+)?[/:](.+?)(?:\.git)?/?",
                         remote or "")
    return f"https://{match[1]}/{match[2]}/commit/{{sha}}" if match else None


def git_order(root: Path) -> list[str] | None:
    """Commits of the repository, oldest first, or None outside one."""
    listed = ask_git(root, "rev-list", "--reverse", "--topo-order", "--all")
    return listed.split() if listed else None


def chosen_runs(history: History, since: str | None, cases: Iterable[str]) -> list[Run]:
    """Stored runs newest first, with only the cases that match a pattern; all cases without patterns."""
    patterns = list(cases)
    runs = list(history.runs(since=since))
    if not patterns:
        return runs
    kept = [_only(run, patterns) for run in runs]
    found = [run for run in kept if any(launch.outcomes for launch in run.launches)]
    if runs and not found:
        known = sorted({outcome.case.id for run in runs for launch in run.launches for outcome in launch.outcomes})
        raise UsageError(f"no stored case matches {', '.join(patterns)}", where="--case", accepted=", ".join(known))
    return found


def _only(run: Run, patterns: list[str]) -> Run:
    def wanted(case_id: str) -> bool:
        return any(matches(case_id, pattern) for pattern in patterns)

    launches = tuple(replace(launch, outcomes=tuple(o for o in launch.outcomes if wanted(o.case.id)))
                     for launch in run.launches)
    return replace(run, launches=launches, verdicts={c: v for c, v in run.verdicts.items() if wanted(c)},
                   findings=tuple(f for f in run.findings if wanted(f.case)))


def stored_change_points(runs: Sequence[Run]) -> dict[tuple[str, str], tuple[ChangePoint, ...]]:
    """Where the level of each judged series changed; `runs` newest first, main branch and trustworthy ones count."""
    oldest_first = [run for run in reversed(runs) if not run.partial and run.verdict is not Verdict.INVALID
                    and (run.commit.main or run.commit.sha is None)]
    judged = dict.fromkeys((finding.case, finding.metric) for run in runs for finding in run.findings)
    found: dict[tuple[str, str], tuple[ChangePoint, ...]] = {}
    for case, metric in judged:
        steps = run_change_points(oldest_first, case, metric)
        points = tuple(ChangePoint(run_id, step.change) for run_id, step in steps if step.change is not None)
        if points:
            found[case, metric] = points
    return found


def configured_limits(config: Config, runs: Sequence[Run]) -> dict[tuple[str, str], Limits]:
    """The absolute bounds that the thresholds file sets for the series of the newest run."""
    found: dict[tuple[str, str], Limits] = {}
    for case in cases_of(runs[0]) if runs else ():
        facts = config.catalog.workloads.get(case.workload)
        for metric in facts.metrics if facts is not None else ():
            limit = config.policy(case, metric).get("limit")
            if isinstance(limit, LimitOptions) and (limit.min is not None or limit.max is not None):
                found[case.id, metric] = Limits(limit.min, limit.max)
    return found


def write_report(history: History, target: Path, root: Path, config: Config, *, since: str | None = None,
                 cases: Iterable[str] = ()) -> int:
    """Writes the page; returns how many runs it shows. HistoryWriteError where the file cannot be written."""
    runs = chosen_runs(history, since, cases)
    page = build_report(runs, commit_url_template=commit_url_template(root), change_points=stored_change_points(runs),
                        git_order=git_order(root), trace=latest_picture(runs), limits=configured_limits(config, runs))
    try:
        write_whole(target, page.encode())
    except OSError as error:
        raise HistoryWriteError(f"the report cannot be written: {error.strerror or error}", where=str(target),
                                accepted="a writable path") from error
    return len(runs)
