"""Real servers for tests: found, started on 127.0.0.1 with folders of their own, waited for, and stopped.

REGRESS_TEST_SERVERS names the folder that `.ci/install-servers` filled. Without a server a test is skipped on a desk
and fails where CI is set.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_READY_SECONDS = 30.0


def binary(name: str) -> Path:
    """The server's program; skips or fails the test when there is none."""
    root = Path(os.environ.get("REGRESS_TEST_SERVERS", "/opt/regress-servers"))
    places = [root / "usr" / "bin" / name, *sorted(root.glob(f"usr/lib/postgresql/*/bin/{name}")),
              *sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))]
    on_path = shutil.which(name)
    for place in [*places, *([Path(on_path)] if on_path else [])]:
        if place.is_file():
            return place
    reason = f"no {name}: run `.ci/install-servers DEST` and set REGRESS_TEST_SERVERS=DEST"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server_folder() -> Iterator[Path]:
    """A folder that an unprivileged server may own, with a short path as Unix sockets need it."""
    folder = Path(tempfile.mkdtemp(prefix="regress-srv-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(command: Sequence[str], folder: Path, ready_url: str, unprivileged: bool = False) -> Iterator[None]:
    """The server while the block lasts; ready when `ready_url` (http or postgresql) answers."""
    log = folder / "server.log"
    user = 65534 if unprivileged and os.getuid() == 0 else None
    with log.open("wb") as output:
        process = subprocess.Popen(list(command), stdout=output, stderr=output, cwd=folder, user=user, group=user,
                                   extra_groups=[] if user else None)
    try:
        _wait(process, ready_url, log)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], ready_url: str, log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        if _answers(ready_url):
            return
        time.sleep(0.05)
    pytest.fail(f"server not ready at {ready_url}: {log.read_text(errors='replace')[-2000:]}")


def _answers(url: str) -> bool:
    if url.startswith("postgresql://"):
        import psycopg

        # The port is open before the server takes anyone.
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:  # noqa: S310 - always this test's own server
            return 200 <= int(answer.status) < 300
    except (OSError, urllib.error.URLError):
        return False


@contextmanager
def postgres() -> Iterator[str]:
    """A PostgreSQL cluster of its own, run by an ordinary user; yields the URL of its first database."""
    initdb, server = binary("initdb"), binary("postgres")
    with server_folder() as folder:
        if os.getuid() == 0:
            os.chown(folder, 65534, 65534)
        user = 65534 if os.getuid() == 0 else None
        subprocess.run([str(initdb), "-D", str(folder / "data"), "-U", "regress", "-A", "trust", "--no-sync",
                        "-E", "UTF8", "--locale", "C"],
                       check=True, capture_output=True, cwd=folder, user=user, group=user,
                       extra_groups=[] if user else None)
        port = free_port()
        command = [str(server), "-D", str(folder / "data"), "-c", "listen_addresses=127.0.0.1", "-p", str(port),
                   "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
        url = f"postgresql://regress@127.0.0.1:{port}/postgres"
        with running(command, folder, url, unprivileged=True):
            yield url


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """A running server and what its readers need to know."""

    base: str
    kind: str

    @property
    def write_url(self) -> str:
        return f"{self.base}/api/v1/write"


@contextmanager
def prometheus(window: str | None = "30d", receiver: bool = True) -> Iterator[MetricsServer]:
    """Prometheus with the remote-write receiver; window: its out-of-order window, None for the default of none."""
    program = binary("prometheus")
    with server_folder() as folder:
        storage = f"storage: {{tsdb: {{out_of_order_time_window: {window}}}}}\n" if window else ""
        (folder / "prometheus.yml").write_text(f"global: {{scrape_interval: 1h}}\n{storage}")
        port = free_port()
        command = [str(program), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
                   f"--web.listen-address=127.0.0.1:{port}",
                   *(["--web.enable-remote-write-receiver"] if receiver else [])]
        base = f"http://127.0.0.1:{port}"
        with running(command, folder, f"{base}/-/ready"):
            yield MetricsServer(base, "prometheus")


@contextmanager
def victoria_metrics(retention: str = "100y") -> Iterator[MetricsServer]:
    program = binary("victoria-metrics")
    with server_folder() as folder:
        port = free_port()
        command = [str(program), f"-storageDataPath={folder / 'data'}", f"-httpListenAddr=127.0.0.1:{port}",
                   f"-retentionPeriod={retention}", "-search.latencyOffset=0s"]
        base = f"http://127.0.0.1:{port}"
        with running(command, folder, f"{base}/health"):
            yield MetricsServer(base, "victoria-metrics")


@contextmanager
def pushgateway() -> Iterator[MetricsServer]:
    program = binary("prometheus-pushgateway")
    with server_folder() as folder:
        port = free_port()
        base = f"http://127.0.0.1:{port}"
        with running([str(program), f"--web.listen-address=127.0.0.1:{port}"], folder, f"{base}/-/ready"):
            yield MetricsServer(base, "pushgateway")


@contextmanager
def influxdb() -> Iterator[MetricsServer]:
    """InfluxDB 1 with one database, perf."""
    program = binary("influxd")
    with server_folder() as folder:
        port, rpc = free_port(), free_port()
        (folder / "influxdb.conf").write_text(
            f'reporting-enabled = false\nbind-address = "127.0.0.1:{rpc}"\n[meta]\ndir = "{folder}/meta"\n[data]\n'
            f'dir = "{folder}/data"\nwal-dir = "{folder}/wal"\n[monitor]\nstore-enabled = false\n[http]\n'
            f'bind-address = "127.0.0.1:{port}"\nlog-enabled = false\n')
        base = f"http://127.0.0.1:{port}"
        with running([str(program), "-config", str(folder / "influxdb.conf")], folder, f"{base}/ping"):
            request = urllib.request.Request(f"{base}/query?q=CREATE+DATABASE+perf", method="POST")  # noqa: S310
            urllib.request.urlopen(request).close()  # noqa: S310 - this test's own server
            yield MetricsServer(base, "influxdb")
