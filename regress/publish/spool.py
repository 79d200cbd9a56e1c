"""What could not be sent yet: payloads on disk, bounded, tried again with growing pauses.

One file for each payload. It holds no secret: credentials are read from the environment when it is sent. What the
spool has to give up (refused, or beyond its bound) is not lost: the run is in the history and can be published again.
"""

from __future__ import annotations

import base64
import fcntl
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from regress.delivery import Payload, UnreachableError, WithheldError
from regress.errors import PublishError
from regress.publish import Result, Sink
from regress.units import counted
from regress.whole_file import write_whole

FIRST_PAUSE_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 6 * 3600.0
LONGEST_ASKED_SECONDS = 24 * 3600.0
MOST_BYTES = 64 * 2**20

Configured = tuple[Sink[Any], Any]
"""A sink and its options."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One spooled payload. Times are seconds since the epoch. attempts: how often it was sent in vain."""

    sink: str
    destination: str
    run_id: str
    created: float
    attempts: int
    not_before: float
    body: str
    content_type: str
    target: str
    headers: dict[str, str]
    last_error: str
    schema: int = 1

    def payload(self) -> Payload:
        """As it is sent."""
        return Payload(base64.b64decode(self.body), self.content_type, self.run_id, self.target, dict(self.headers))


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of the payloads for one sink.

    sent: what was done, in words. kept: how many wait in the spool. problems: what a reader must know, one sentence
    each: what the server said, what was given up and how to publish it again.
    """

    sink: str
    destination: str
    sent: tuple[str, ...] = ()
    kept: int = 0
    problems: tuple[str, ...] = ()


def pause(attempts: int, asked_seconds: float | None) -> float:
    """Seconds until the next try: 1, 2, 4 ... minutes up to 6 hours, or longer where the server asked for it."""
    grown = min(FIRST_PAUSE_SECONDS * 2.0 ** min(attempts - 1, 20), LONGEST_PAUSE_SECONDS)
    return max(grown, min(asked_seconds or 0.0, LONGEST_ASKED_SECONDS))


class Spool:
    """A folder of waiting payloads, shared by the gates of one host."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self.most_bytes = most_bytes

    def waiting(self) -> tuple[list[tuple[Path, Kept]], list[str]]:
        """The spooled payloads, oldest first, and the files that are none: those are named and left alone."""
        good: list[tuple[Path, Kept]] = []
        bad: list[str] = []
        for path in sorted(self.folder.glob("[!.]*.json")):
            try:
                good.append((path, msgspec.json.decode(path.read_bytes(), type=Kept)))
            except FileNotFoundError:
                continue  # another gate has just sent it
            except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
                bad.append(f"{path} is no spooled payload and was left alone: {error}")
        return good, bad

    def publish(self, configured: Sequence[Configured], result: Result, now: float) -> tuple[Delivery, ...]:
        """Send a run to every sink, older payloads first; what fails waits in the spool. Never raises PublishError."""
        return tuple(self._one(sink, options, sink.render, result, now) for sink, options in configured)

    def retry(self, configured: Sequence[Configured], now: float, at_once: bool = False) -> tuple[Delivery, ...]:
        """Send what waits. at_once: also what is not due yet."""
        found = [self._drain(sink, options, now, at_once) for sink, options in configured]
        known = {(sink.name, sink.destination(options)) for sink, options in configured}
        orphans: dict[tuple[str, str], int] = {}
        waiting, problems = self.waiting()
        for _, kept in waiting:
            if (kept.sink, kept.destination) not in known:
                place = (kept.sink, kept.destination)
                orphans[place] = orphans.get(place, 0) + 1
        found += [Delivery(*place, kept=count, problems=(
            f"{counted(count, 'payload')} kept for {place[0]} {place[1]}, which is no longer configured: configure "
            f"it again, or remove them from {self.folder}",)) for place, count in orphans.items()]
        if problems:
            found.append(Delivery("spool", str(self.folder), problems=tuple(problems)))
        return tuple(found)

    def _one(self, sink: Sink[Any], options: Any, render: Any, result: Result, now: float) -> Delivery:
        try:
            payloads: tuple[Payload, ...] = render(result, options)
        except PublishError as error:
            return Delivery(sink.name, sink.destination(options), problems=(_given_up(error, result.run.run_id),))
        before = self._drain(sink, options, now, at_once=False)
        sent, kept, problems = list(before.sent), before.kept, list(before.problems)
        for payload in payloads:
            if kept:
                # The destination is down, or older values wait: they must arrive first.
                problems += self._keep(sink, options, payload, now, WithheldError("older payloads wait"))
                kept += 1
                continue
            try:
                sent.append(sink.send(payload, options))
            except UnreachableError as error:
                problems.append(f"{error.text}; kept in {self.folder}")
                problems += self._keep(sink, options, payload, now, error)
                kept += 1
            except PublishError as error:
                problems.append(_given_up(error, payload.run_id))
        return replace(before, sent=tuple(sent), kept=kept, problems=tuple(problems))

    def _drain(self, sink: Sink[Any], options: Any, now: float, at_once: bool) -> Delivery:
        """Send what waits for one sink, oldest first, until something is not taken."""
        destination = sink.destination(options)
        sent: list[str] = []
        problems: list[str] = []
        with self._alone() as alone:
            mine = [(path, kept) for path, kept in self.waiting()[0]
                    if (kept.sink, kept.destination) == (sink.name, destination)]
            left = len(mine)
            for path, kept in mine if alone else ():
                if _paused(kept, now) and not at_once:
                    break
                try:
                    sent.append(f"{sink.send(kept.payload(), options)}, of run {kept.run_id}, kept earlier")
                except UnreachableError as error:
                    problems.append(f"{error.text}; {counted(left, 'payload')} kept in {self.folder}")
                    if not isinstance(error, WithheldError):
                        problems += self._again(path, kept, now, error)
                    break
                except PublishError as error:
                    problems.append(_given_up(error, kept.run_id))
                path.unlink(missing_ok=True)
                left -= 1
        return Delivery(sink.name, destination, tuple(sent), left, tuple(problems))

    def _again(self, path: Path, kept: Kept, now: float, error: UnreachableError) -> list[str]:
        attempts = kept.attempts + 1
        later = replace(kept, attempts=attempts, last_error=error.text,
                        not_before=now + pause(attempts, error.retry_after_seconds))
        return self._write(path, later)

    def _keep(self, sink: Sink[Any], options: Any, payload: Payload, now: float,
              error: UnreachableError) -> list[str]:
        attempts, due = (0, now) if isinstance(error, WithheldError) else (1, now + pause(1, error.retry_after_seconds))
        kept = Kept(sink.name, sink.destination(options), payload.run_id, now, attempts, due,
                    base64.b64encode(payload.body).decode(), payload.content_type, payload.target,
                    dict(payload.headers), error.text)
        path = self.folder / f"{int(now * 1000):016d}-{sink.name}-{uuid.uuid4().hex[:12]}.json"
        return self._write(path, kept) + self._bound()

    def _write(self, path: Path, kept: Kept) -> list[str]:
        """Store a payload whole or not at all; the sentence to show when the disk does not take it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, msgspec.json.encode(kept))
        except OSError as error:
            return [f"the spool {self.folder} does not take it ({error.strerror or error}): run {kept.run_id} is in "
                    f"the history; publish it with `regress publish sinks {kept.run_id}`"]
        return []

    def _bound(self) -> list[str]:
        """Remove the oldest payloads beyond the bound, naming their runs."""
        sizes = [(path, path.stat().st_size) for path in sorted(self.folder.glob("[!.]*.json"))]
        total = sum(size for _, size in sizes)
        dropped: list[str] = []
        for path, size in sizes[:-1]:
            if total <= self.most_bytes:
                break
            dropped.append(path.name)
            path.unlink(missing_ok=True)
            total -= size
        if not dropped:
            return []
        return [f"the spool is full ({self.most_bytes // 2**20} MiB): {len(dropped)} of its oldest payloads were "
                "dropped; their runs are in the history: publish them with `regress publish sinks --since TIME`"]

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether this process may send what waits: one at a time, so that nothing is sent twice or out of order."""
        if not self.folder.is_dir():
            yield False
            return
        with ExitStack() as stack:
            try:
                lock = stack.enter_context((self.folder / ".lock").open("a"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another gate has it, or the disk is full: what waits goes on waiting
                yield False
                return
            yield True


def _paused(kept: Kept, now: float) -> bool:
    """Whether it is too early. A pause longer than any there is comes from a clock that was ahead, and is none."""
    return 0.0 < kept.not_before - now <= LONGEST_ASKED_SECONDS


def _given_up(error: PublishError, run_id: str) -> str:
    return f"{error.text}; not tried again: once that is mended, `regress publish sinks {run_id}`"


def verified(configured: Sequence[Configured], result: Result) -> Mapping[str, str]:
    """What each sink that can reads back of the run, by sink; PublishError when one does not find it."""
    return {f"{sink.name} {sink.destination(options)}": sink.verify(result, options)
            for sink, options in configured if sink.verify is not None and sink.render(result, options)}


