"""The two commands as a job runs them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from regress.errors import EXIT_UNTRUSTED, RecordError, UsageError
from regress.forge.command import add_github_arguments, add_gitlab_arguments, run_github, run_gitlab
from regress.history.store import open_history
from tests.github.fake import fake_github
from tests.github.jobs import job, pull_event
from tests.github.runs import recorded_json, recorded_run


def parsed(add: Callable[[argparse.ArgumentParser], None], *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add(parser)
    return parser.parse_args(words)


@pytest.fixture
def result(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    path.write_bytes(recorded_json())
    return path


def test_github_without_a_token_writes_the_summary_and_ends_with_0(
        result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in job(tmp_path, "https://api.github.com", pull_event(), token=None).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    assert run_github(parsed(add_github_arguments, "--result", str(result))) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("::error title=")
    assert "comm-regress: no comment: GITHUB_TOKEN is not set" in printed
    assert "REGRESSION" in (tmp_path / "summary.md").read_text()
    assert str(result) in (tmp_path / "output").read_text()


def test_github_that_is_down_ends_with_10_and_a_warning(
        result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_github() as server:
        server.comments[7] = []
        for name, value in job(tmp_path, server.url + "/elsewhere", pull_event()).items():
            monkeypatch.setenv(name, value)
        # A path that GitHub does not know is what a token that sees nothing looks like: explained, not failed.
        assert run_github(parsed(add_github_arguments, "--result", str(result))) == 0
    monkeypatch.setattr("regress.forge.rest._MOST_TRIES", 1)
    assert run_github(parsed(add_github_arguments, "--result", str(result))) == EXIT_UNTRUSTED
    assert "::warning title=comm-regress could not publish::" in capsys.readouterr().out


def test_a_missing_result_says_what_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the file that --comm-regress-json wrote"):
        run_github(parsed(add_github_arguments, "--result", str(tmp_path / "none.json")))


def test_gitlab_writes_both_files(result: Path, tmp_path: Path) -> None:
    with open_history(str(tmp_path / "history")) as history:
        history.add(recorded_run())
    junit, note = tmp_path / "junit.xml", tmp_path / "note.md"
    assert run_gitlab(parsed(add_gitlab_arguments, "--result", str(result), "--junit", str(junit), "--note", str(note),
                             "--history", str(tmp_path / "history"))) == 0
    assert b'failures="1"' in junit.read_bytes()
    assert note.read_text().startswith("## ❌ comm-regress: REGRESSION")


def test_gitlab_wants_at_least_one_file(result: Path) -> None:
    with pytest.raises(UsageError, match="--junit"):
        run_gitlab(parsed(add_gitlab_arguments, "--result", str(result)))


def test_an_artifact_that_is_no_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(RecordError):
        run_gitlab(parsed(add_gitlab_arguments, "--result", str(tmp_path / "x.json"), "--note", str(tmp_path / "n")))


def test_history_gives_trends_oldest_first(result: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from regress.forge.command import _trends

    with open_history(str(tmp_path / "history")) as history:
        for day in (1, 2, 3):
            base = recorded_run()
            launches = tuple(replace(launch, outcomes=tuple(replace(outcome, measurements=tuple(
                replace(m, value=m.value * day) for m in outcome.measurements)) for outcome in launch.outcomes))
                for launch in base.launches)
            started = f"2026-03-0{day}T10:00:00+00:00"
            history.add(replace(base, run_id=f"run{day}", started_at=started, ended_at=started, launches=launches))
    trends = _trends(str(tmp_path / "history"))
    values = trends["allreduce[16MiB-float32-2xcpu]", "allreduce_seconds"]
    assert [round(value, 6) for value in values] == [0.012346, 0.024691, 0.037037]
