from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from regress.errors import MeasurementError
from regress.measure.lock import hold_lock, host_lock_path, read_holder

ROOT = Path(__file__).resolve().parents[2]


def nobody_waits(text: str) -> None:
    raise AssertionError(text)


def test_a_free_lock_is_taken_at_once_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(2):
        with hold_lock(path, "the devices", wait_seconds=0, on_wait=nobody_waits):
            holder = read_holder(path)
            assert holder is not None
            assert holder.pid == os.getpid()
            assert path.stat().st_mode & 0o777 == 0o666


def test_the_second_gate_says_whom_it_waits_for_and_gives_up(tmp_path: Path) -> None:
    path, told = tmp_path / "lock", list[str]()
    with (hold_lock(path, "the devices", wait_seconds=0, on_wait=nobody_waits),
          pytest.raises(MeasurementError) as caught,
          hold_lock(path, "the devices", wait_seconds=0.5, on_wait=told.append)):
        pass
    assert len(told) == 1
    assert told[0].startswith(f"waiting up to 0.5 s: the devices: in use by process {os.getpid()} (")
    assert f"in use by process {os.getpid()}" in str(caught.value)
    assert "waited 0.5 s" in str(caught.value)
    assert caught.value.exit_status == 10


def test_it_goes_on_when_the_other_process_ends_however_that_happens(tmp_path: Path) -> None:
    path, told = tmp_path / "lock", list[str]()
    code = textwrap.dedent(f"""
        import os, sys, time
        from pathlib import Path
        from regress.measure.lock import hold_lock
        sys.argv = ["gate", "postgresql://me:secret@host/db"]
        with hold_lock(Path({str(path)!r}), "it", wait_seconds=0, on_wait=print):
            print("held", flush=True)
            sys.stdin.readline()
            os._exit(1)
    """)
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
                             env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert other.stdout is not None
    assert other.stdin is not None
    assert other.stdout.readline() == "held\n"

    def let_go(text: str) -> None:
        told.append(text)
        assert other.stdin is not None
        other.stdin.write("\n")
        other.stdin.flush()

    with hold_lock(path, "it", wait_seconds=30, on_wait=let_go):
        pass
    other.communicate()
    assert f"in use by process {other.pid} (gate postgresql://(redacted)@host/db) since " in told[0]


def test_a_lock_that_may_only_be_read_still_locks(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("{")
    path.chmod(0o444)
    with hold_lock(path, "it", wait_seconds=0, on_wait=nobody_waits):
        pass


def test_a_lock_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "absent" / "lock", tmp_path / "link"):
        with (pytest.raises(MeasurementError, match="cannot open the lock of it"),
              hold_lock(path, "it", wait_seconds=0, on_wait=nobody_waits)):
            pass
    assert not (tmp_path / "elsewhere").exists()


def test_all_gates_of_a_host_meet_at_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = host_lock_path()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert host_lock_path() == before
