"""A history that cannot be used as it should: locked, read-only, deleted or foreign while a gate is at work."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import regress.gate_work
import regress.history.folder
from regress.errors import EXIT_UNTRUSTED, EXIT_USAGE, HistoryError, HistoryWriteError
from regress.history.store import open_history
from tests.acceptance.conftest import Theatre
from tests.history.factory import run

INDEX = ".comm-regress/index.sqlite"


@contextmanager
def locked(index: Path) -> Iterator[None]:
    """Another process in the middle of a write that does not end."""
    with closing(sqlite3.connect(index, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_an_index_that_another_process_keeps_locked(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    theatre.baseline()
    assert theatre.gate().ret == 0
    monkeypatch.setattr(regress.history.folder, "_BUSY_SECONDS", 0.1)
    with locked(theatre.folder / INDEX):
        done = theatre.gate()
    assert done.ret == EXIT_USAGE
    done.stderr.fnmatch_lines(["ERROR: comm-regress: *index.sqlite: the index cannot be opened: database is locked; *"])
    assert theatre.gate().ret == 0


def test_an_index_that_is_locked_after_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regress.history.folder, "_BUSY_SECONDS", 0.1)
    with open_history(str(tmp_path)) as history:
        with locked(tmp_path / "index.sqlite"), pytest.raises(HistoryWriteError, match=(
                r"the run is stored, but the index does not take it: .*database is locked")):
            history.add(run(1))
        with locked(tmp_path / "index.sqlite"), pytest.raises(HistoryWriteError, match=(
                r"index\.sqlite: the index cannot be used: database is locked; .*end the process that holds it")):
            next(history.runs())
        assert [found.run_id for found in history.runs()] == ["run00001"]


def test_an_index_that_is_deleted_while_it_is_open(tmp_path: Path) -> None:
    with open_history(str(tmp_path)) as history:
        history.add(run(1))
        for path in tmp_path.glob("index.sqlite*"):
            path.unlink()
        history.add(run(2))
    with open_history(str(tmp_path)) as history:
        assert [found.run_id for found in history.runs()] == ["run00002", "run00001"]
        assert history.problems() == []


def test_an_index_that_is_damaged_while_it_is_open(tmp_path: Path) -> None:
    """What is read next may be an error, but one of ours, and the next one to open it builds it again."""
    with open_history(str(tmp_path)) as history:
        for number in range(5):
            history.add(run(number))
    with open_history(str(tmp_path)) as history:
        with (tmp_path / "index.sqlite").open("r+b") as index:
            index.write(os.urandom(4096) * 8)
        with pytest.raises(HistoryWriteError, match=r"the index cannot be used: .*it is built again from the runs"):
            list(history.runs())
    with open_history(str(tmp_path)) as history:
        assert len(list(history.runs())) == 5


def test_an_index_whose_lock_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "index.lock").mkdir()
    with pytest.raises(HistoryError, match=r"index\.lock: the lock of the index cannot be opened: Is a directory"):
        open_history(str(tmp_path))


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history on a file system that turned read-only, as a kernel does after errors of a disk."""
    with open_history(str(tmp_path)) as history:
        history.add(run(1))
    real: Any = tempfile.TemporaryFile

    def refuse(*arguments: Any, dir: Any = None, **settings: Any) -> Any:
        if Path(dir or "/").is_relative_to(tmp_path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))
        return real(*arguments, dir=dir, **settings)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    return tmp_path


def test_a_history_that_is_read_only(read_only: Path) -> None:
    with pytest.raises(HistoryError, match="the history folder cannot be written: Read-only file system") as caught:
        open_history(str(read_only))
    assert caught.value.exit_status == EXIT_USAGE


def test_a_history_that_vanishes_while_the_gate_measures(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody cleans the workspace: the verdict stands, and the run is kept elsewhere."""
    theatre.baseline()
    refuge = theatre.folder / "refuge"
    refuge.mkdir()
    finished = regress.gate_work.GateWork.finish

    def finish(self: Any, *arguments: Any, **settings: Any) -> Any:
        shutil.rmtree(theatre.folder / ".comm-regress")
        monkeypatch.setattr("tempfile.tempdir", str(refuge))
        return finished(self, *arguments, **settings)

    monkeypatch.setattr(regress.gate_work.GateWork, "finish", finish)
    done = theatre.gate()
    assert done.ret == EXIT_UNTRUSTED
    done.stdout.fnmatch_lines(["warning: *the run could not be stored: No such file or directory; its JSON is kept *",
                               "comm-regress: 3 unchanged (status 10)"])
    assert len(list(refuge.glob("comm-regress-*.json"))) == 1


def test_no_room_for_temporary_files(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/comm-regress-x")

    monkeypatch.setattr("regress.measuring.tempfile.TemporaryDirectory", full)
    monkeypatch.setattr("regress.measuring.tempfile.mkdtemp", full)
    done = theatre.gate()
    assert done.ret == EXIT_UNTRUSTED
    text = done.stdout.str() + done.stderr.str()
    assert "/tmp/comm-regress-x: this machine refuses: No space left on device" in text
    assert "set TMPDIR to another folder" in text
    assert "INTERNALERROR" not in text
