"""The record of truth: one immutable JSON file for each run, and one small file for each acceptance.

    <history>/.gitignore
    <history>/runs/20261129T130102Z-1a2b3c4d-<run id>-1.json      (or .json.gz)
    <history>/accepted/<run id>-1-<digest>.json

Names are unique, so folders from several runners merge by copying. A file appears whole or not at all: it is written
under a temporary name in the same folder, flushed to the disk, and renamed into place. Nothing here ever deletes or
rewrites a file, except `drop_samples`, which replaces a run by the same run without raw samples.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from regress.errors import HistoryError, HistoryWriteError, RecordError
from regress.record import Acceptance, Run, run_from_json, to_json, without_samples
from regress.whole_file import write_whole

RUNS = "runs"
ACCEPTED = "accepted"
SUFFIXES = (".json", ".json.gz")
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""What a run id may look like: it becomes part of a file's name, so no separators and no leading dot."""

LARGEST_RUN_BYTES = 256 << 20
"""No gate comes near: a thousand series of a hundred samples, at 20 bytes a sample, are 2 MB a launch."""


@dataclass(frozen=True, slots=True)
class AcceptedMark:
    """One acceptance of one run, as stored beside the runs."""

    run_id: str
    attempt: int
    acceptance: Acceptance
    schema: int = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """A file or row that is not a readable run: named and skipped, never deleted."""

    location: str
    reason: str

    @property
    def text(self) -> str:
        """Where and why; the reason often names the place already."""
        return self.reason if self.location in self.reason else f"{self.location}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A run file as the folder shows it, before anything is read."""

    name: str
    size_bytes: int
    modified_ns: int


def utc(moment: str, where: str) -> datetime:
    """The UTC time of an ISO 8601 text; a text without a zone is taken as UTC. RecordError when it is no time."""
    try:
        # Python 3.10 does not take the Z.
        time = datetime.fromisoformat(f"{moment[:-1]}+00:00" if moment.endswith("Z") else moment)
    except ValueError as error:
        raise RecordError(f"{moment!r} is not a time", where=where,
                          accepted="ISO 8601 such as 2026-11-29T13:01:02Z") from error
    return time.astimezone(timezone.utc) if time.tzinfo else time.replace(tzinfo=timezone.utc)


def checked(run: Run, where: str) -> Run:
    """The run itself, when its id, attempt and times can be stored; RecordError when not."""
    if not RUN_ID.fullmatch(run.run_id):
        raise RecordError(f"run id {run.run_id!r}", where=where,
                          accepted="1 to 80 letters, digits, dots, underscores and hyphens, not starting with a dot")
    if run.attempt < 1:
        raise RecordError(f"attempt {run.attempt}", where=where, accepted="1 or more")
    utc(run.started_at, where)
    return run


def file_name(run: Run, compress: bool = False) -> str:
    """UTC time, short commit, run id and attempt: sorts by time and never collides."""
    checked(run, f"run {run.run_id!r}")
    stamp = utc(run.started_at, run.run_id).strftime("%Y%m%dT%H%M%SZ")
    sha = run.commit.sha or ""
    short = sha[:8] if re.fullmatch(r"[0-9a-fA-F]{7,64}", sha) else "nocommit"
    return f"{stamp}-{short}-{run.run_id}-{run.attempt}{SUFFIXES[1] if compress else SUFFIXES[0]}"


def with_marks(run: Run, marks: Iterable[Acceptance]) -> Run:
    """The run with its acceptances folded into one: all their cases, the words of the latest.

    marks come in order of time; one that names no cases accepts every case.
    """
    known = [mark for mark in (run.accepted, *marks) if mark is not None]
    if not known:
        return run
    named = [mark.cases for mark in known]
    cases = None if None in named else tuple(sorted({case for group in named for case in group or ()}))
    return replace(run, accepted=replace(known[-1], cases=cases))


