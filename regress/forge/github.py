"""A result to GitHub: job summary, annotations, outputs, one comment for each pull request, a check run.

Nothing here changes a verdict. What the token may not do is explained and skipped; what went wrong is an error after
everything else has been tried.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regress.errors import EXIT_OK, PublishError, UsageError
from regress.forge.actions_job import ActionsJob, actions_job
from regress.forge.annotations import annotation_lines, command
from regress.forge.markdown import one_line
from regress.forge.page import Surroundings, comment_page, headline, summary_page
from regress.forge.rest import NotPermittedError, Rest
from regress.forge.result_file import read_result
from regress.options import option
from regress.record import Verdict
from regress.result import GateResult

QUIET = (Verdict.PASS, Verdict.NO_BASELINE)


@dataclass(frozen=True, slots=True)
class GithubOptions:
    """What is shown where."""

    comment: str = option("auto", choices=("auto", "always", "never"),
                          help="pull-request comment; auto: begun when there is something to say, then kept up to date")
    check: str = option("never", choices=("auto", "never"),
                        help="a check run beside the job's own; auto: where the token may write checks")
    key: str = option("gate", help="tells several gates of one repository apart: each has its comment and its check")
    annotations: bool = option(True, help="errors and warnings at the top of the run, at most 10 of each")


@dataclass(frozen=True, slots=True)
class Published:
    """What was done, in lines for the log; failures: what should have worked and did not."""

    done: tuple[str, ...]
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Task:
    result: GateResult
    job: ActionsJob
    options: GithubOptions
    around: Surroundings
    rest: Rest | None

    @property
    def marker(self) -> str:
        """The hidden line that a comment of this gate begins with."""
        return f"<!-- comm-regress {self.options.key} -->"


def publish_github(content: bytes, environment: Mapping[str, str], *, options: GithubOptions | None = None,
                   around: Surroundings | None = None, where: str = "result", paths: Mapping[str, Path | None],
                   write: Callable[[str], object] = print,
                   sleep: Callable[[float], None] = time.sleep) -> Published:
    """Shows the gate's JSON in the job that `environment` describes.

    paths: more outputs for later steps, such as the report's path, by name; None where there is no such file.
    write: where workflow commands go, a line each. Raises RecordError for content that is no result and UsageError
    for variables that describe no job; refusals and failures of the server are in what is returned.
    """
    result, job, options = read_result(content, where), actions_job(environment), options or GithubOptions()
    if not options.key.isidentifier():
        raise UsageError(f"key {options.key!r}", accepted="letters, digits and _")
    around = replace(around or Surroundings(), run_url=job.run_url)
    rest = Rest(job.api_url, job.token.value, sleep=sleep) if job.token is not None else None
    task = _Task(result, job, options, around, rest)
    done, failures = [], []
    if options.annotations:
        for line in annotation_lines(result):
            write(line)
    for step in (_summary, _outputs(paths), _comment, _check):
        try:
            said = step(task)
        except NotPermittedError as error:
            said = f"{error.seen} ({error.where}): {_why_not(job)}"
        except PublishError as error:
            failures.append(error.text)
            continue
        if said:
            done.append(one_line(said))
    return Published(tuple(done), tuple(map(one_line, failures)))


def _why_not(job: ActionsJob) -> str:
    if job.fork:
        return ("the token of a pull request from a fork is read-only, whatever the workflow asks for; "
                "the job summary has it all, and a workflow_run workflow may comment (docs/runner.md)")
    return "the token may not do this: give the job `permissions: pull-requests: write`, and `checks: write` for checks"


def _summary(task: _Task) -> str:
    if task.job.summary_file is None:
        return "no job summary: GITHUB_STEP_SUMMARY is not set"
    text = summary_page(task.result, task.around)
    try:
        with task.job.summary_file.open("a", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise PublishError(str(error), where="GITHUB_STEP_SUMMARY") from error
    return f"job summary: {len(text.encode())} bytes"


def _outputs(paths: Mapping[str, Path | None]) -> Callable[[_Task], str]:
    def write(task: _Task) -> str:
        if task.job.output_file is None:
            return ""
        values = {"verdict": task.result.verdict.value, "exit-status": str(task.result.exit_status),
                  **{name: str(path) for name, path in paths.items() if path is not None}}
        # A delimiter that cannot be guessed: a path with a line break must not set another output.
        end = f"end_{secrets.token_hex(16)}"
        try:
            with task.job.output_file.open("a", encoding="utf-8") as stream:
                stream.writelines(f"{name}<<{end}\n{value}\n{end}\n" for name, value in values.items())
        except OSError as error:
            raise PublishError(str(error), where="GITHUB_OUTPUT") from error
        return ""

    return write


def _comment(task: _Task) -> str:
    if task.options.comment == "never":
        return ""
    if task.rest is None:
        return "no comment: GITHUB_TOKEN is not set"
    number = task.job.pull_request or _number_of_head(task.rest, task.job)
    if number is None:
        return "no comment: this is no pull request"
    base = f"/repos/{task.job.repository}/issues"
    body = comment_page(task.result, task.around, task.marker)
    for comment in _own_comments(task, f"{base}/{number}/comments"):
        try:
            task.rest.send("PATCH", f"{base}/comments/{comment['id']}", {"body": body})
        except NotPermittedError:
            continue  # somebody else's, who copied the marker
        return f"comment of pull request {number} updated"
    if task.options.comment == "auto" and task.result.verdict in QUIET and task.result.exit_status == EXIT_OK:
        return f"no comment on pull request {number}: nothing to report, and none to bring up to date"
    task.rest.send("POST", f"{base}/{number}/comments", {"body": body})
    return f"pull request {number} commented"


def _own_comments(task: _Task, path: str) -> list[dict[str, Any]]:
    """Comments that begin with the marker, oldest first; with a job's token only a bot's can be ours."""
    rest, token = task.rest, task.job.token
    if rest is None or token is None:
        return []
    return [comment for comment in rest.pages(path)
            if isinstance(comment, dict) and isinstance(comment.get("id"), int)
            and str(comment.get("body", "")).startswith(task.marker)
            and (not token.of_actions or (comment.get("user") or {}).get("type") == "Bot")]


def _number_of_head(rest: Rest, job: ActionsJob) -> int | None:
    """The open pull request whose head the run was: the event of a run from a fork leaves its list empty."""
    head = job.head
    if head is None or head.owner is None or head.branch is None:
        return None
    found = rest.pages(f"/repos/{job.repository}/pulls", {"state": "open", "head": f"{head.owner}:{head.branch}"})
    return next((pull["number"] for pull in found if pull["head"]["sha"] == head.sha), None)


def _check(task: _Task) -> str:
    if task.options.check == "never" or task.rest is None:
        return ""
    if task.job.head is None:
        return "no check run: the commit is not known"
    result = task.result
    title = headline(result)[:200]
    conclusion = "failure" if result.exit_status != EXIT_OK else \
        "neutral" if result.verdict in (Verdict.NO_BASELINE, Verdict.INCONCLUSIVE) else "success"
    task.rest.send("POST", f"/repos/{task.job.repository}/check-runs", {
        "name": f"comm-regress ({task.options.key})", "head_sha": task.job.head.sha, "status": "completed",
        "conclusion": conclusion, **({"details_url": task.around.run_url} if task.around.run_url else {}),
        "output": {"title": title, "summary": comment_page(result, task.around)}})
    return f"check run: {conclusion}"


def failure_line(text: str) -> str:
    """A failure to publish as a warning on the run."""
    return command("warning", "comm-regress could not publish", text)
