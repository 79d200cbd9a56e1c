"""What only a history on a server can meet: no server, a server that goes away, a wrong URL."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from regress.errors import EXIT_UNTRUSTED, EXIT_USAGE, HistoryError, HistoryWriteError
from regress.history import exchange
from regress.history.store import open_history
from tests import servers
from tests.history.factory import moment, run


def test_the_password_is_never_shown(postgres_url: str) -> None:
    with_password = postgres_url.replace("regress@", "regress:hunter2@")
    with open_history(with_password) as history:
        assert "hunter2" not in history.location
        assert "hunter2" not in history.add(run(1))


def test_a_server_that_is_not_there_is_refused_up_front() -> None:
    url = f"postgresql://ada:hunter2@127.0.0.1:{servers.free_port()}/perf"
    with pytest.raises(HistoryError, match="the server cannot be used") as caught:
        open_history(url)
    assert caught.value.exit_status == EXIT_USAGE
    assert "hunter2" not in caught.value.text
    assert "postgresql://ada:***@127.0.0.1" in caught.value.text


def test_a_url_that_cannot_be_read() -> None:
    with pytest.raises(HistoryError, match="URL cannot be read") as caught:
        open_history("postgresql://host:notaport/db")
    assert "PGPASSWORD" in caught.value.text


def test_without_the_extra_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(HistoryError, match=r"needs sqlalchemy.*pip install 'comm-regress\[postgres\]'"):
        open_history("postgresql://127.0.0.1/db")


def test_a_server_that_goes_away_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with servers.postgres() as url:
        history = open_history(url)
        history.add(run(1))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with history:
        with pytest.raises(HistoryWriteError, match="the run could not be stored") as caught:
            history.add(run(2))
        assert caught.value.exit_status == EXIT_UNTRUSTED
        [kept] = tmp_path.glob("comm-regress-*.json")
        assert f"regress history import {kept}" in caught.value.text
        with pytest.raises(HistoryError, match="the server does not answer"):
            list(history.runs())
        with pytest.raises(HistoryError, match="the server does not answer"):
            history.accept("run00001", "why", "ada", moment(3))
    with open_history(str(tmp_path / "folder")) as elsewhere:
        assert exchange.import_(elsewhere, str(kept)).added == 1


def test_a_damaged_document_is_named_and_kept(postgres_url: str) -> None:
    import psycopg

    with open_history(postgres_url) as history:
        history.add(run(1))
        history.add(run(2))
        with psycopg.connect(postgres_url, autocommit=True) as link:
            link.execute("UPDATE comm_regress_document SET content = %s WHERE run_id = 'run00001'", (b"cut",))
        assert history.reindex() == 1
        [problem] = history.problems()
        assert "run00001" in problem.location
        with psycopg.connect(postgres_url) as link:
            assert link.execute("SELECT count(*) FROM comm_regress_document").fetchone() == (2,)


def test_an_index_of_another_schema_is_built_again(postgres_url: str) -> None:
    import psycopg

    with open_history(postgres_url) as history:
        history.add(run(1))
        history.accept("run00001", "anchor", "ada", moment(3))
        expected = history.medians()
    with psycopg.connect(postgres_url, autocommit=True) as link:
        link.execute("UPDATE comm_regress_meta SET value = '1' WHERE name = 'schema'")
        link.execute("DROP TABLE comm_regress_result")
    with open_history(postgres_url) as history:
        assert history.medians().equals(expected)
        assert [one.run_id for one in history.runs(accepted_only=True)] == ["run00001"]