class RunFiles:
    """A history folder. Raises HistoryError at once when it cannot be made or written."""

    def __init__(self, root: Path, compress: bool = False) -> None:
        self.root = root
        self.runs_dir = root / RUNS
        self.accepted_dir = root / ACCEPTED
        self._compress = compress
        try:
            for folder in (self.runs_dir, self.accepted_dir):
                folder.mkdir(parents=True, exist_ok=True)
            # A probe, because permission bits say nothing about read-only mounts, quotas or root.
            with tempfile.TemporaryFile(dir=self.runs_dir) as probe:
                probe.write(b"probe")
            ignore = root / ".gitignore"
            if not ignore.exists():
                write_whole(ignore, b"*\n", overwrite=False)
        except OSError as error:
            raise HistoryError(f"the history folder cannot be written: {error.strerror or error}", where=str(root),
                               accepted="a folder on a local disk that this user may write, or postgresql://...",
                               next_step="give another one with --comm-regress-history") from error

    def entries(self) -> dict[str, Entry]:
        """The run files there are, by name; other files are not looked at."""
        found: dict[str, Entry] = {}
        with os.scandir(self.runs_dir) as folder:
            for item in folder:
                if item.name.endswith(SUFFIXES) and not item.name.startswith("."):
                    try:
                        status = item.stat()
                    except FileNotFoundError:
                        continue  # replaced or moved away between listing and looking: the next look sees it
                    found[item.name] = Entry(item.name, status.st_size, status.st_mtime_ns)
        return found

    def entry(self, name: str) -> Entry:
        """One run file as the folder shows it; RecordError when it is gone."""
        try:
            status = (self.runs_dir / name).stat()
        except OSError as error:
            raise RecordError(f"gone: {error.strerror}", where=str(self.runs_dir / name)) from error
        return Entry(name, status.st_size, status.st_mtime_ns)

    def write(self, run: Run) -> Path:
        """Store a run; the same run again is left as it is. HistoryWriteError when the disk does not take it."""
        target = self.runs_dir / file_name(run, self._compress)
        content = to_json(run)
        try:
            write_whole(target, gzip.compress(content, 6, mtime=0) if self._compress else content, overwrite=False)
        except OSError as error:
            raise keep_elsewhere(error.strerror or str(error), str(target), target.name, content) from error
        return target

    def read(self, name: str) -> Run:
        """The run in that file, of whatever schema version; RecordError says what is wrong with it."""
        where = str(self.runs_dir / name)
        try:
            with (self.runs_dir / name).open("rb") as file:
                content = file.read(LARGEST_RUN_BYTES + 1)
            if len(content) > LARGEST_RUN_BYTES:
                raise RecordError("the file is too large", where=where,
                                  accepted=f"at most {LARGEST_RUN_BYTES >> 20} MiB")
            if name.endswith(".gz"):
                content = gunzip(content)
        except (OSError, EOFError) as error:
            raise RecordError(f"unreadable: {error}", where=where, accepted="a whole run file") from error
        return checked(run_from_json(content, where), where)

    def drop_samples(self, name: str) -> int:
        """Replace a run file by the same run without raw samples; returns the bytes that were freed."""
        target = self.runs_dir / name
        before = self.entry(name).size_bytes
        content = to_json(without_samples(self.read(name)))
        try:
            write_whole(target, gzip.compress(content, 6, mtime=0) if name.endswith(".gz") else content)
        except OSError as error:
            raise HistoryWriteError(f"could not be rewritten without samples: {error}", where=str(target),
                                    next_step="nothing was lost; free some disk space and prune again") from error
        return before - self.entry(name).size_bytes

    def mark(self, mark: AcceptedMark) -> None:
        """Store an acceptance; the same one again changes nothing."""
        content = to_json(mark)
        digest = hashlib.sha256(content).hexdigest()[:12]
        target = self.accepted_dir / f"{mark.run_id}-{mark.attempt}-{digest}.json"
        try:
            write_whole(target, content, overwrite=False)
        except OSError as error:
            raise HistoryWriteError(f"the acceptance could not be stored: {error}", where=str(target),
                                    next_step="free some disk space and accept the run again") from error

    def marks(self) -> tuple[list[AcceptedMark], list[Problem]]:
        """All acceptances in order of time, and the files that are none."""
        good: list[AcceptedMark] = []
        bad: list[Problem] = []
        for path in sorted(self.accepted_dir.glob("[!.]*.json")):
            try:
                good.append(msgspec.json.decode(path.read_bytes(), type=AcceptedMark))
            except (OSError, UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
                bad.append(Problem(str(path), str(error)))
        return sorted(good, key=lambda mark: mark.acceptance.when), bad


def gunzip(content: bytes) -> bytes:
    """The unpacked content, bounded so that a hostile file cannot fill the memory; EOFError when it is cut."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        plain = unpacker.decompress(content, LARGEST_RUN_BYTES)
    except zlib.error as error:
        raise EOFError(str(error)) from error
    if not unpacker.eof:
        raise EOFError(f"the compressed file is cut, or unpacks to more than {LARGEST_RUN_BYTES >> 20} MiB")
    return plain


def keep_elsewhere(reason: str, where: str, name: str, content: bytes) -> HistoryWriteError:
    """The error for a run that the history did not take, after trying to keep its JSON in the temporary folder."""
    refuge = Path(tempfile.gettempdir()) / f"comm-regress-{name.removesuffix('.gz')}"
    seen = f"the run could not be stored: {reason}"
    try:
        write_whole(refuge, content)
    except OSError as second:
        return HistoryWriteError(f"{seen}; {refuge.parent} does not take it either ({second.strerror or second})",
                                 where=where, next_step="free some disk space and run the gate again")
    return HistoryWriteError(seen, where=where, next_step=f"its JSON is kept in {refuge}: make room, then "
                                                          f"`regress history import {refuge}`")
