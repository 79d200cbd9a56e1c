"""Advisory locks: one gate at a time on the devices of a host, and on one history."""

from __future__ import annotations

import datetime
import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from regress.errors import MeasurementError
from regress.measure.variables import redact_logins

POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a lock. since: UTC, ISO 8601."""

    pid: int
    command: str
    since: str

    @property
    def text(self) -> str:
        """Process, command and time for a person."""
        return f"process {self.pid} ({self.command}) since {self.since}"


def host_lock_path() -> Path:
    """The one lock of this host, for all users: two gates at once would measure each other."""
    shared = Path("/tmp")  # noqa: S108  not TMPDIR: gates of different users and jobs must meet at one file
    return (shared if shared.is_dir() else Path(tempfile.gettempdir())) / "comm-regress-host.lock"


@contextmanager
def hold_lock(path: Path, what: str, *, wait_seconds: float, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock file for the block; the kernel frees it when the process ends, however that happens.

    what: what it protects, for messages ("the devices of this host"). on_wait: called once when somebody else has it.
    Raises MeasurementError naming the holder when it is not free within wait_seconds, or cannot be opened.
    """
    descriptor = _open(path, what)
    try:
        _acquire(descriptor, path, what, wait_seconds, on_wait)
        _write_holder(descriptor)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path, what: str) -> int:
    """Opens without creating first: in a sticky folder Linux refuses O_CREAT on another user's file."""
    for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR, os.O_RDONLY):
        try:
            descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            last = error
            continue
        if flags & os.O_CREAT:
            os.fchmod(descriptor, 0o666)  # beyond the umask: other users lock the same file
        return descriptor
    raise MeasurementError(f"cannot open the lock of {what}: {last.strerror}", where=str(path),
                           accepted="a file that may be opened",
                           next_step="remove it, or fix its permissions") from last


def _acquire(descriptor: int, path: Path, what: str, wait_seconds: float, on_wait: Callable[[str], None]) -> None:
    deadline, told = time.monotonic() + wait_seconds, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = read_holder(path)
            who = holder.text if holder else "another process"
            if time.monotonic() >= deadline:
                raise MeasurementError(
                    f"{what}: in use by {who}; waited {wait_seconds:g} s", where=str(path),
                    next_step="run the gate again when the other has ended") from None
            if not told:
                on_wait(f"waiting up to {wait_seconds:g} s: {what}: in use by {who}")
                told = True
            time.sleep(min(POLL_SECONDS, max(0.01, wait_seconds)))
        else:
            return


def _write_holder(descriptor: int) -> None:
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    text = msgspec.json.encode(Holder(os.getpid(), redact_logins(" ".join(sys.argv))[:200], now))
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
    except OSError:  # opened for reading only, or a full disk: the lock holds all the same, without a name
        return


def who_holds(path: Path) -> str | None:
    """Who holds the lock now, in words; None where it is free. Takes it for a moment, and shares that moment.

    Raises MeasurementError where the file is there and cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MeasurementError(f"cannot open the lock: {error.strerror}", where=str(path)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = read_holder(path)
        return holder.text if holder else "another process"
    finally:
        os.close(descriptor)
    return None


def read_holder(path: Path) -> Holder | None:
    """Who wrote itself into the lock file last; None where nobody did."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Holder)
    except (OSError, msgspec.DecodeError):
        return None
