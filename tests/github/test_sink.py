"""The sink `github` of a thresholds file: in a job it publishes, elsewhere it does nothing, and it keeps nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from regress.forge.github import GithubOptions
from regress.forge.result_file import read_result
from regress.publish import Result
from regress.publish.github import GITHUB
from tests.github.fake import Reply, fake_github
from tests.github.jobs import job, pull_event
from tests.github.runs import recorded_run


def sent(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> str:
    for name in ("GITHUB_ACTIONS", "GITHUB_TOKEN", "GITHUB_EVENT_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (payload,) = GITHUB.render(Result(recorded_run(), "org/project"), GithubOptions())
    return GITHUB.send(payload, GithubOptions())


def test_a_job_is_published_to_without_an_exit_status_that_only_the_gate_knows(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_github() as server:
        said = sent(monkeypatch, job(tmp_path, server.url, pull_event()))
        assert "pull request 7 commented" in said
        assert len(server.bodies(7)) == 1
    summary = (tmp_path / "summary.md").read_text()
    assert "REGRESSION" in summary
    assert "exit status" not in summary
    assert capsys.readouterr().out.startswith("::error ")


def test_a_failure_is_told_and_not_kept_for_another_job(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_github() as server:
        server.replies = [Reply(422)]
        assert "422" in sent(monkeypatch, job(tmp_path, server.url, pull_event()))


def test_elsewhere_it_does_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert sent(monkeypatch, {}) == "not in GitHub Actions: nothing to do"
    assert capsys.readouterr().out == ""


def test_what_it_sends_is_the_gates_json() -> None:
    (payload,) = GITHUB.render(Result(recorded_run()), GithubOptions())
    result = read_result(payload.body, "payload")
    assert result.run["id"] == payload.run_id == "f00dcafe"
    assert result.exit_status == 1
