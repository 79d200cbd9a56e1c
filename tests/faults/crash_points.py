"""Every operation that changes files below one folder, counted; at a chosen one the process is killed.

Two ways to die. "kill" is SIGKILL: what the kernel was told stays. "power" is a power cut: a file whose content was not
flushed is cut to half wherever it is by then, and the index, which is not flushed on purpose, is back at what it was.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

AUDITED = {"os.mkdir": "mkdir", "os.rmdir": "rmdir", "os.remove": "unlink", "os.rename": "rename", "os.chmod": "chmod",
           "os.truncate": "truncate", "os.link": "link", "os.symlink": "symlink"}
STATEMENTS = ("BEGIN", "COMMIT", "ROLLBACK", "CREATE", "DROP", "INSERT", "DELETE", "UPDATE", "PRAGMA")
TAKING_ROOM = ("mkdir", "open", "write half of", "write", "copy to")
INDEX = "index.sqlite"


@dataclass(slots=True)
class CrashPoints:
    """root: the folder. die_at: number of the operation before which the process ends, from 1; None for never.

    index_before: files of the index as they come back after a power cut; none where it is only killed.
    refuse: in place of dying, raises this error at every operation from that one on that takes room on the disk.
    """

    root: Path
    die_at: int | None = None
    power: bool = False
    refuse: Callable[[], OSError] | None = None
    seen: list[str] = field(default_factory=list)
    _flushed: dict[int, tuple[int, int]] = field(default_factory=dict)
    _statement: str = ""
    _reading: bool = False
    _index: dict[str, bytes] = field(default_factory=dict)

    def install(self) -> None:
        """Watches this process from now on; there is no way back, so it belongs in a process of its own."""
        self._index = {path.name: path.read_bytes() for path in self.root.glob(f"{INDEX}*")}
        for path in self._files():
            self._note(path.stat())
        sys.addaudithook(self._audit)
        flush, send, write = os.fsync, os.sendfile, os.pwrite

        def fsync(descriptor: Any) -> None:
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            path = self._path_of(number)
            if path is not None and stat.S_ISREG(os.fstat(number).st_mode):
                self.step("write half of", path, tear=True)
                self.step("fsync", path)
            elif path is not None:
                self.step("fsync folder", path)
            flush(descriptor)
            self._note(os.fstat(number))

        def sendfile(out: int, source: int, offset: int, count: int) -> int:
            path = self._path_of(out)
            if path is not None:
                self.step("copy to", path)
            return send(out, source, offset, count)

        def pwrite(descriptor: int, content: bytes, offset: int) -> int:
            path = self._path_of(descriptor)
            if path is not None:
                self.step("write", path)
            return write(descriptor, content, offset)

        os.fsync, os.sendfile, os.pwrite = fsync, sendfile, pwrite  # type: ignore[assignment]
        connect = sqlite3.connect

        def watched(database: Any, *arguments: Any, **settings: Any) -> sqlite3.Connection:
            link: sqlite3.Connection = connect(database, *arguments, **settings)
            if self._inside(Path(database)) is not None:
                link.set_trace_callback(self._sql)
            return link

        sqlite3.connect = watched  # type: ignore[assignment]

    def step(self, operation: str, path: Path, *, tear: bool = False) -> None:
        """One operation that is about to happen. tear: it has happened by half when the process dies here."""
        self.seen.append(f"{operation} {'/'.join((*path.relative_to(self.root).parts[:1], path.suffix))}")
        if self.die_at is None or len(self.seen) < self.die_at:
            return
        if self.refuse is not None:
            if operation in TAKING_ROOM:
                raise self.refuse()
            return
        if len(self.seen) == self.die_at:
            if tear:
                os.truncate(path, path.stat().st_size // 2)
            self._die()

    def _die(self) -> NoReturn:
        self.die_at = None  # what follows is no operation of the gate
        if self.power:
            for path in self._files():
                now = path.stat()
                if self._flushed.get(now.st_ino) != (now.st_mtime_ns, now.st_size):
                    os.truncate(path, now.st_size // 2)
            for path in self.root.glob(f"{INDEX}*"):
                path.unlink()
            for name, content in self._index.items():
                (self.root / name).write_bytes(content)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("outlived SIGKILL")

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, (str, bytes)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                self._opened(Path(os.fsdecode(path)))
        elif event in AUDITED:
            first = arguments[0]
            if isinstance(first, (str, bytes, os.PathLike)):
                folder = arguments[-1] if event != "os.rename" and isinstance(arguments[-1], int) else -1
                inside = self._inside(Path(os.fsdecode(first)), folder)
                if inside is not None and not (event == "os.mkdir" and inside.exists()):
                    self.step(AUDITED[event], inside)

    def _opened(self, path: Path) -> None:
        inside = self._inside(path)
        if inside is None:
            return
        self.step("open", inside)

    def _files(self) -> list[Path]:
        return [path for path in self.root.rglob("*") if path.is_file() and not path.name.startswith(INDEX)]

    def _note(self, state: os.stat_result) -> None:
        self._flushed[state.st_ino] = (state.st_mtime_ns, state.st_size)

    def _inside(self, path: Path, folder: int = -1) -> Path | None:
        if not path.is_absolute():
            path = (Path.cwd() if folder < 0 else Path(f"/proc/self/fd/{folder}").readlink()) / path
        return path if path.is_relative_to(self.root) else None

    def _path_of(self, descriptor: int) -> Path | None:
        return self._inside(Path(f"/proc/self/fd/{descriptor}").readlink())

    def _sql(self, statement: str) -> None:
        """Statements of one kind in a row are one operation, and those of a transaction that only reads are none."""
        verb = statement.split(maxsplit=1)[0].upper()
        if verb == "BEGIN":
            self._reading = "IMMEDIATE" not in statement
        if verb in STATEMENTS and verb != self._statement and not self._reading:
            self.step(f"sql {verb}", self.root / INDEX)
        self._statement = verb
        self._reading = self._reading and verb not in ("COMMIT", "ROLLBACK")


def copied(source: Path, target: Path) -> None:
    """The folder as it is, with its times: the index believes a folder by its time stamp."""
    shutil.copytree(source, target, copy_function=shutil.copy2)
    for path in [source, *source.rglob("*")]:
        if path.is_dir():
            shutil.copystat(path, target / path.relative_to(source))
