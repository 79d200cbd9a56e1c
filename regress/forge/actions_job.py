"""What GitHub tells a job about itself, in variables and in the event's file; every part checked before it is used."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from regress.errors import UsageError

_REPOSITORY = re.compile(r"[A-Za-z0-9_-]+/(?!\.\.?$)[A-Za-z0-9_.-]+")
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Head:
    """Where the commits of a pull request come from, as the event says. owner: of the repository that holds them."""

    sha: str
    owner: str | None = None
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class ActionsJob:
    """One job.

    api_url: without a slash at its end; a GitHub Enterprise Server has its own. pull_request: its number, from the
    event alone. head: the commit that checks are attached to. fork: the commits come from another repository.
    token: not shown by repr. summary_file, output_file: None where this is no step of a job.
    """

    repository: str
    api_url: str
    run_url: str | None
    pull_request: int | None
    head: Head | None
    fork: bool
    token: _Secret | None
    summary_file: Path | None
    output_file: Path | None


@dataclass(frozen=True, slots=True, repr=False)
class _Secret:
    """A token that does not end up in a traceback or a log."""

    value: str

    @property
    def of_actions(self) -> bool:
        """Whether it is a job's own token, whose comments are a bot's."""
        return self.value.startswith("ghs_")


def actions_job(environment: Mapping[str, str]) -> ActionsJob:
    """The job that these variables describe.

    Raises UsageError where they do not describe one: GITHUB_REPOSITORY is missing or something is malformed.
    """
    repository = environment.get("GITHUB_REPOSITORY", "")
    if not _REPOSITORY.fullmatch(repository):
        raise UsageError(f"GITHUB_REPOSITORY is {repository!r}", accepted="owner/name, as GitHub Actions sets it",
                         next_step="outside GitHub Actions set GITHUB_REPOSITORY, GITHUB_SHA and GITHUB_TOKEN yourself")
    event = _event(environment.get("GITHUB_EVENT_PATH", ""))
    number, head = _subject(event, environment.get("GITHUB_SHA", ""))
    token = environment.get("GITHUB_TOKEN", "")
    server = _base_url(environment, "GITHUB_SERVER_URL", "https://github.com")
    run_id = environment.get("GITHUB_RUN_ID", "")
    # A workflow_run reports another run than its own: the one whose artifact it read.
    run_id = str(_at(event, "workflow_run", "id") or run_id)
    return ActionsJob(
        repository=repository,
        api_url=_base_url(environment, "GITHUB_API_URL", "https://api.github.com"),
        run_url=f"{server}/{repository}/actions/runs/{run_id}" if run_id.isdecimal() else None,
        pull_request=number,
        head=head,
        fork=_is_fork(event),
        token=_Secret(token) if token and token.isprintable() else None,
        summary_file=_file(environment, "GITHUB_STEP_SUMMARY"),
        output_file=_file(environment, "GITHUB_OUTPUT"),
    )


def _base_url(environment: Mapping[str, str], name: str, default: str) -> str:
    url = environment.get(name) or default
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username or parts.query:
        raise UsageError(f"{name} is {url!r}", accepted="such as https://github.example.com/api/v3")
    return url.rstrip("/")


def _file(environment: Mapping[str, str], name: str) -> Path | None:
    return Path(environment[name]) if environment.get(name) else None


def _event(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        event = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"the event cannot be read: {error}", where=f"GITHUB_EVENT_PATH {path}",
                         accepted="the JSON file that GitHub Actions writes") from None
    return event if isinstance(event, dict) else {}


def _at(event: Any, *path: str | int) -> Any:
    """What the event holds at that path, None where it holds nothing there."""
    for step in path:
        if isinstance(step, int):
            event = event[step] if isinstance(event, list) and len(event) > step else None
        else:
            event = event.get(step) if isinstance(event, dict) else None
    return event


def _subject(event: dict[str, Any], pushed_sha: str) -> tuple[int | None, Head | None]:
    """The pull request and the head commit: of pull_request, of the run behind a workflow_run, or the pushed one."""
    direct, run = _at(event, "pull_request"), _at(event, "workflow_run")
    if direct is not None:
        number, sha = _at(direct, "number"), _at(direct, "head", "sha")
        owner, branch = _at(direct, "head", "repo", "owner", "login"), _at(direct, "head", "ref")
    elif run is not None:
        number, sha = _at(run, "pull_requests", 0, "number"), _at(run, "head_sha")
        owner, branch = _at(run, "head_repository", "owner", "login"), _at(run, "head_branch")
        if _at(run, "event") not in ("pull_request", "pull_request_target"):
            number = owner = branch = None
    else:
        number, sha, owner, branch = None, pushed_sha, None, None
    known = isinstance(sha, str) and _SHA.fullmatch(sha)
    head = Head(sha, owner if isinstance(owner, str) else None, branch if isinstance(branch, str) else None) \
        if known else None
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else None, head


def _is_fork(event: dict[str, Any]) -> bool:
    here = _at(event, "repository", "full_name")
    for path in (("pull_request", "head", "repo", "full_name"), ("workflow_run", "head_repository", "full_name")):
        there = _at(event, *path)
        if isinstance(there, str) and isinstance(here, str) and there != here:
            return True
    return False
