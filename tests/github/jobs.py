"""Variables and event files as GitHub Actions sets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.github.fake import REPOSITORY, TOKEN
from tests.github.runs import SHA


def pull_event(number: int = 7, fork: bool = False) -> dict[str, Any]:
    head = {"sha": SHA, "ref": "topic", "repo": {"full_name": "stranger/project" if fork else REPOSITORY,
                                                 "owner": {"login": "stranger" if fork else "org"}}}
    return {"repository": {"full_name": REPOSITORY}, "pull_request": {"number": number, "head": head}}


def workflow_run_event(number: int | None = 7, event: str = "pull_request", fork: bool = False) -> dict[str, Any]:
    owner = "stranger" if fork else "org"
    return {"repository": {"full_name": REPOSITORY}, "workflow_run": {
        "id": 4242, "event": event, "head_sha": SHA, "head_branch": "topic",
        "head_repository": {"full_name": f"{owner}/project", "owner": {"login": owner}},
        "pull_requests": [] if number is None else [{"number": number}]}}


def job(folder: Path, url: str, event: dict[str, Any] | None, token: str | None = TOKEN) -> dict[str, str]:
    """A job's environment with its files in `folder`."""
    environment = {
        "GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_SHA": SHA, "GITHUB_API_URL": url,
        "GITHUB_SERVER_URL": "https://github.example.com", "GITHUB_RUN_ID": "99",
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "GITHUB_OUTPUT": str(folder / "output")}
    if event is not None:
        (folder / "event.json").write_text(json.dumps(event))
        environment["GITHUB_EVENT_PATH"] = str(folder / "event.json")
    if token is not None:
        environment["GITHUB_TOKEN"] = token
    return environment
