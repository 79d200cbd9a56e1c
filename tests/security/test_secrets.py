"""A secret in the environment is in nothing that a gate leaves: history, JSON, report, lock, argv, traces."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from regress.cli import main
from regress.measure.torchrun import TorchrunLauncher
from regress.selftest.trials import THRESHOLDS
from regress.session import GateRequest, open_gate
from tests.selftest.played import PlayedLauncher
from tests.trace_nsys.fake import make_export

SECRETS = {"GITHUB_TOKEN": "ghp_s3cr3t", "AWS_SECRET_ACCESS_KEY": "aws-s3cr3t", "NCCL_AUTH_KEY": "nccl-s3cr3t",
           "HF_TOKEN": "hf_s3cr3t", "NCCL_SOCKET_IFNAME": "http://ann:url-s3cr3t@host", "PGPASSWORD": "pg-s3cr3t"}


class Loud:
    """Keeps everything that the gate says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)

    case_started = progress = message


@pytest.fixture
def secretive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("regress.session.host_lock_path", lambda: tmp_path / "host.lock")


@pytest.mark.usefixtures("secretive")
def test_nothing_that_a_gate_leaves_or_says_holds_one(tmp_path: Path) -> None:
    root, out, observer = tmp_path / "root", tmp_path / "out", Loud()
    for folder in (root, out):
        folder.mkdir()
    gate = open_gate(GateRequest(root, THRESHOLDS, str(out / "history"), device="cpu", trace="none",
                                 json=out / "result.json", html=out / "report.html"))
    gate.factory = lambda _: PlayedLauncher()
    observer.said += gate.header()
    gate.run([planned.case for planned in gate.plan], observer)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"result.json", "report.html", "host.lock"} <= {path.name for path in left}
    assert any(path.parent.name == "runs" for path in left)
    for path in left:
        assert b"s3cr3t" not in path.read_bytes(), path
    assert "s3cr3t" not in "\n".join(observer.said)
    stored = next(path for path in left if path.parent.name == "runs").read_text()
    assert "variable.NCCL_AUTH_KEY" in stored, "that it is set is a fact worth keeping; what it is, is not"
    assert "HF_TOKEN" not in stored


@pytest.mark.usefixtures("secretive")
def test_the_launching_process_has_none_in_its_command_line(tmp_path: Path) -> None:
    with TorchrunLauncher(2, scratch=tmp_path) as launcher:
        agent = launcher.start()
        words, deadline = b"", time.monotonic() + 30
        while not words and time.monotonic() < deadline:  # empty until the kernel has put the new program in place
            words = Path(f"/proc/{agent.process.pid}/cmdline").read_bytes()
    assert words
    assert b"s3cr3t" not in words


def test_scrub_takes_them_out_of_an_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.sqlite"
    make_export(path)
    assert b"hunter2" in path.read_bytes()
    assert main(["scrub", str(path)]) == 0
    assert b"hunter2" not in path.read_bytes()
    assert "15 rows taken out or disguised" in capsys.readouterr().out
    assert main(["scrub", str(path)]) == 0
    assert "nothing to take out" in capsys.readouterr().out


def test_scrub_says_how_much_as_json(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    path = tmp_path / "t.sqlite"
    make_export(path)
    assert main(["scrub", "--json", str(path)]) == 0
    assert f'"{path}": 15' in capfdbinary.readouterr().out.decode()


def test_scrub_changes_nothing_where_one_of_them_is_no_export(tmp_path: Path,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    good, report = tmp_path / "t.sqlite", tmp_path / "t.nsys-rep"
    make_export(good)
    report.write_bytes(b"report")
    before = good.read_bytes()
    assert main(["scrub", str(good), str(report)]) == 4
    assert main(["scrub", str(good), str(tmp_path / "absent.sqlite")]) == 4
    assert good.read_bytes() == before
    assert "a report cannot be scrubbed; accepted: its SQLite export" in capsys.readouterr().err


def test_a_scrubbed_export_is_still_a_database(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    make_export(path)
    main(["scrub", str(path)])
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
