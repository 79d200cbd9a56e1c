from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from regress.history.store import History, open_history
from tests import servers

_COUNT = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with servers.postgres() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """A fresh database on the one server."""
    import psycopg

    name = f"history{next(_COUNT)}"
    with psycopg.connect(postgres_server, autocommit=True) as link:
        link.execute(f"CREATE DATABASE {name}".encode())
    return postgres_server.removesuffix("postgres") + name


@pytest.fixture(params=["folder", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a history of each kind: every test that asks for it runs on both."""
    return str(tmp_path / "history") if request.param == "folder" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def history(url: str) -> Iterator[History]:
    with open_history(url) as opened:
        yield opened
