"""`regress publish` and the gate's own publishing, end to end against a real server."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from regress.catalog import open_shelves
from regress.cli import main
from regress.config import load_config
from regress.history.store import open_history
from regress.publishing import publish_run, repository_name, spool_of
from regress.record import Run
from tests import servers
from tests.publish.factory import Fault, faulty_server, result
from tests.servers import MetricsServer


def thresholds(folder: Path, base: str) -> None:
    (folder / "thresholds.yaml").write_text(
        "schema: 1\npublish:\n- sink: remote_write\n"
        f"  url: {base}/api/v1/write\n  query_url: {base}\n  http: {{timeout: 5s}}\n")


def store(folder: Path, *ages: timedelta) -> list[Run]:
    runs = [result(age).run for age in ages]
    with open_history(str(folder / ".comm-regress")) as history:
        for one in runs:
            history.add(one)
    return runs


def test_stored_runs_are_sent_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str], prometheus: MetricsServer) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_REPOSITORY", f"org/{tmp_path.name}")
    thresholds(tmp_path, prometheus.base)
    runs = store(tmp_path, timedelta(hours=2), timedelta(hours=1))
    assert main(["publish", "sinks", "--since", runs[0].started_at, "--verify"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("bytes pushed (204)") == 2
    assert shown.count("comm_regress_run_verdict_code reads 4 at") == 2
    assert main(["publish", "sinks", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deliveries"][0]["kept"] == 0


def test_runs_are_sent_oldest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    """A server without an out-of-order window takes them in this order only."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_REPOSITORY", "org/project")
    with servers.prometheus(window=None) as server:
        thresholds(tmp_path, server.base)
        runs = store(tmp_path, *(timedelta(minutes=minute) for minute in (40, 30, 20)))
        assert main(["publish", "sinks", "--since", runs[0].started_at]) == 0
        assert capsys.readouterr().out.count("bytes pushed (204)") == 3


def test_a_server_that_is_down_keeps_the_payload_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    thresholds(tmp_path, f"http://127.0.0.1:{servers.free_port()}")
    [one] = store(tmp_path, timedelta(hours=1))
    assert main(["publish", "sinks", one.run_id]) == 10
    assert "kept in" in capsys.readouterr().err
    assert main(["publish", "sinks"]) == 10
    assert "1 payload kept in" in capsys.readouterr().err
    assert main(["publish", "sinks", one.run_id, "--verify"]) == 10
    assert "no answer" in capsys.readouterr().err
    with servers.prometheus() as server:
        thresholds(tmp_path, server.base)
        assert main(["publish", "sinks"]) == 10
        assert "no longer configured" in capsys.readouterr().err


def test_a_gate_without_the_token_keeps_the_payload_for_the_step_that_has_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The workflow in .github/workflows/gate.yml: only the step behind the gate has the secret."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COMM_REGRESS_TOKEN", raising=False)
    fault = Fault()
    with faulty_server(fault) as base:
        (tmp_path / "thresholds.yaml").write_text(
            f"schema: 1\npublish:\n- sink: remote_write\n  url: {base}\n"
            "  http: {timeout: 5s, bearer_token_env: COMM_REGRESS_TOKEN}\n")
        shelves = open_shelves()
        config, history = load_config(tmp_path / "thresholds.yaml", shelves.catalog()), tmp_path / ".comm-regress"
        [said] = publish_run(config, shelves, result().run, history, tmp_path)
        assert "COMM_REGRESS_TOKEN is not set" in said
        assert f"kept in {history / 'spool'}" in said
        assert main(["publish", "sinks"]) == 10
        assert "COMM_REGRESS_TOKEN is not set" in capsys.readouterr().err
        assert fault.requests == []
        monkeypatch.setenv("COMM_REGRESS_TOKEN", "t0k3n")
        assert main(["publish", "sinks"]) == 0
        assert "bytes pushed (204)" in capsys.readouterr().out
    assert [b"Bearer t0k3n" in request for request in fault.requests] == [True]


def test_what_cannot_mean_anything_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["publish", "sinks"]) == 4
    assert "no sink is configured" in capsys.readouterr().err
    thresholds(tmp_path, "http://127.0.0.1:9")
    assert main(["publish", "sinks", "nosuchrun"]) == 4
    assert "no run 'nosuchrun'" in capsys.readouterr().err


def test_the_repository_is_named_by_ci_or_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    monkeypatch.delenv("CI_PROJECT_PATH", raising=False)
    assert repository_name(tmp_path) == tmp_path.name
    monkeypatch.setenv("GITHUB_REPOSITORY", "a/b")
    assert repository_name(tmp_path) == "a/b"


def test_the_spool_lies_beside_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spool_of(str(tmp_path)).folder == tmp_path / "spool"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert spool_of("postgresql://host/db").folder == tmp_path / "comm-regress" / "spool"


def test_every_attempt_of_a_run_since_a_time_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str],
                                                     prometheus: MetricsServer) -> None:
    monkeypatch.chdir(tmp_path)
    thresholds(tmp_path, prometheus.base)
    [one] = store(tmp_path, timedelta(hours=1))
    with open_history(str(tmp_path / ".comm-regress")) as history:
        history.add(replace(one, attempt=2))
    assert main(["publish", "sinks", one.run_id, "--since", one.started_at]) == 0
    # The named run is its last attempt, and is among those since that time: sent once.
    assert capsys.readouterr().out.count("bytes pushed (204)") == 2
