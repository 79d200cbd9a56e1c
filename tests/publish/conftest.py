from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import servers
from tests.servers import MetricsServer


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test servers are on this host, whatever the machine's proxy."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture(scope="session")
def prometheus() -> Iterator[MetricsServer]:
    with servers.prometheus() as server:
        yield server


@pytest.fixture(scope="session")
def victoria() -> Iterator[MetricsServer]:
    with servers.victoria_metrics() as server:
        yield server


@pytest.fixture(scope="session")
def gateway() -> Iterator[MetricsServer]:
    with servers.pushgateway() as server:
        yield server


@pytest.fixture(params=["prometheus", "victoria"])
def metrics_server(request: pytest.FixtureRequest) -> MetricsServer:
    """Both engines that remote-write is promised for."""
    found = request.getfixturevalue(str(request.param))
    assert isinstance(found, MetricsServer)
    return found
