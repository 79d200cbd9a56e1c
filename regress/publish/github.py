"""github: inside GitHub Actions the run's job summary, annotations and pull-request comment; elsewhere nothing."""

from __future__ import annotations

import os

from regress.delivery import Payload
from regress.errors import EXIT_OK, EXIT_REGRESSION, EXIT_UNTRUSTED
from regress.forge.github import GithubOptions, publish_github
from regress.forge.page import Surroundings
from regress.publish import Result, Sink
from regress.record import Run, Verdict
from regress.result import gate_result, result_json


def render(result: Result, _options: GithubOptions) -> tuple[Payload, ...]:
    """The gate's JSON: the same that `regress publish github --result FILE` reads."""
    content = result_json(gate_result(result.run, _status(result.run)))
    return (Payload(content, "application/json", result.run.run_id),)


def _status(run: Run) -> int:
    """What the verdict alone says; policies about undecided series are the gate's, so it is not shown."""
    failing = any(finding.verdict is Verdict.REGRESSION and finding.severity == "fail" for finding in run.findings)
    if failing:
        return EXIT_REGRESSION
    return EXIT_UNTRUSTED if run.verdict is Verdict.INVALID else EXIT_OK


def send(payload: Payload, options: GithubOptions) -> str:
    """Publish in this job. Failures are told and never kept for later: a later job has another pull request."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return "not in GitHub Actions: nothing to do"
    published = publish_github(payload.body, os.environ, options=options, around=Surroundings(status_known=False),
                               paths={})
    return "; ".join((*published.done, *published.failures))


GITHUB = Sink("github", "job summary, annotations and pull-request comment inside GitHub Actions", GithubOptions,
              render, send, lambda options: f"GitHub job ({options.key})")
