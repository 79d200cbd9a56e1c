"""`regress publish github` and `regress publish gitlab`: the gate's JSON to where reviewers look."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from regress.errors import EXIT_UNTRUSTED, UsageError
from regress.forge.github import GithubOptions, failure_line, publish_github
from regress.forge.junit import junit_xml
from regress.forge.page import Surroundings, Trends, comment_page
from regress.forge.result_file import read_result
from regress.record import Verdict
from regress.trend.fold import fold

TREND_RUNS = 30


def _add_result(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--result", required=True, metavar="FILE", help="what --comm-regress-json wrote")
    parser.add_argument("--history", metavar="URL", help="history folder or postgresql://...: adds trends of the worst")


def add_github_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything else comes from the variables that GitHub Actions sets."""
    _add_result(parser)
    parser.add_argument("--report", metavar="FILE", help="the HTML report, for the output report-path")
    parser.add_argument("--comment", choices=("auto", "always", "never"), default="auto",
                        help="pull-request comment; auto: begun when there is something to say, then kept up to date "
                             "(default: auto)")
    parser.add_argument("--check", choices=("auto", "never"), default="never",
                        help="a check run of its own, where the token may write checks (default: never)")
    parser.add_argument("--key", default="gate", help="tells several gates of one repository apart (default: gate)")
    parser.add_argument("--no-annotations", action="store_true", help="print no errors and warnings for the run's page")


def run_github(arguments: argparse.Namespace) -> int:
    """0 also where the token may not write, which is said; 10 where publishing failed. Never the gate's own status."""
    content = _content(arguments.result)
    report = Path(arguments.report) if arguments.report and Path(arguments.report).is_file() else None
    published = publish_github(
        content, os.environ, where=arguments.result,
        options=GithubOptions(arguments.comment, arguments.check, arguments.key, not arguments.no_annotations),
        around=Surroundings(_trends(arguments.history)),
        paths={"json-path": Path(arguments.result), "report-path": report})
    for line in published.done:
        print(f"comm-regress: {line}")
    for text in published.failures:
        print(failure_line(text))
    return EXIT_UNTRUSTED if published.failures else 0


def add_gitlab_arguments(parser: argparse.ArgumentParser) -> None:
    """Two files: GitLab reads JUnit by itself, and a job posts the note."""
    _add_result(parser)
    parser.add_argument("--junit", metavar="FILE", help="write JUnit XML, for artifacts:reports:junit")
    parser.add_argument("--note", metavar="FILE", help="write a Markdown note for the merge request")


def run_gitlab(arguments: argparse.Namespace) -> int:
    """Writes the files that are asked for."""
    if not arguments.junit and not arguments.note:
        raise UsageError("neither --junit nor --note", accepted="at least one of them")
    result = read_result(_content(arguments.result), arguments.result)
    if arguments.junit:
        _write(arguments.junit, junit_xml(result))
    if arguments.note:
        around = Surroundings(_trends(arguments.history), os.environ.get("CI_JOB_URL"))
        _write(arguments.note, comment_page(result, around).encode())
    return 0


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=f"--result {path}",
                         accepted="the file that --comm-regress-json wrote",
                         next_step="if the gate ended before writing it, its own output says why") from error


def _write(path: str, content: bytes) -> None:
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=path, accepted="a file in a folder that is there"
                         ) from error


def _trends(history: str | None) -> Trends:
    """Recent medians of every series of the newest run's environment, oldest first."""
    if history is None:
        return {}
    from regress.history.store import open_history

    with open_history(history, repository=Path.cwd()) as store:
        trend = fold(store.runs(TREND_RUNS))
        for problem in store.problems():
            print(f"not read: {problem.location}: {problem.reason}", file=sys.stderr)
    newest = trend.latest.environment.fingerprint if trend.latest is not None else None
    return {series.key: [point.value for point in series.points if point.verdict is not Verdict.INVALID]
            for series in trend.series if series.fingerprint == newest}
