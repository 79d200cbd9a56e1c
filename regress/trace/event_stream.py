"""A Chrome-trace JSON file (plain or gzip) as a stream of events, in memory bounded by a few blocks however big it is.

The file is cut between events and each piece is decoded by msgspec into only the fields needed. A cut is looked for at
`}, {"key":` with a key that events begin with. Such text cannot lie inside a JSON string (its quotes would be escaped),
but it can lie inside an event's own nested lists; then the piece does not decode and an earlier cut is taken.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import msgspec

from regress.errors import TraceInputError

BLOCK_BYTES = 4 << 20
_LARGEST_EVENT_BYTES = 64 << 20
_CUT = re.compile(rb'\}\s*,\s*\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:')
_CUTS_TRIED = 64
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_NOT_JSON = re.compile(rb':\s*-?(?:NaN|Infinity|nan|inf)\b')


class Event(msgspec.Struct):
    """One event; numbers and arguments stay raw until someone wants them."""

    name: str = ""
    ph: str = ""
    cat: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: msgspec.Raw = msgspec.Raw(b"")


class Device(msgspec.Struct):
    """One entry of deviceProperties."""

    name: str = ""


class Distributed(msgspec.Struct):
    """distributedInfo: who this process is."""

    rank: int | None = None
    world_size: int | None = None


class Document(msgspec.Struct, rename={"distributed": "distributedInfo", "devices": "deviceProperties",
                                       "base_ns": "baseTimeNanoseconds", "events": "traceEvents"}):
    """What stands beside the events, before or behind them."""

    events: list[Event] = []
    distributed: Distributed | None = None
    devices: list[Device] | None = None
    base_ns: int | None = None
    host_name: str | None = None


class EventStream:
    """Events of one file. `document` holds the file's metadata, complete once the events are exhausted.

    Raises TraceInputError while iterating where the file is no trace, is truncated or is damaged.
    """

    def __init__(self, path: Path, block_bytes: int = BLOCK_BYTES) -> None:
        self.path = path
        self.document = Document()
        self._block_bytes = block_bytes

    def __iter__(self) -> Iterator[Event]:
        try:
            with self._open() as file:
                yield from self._events(file)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._bad(f"damaged gzip data: {error}") from error
        except UnicodeDecodeError as error:
            raise self._bad("not text") from error

    def _open(self) -> IO[bytes]:
        with self.path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        return cast("IO[bytes]", gzip.open(self.path, "rb")) if packed else self.path.open("rb")

    def _bad(self, seen: str) -> TraceInputError:
        return TraceInputError(seen, where=str(self.path), accepted="a trace of torch.profiler (.json or .json.gz)",
                               next_step="export it again")

    def _events(self, file: IO[bytes]) -> Iterator[Event]:
        rest, opening = self._head(file)
        while True:
            block = file.read(self._block_bytes)
            if not block:
                break
            rest += block
            if len(rest) < self._block_bytes:
                continue
            events, rest = self._cut(rest)
            yield from events
            if len(rest) > _LARGEST_EVENT_BYTES:
                raise self._bad("an event of more than 64 MiB")
        yield from self._tail(opening, rest)

    def _head(self, file: IO[bytes]) -> tuple[bytes, bytes]:
        """Read up to the array of events: what follows its bracket, and how the document opened."""
        text = file.read(self._block_bytes)
        if not text.strip():
            raise self._bad("the file is empty")
        if text.lstrip().startswith(b"["):
            return text.lstrip()[1:], b"["
        while (found := _ARRAY.search(text)) is None:
            block = file.read(self._block_bytes)
            if not block or len(text) > _LARGEST_EVENT_BYTES or not text.lstrip().startswith(b"{"):
                raise self._bad("no traceEvents in it: not a trace")
            text += block
        self._keep(text[:found.end()] + b"]}")
        return text[found.end():], b'{"traceEvents":['

    def _keep(self, text: bytes) -> list[Event]:
        """Decode a document and remember the metadata it has; its events are returned."""
        try:
            found = msgspec.json.decode(_NOT_JSON.sub(b":null", text), type=Document)
        except msgspec.DecodeError as error:
            raise self._bad(f"truncated or damaged JSON: {error}") from error
        for name in ("distributed", "devices", "base_ns", "host_name"):
            value = getattr(found, name)
            if value is not None:
                setattr(self.document, name, value)
        return found.events

    def _cut(self, text: bytes) -> tuple[list[Event], bytes]:
        """As many whole events as can be cut off the front, and the text that remains."""
        cuts = [found.start() + 1 for found in _CUT.finditer(text)]
        for cut in cuts[:-_CUTS_TRIED - 1:-1]:
            piece = b"[" + text[:cut] + b"]"
            if b"NaN" in piece or b"nan" in piece or b"inf" in piece or b"Infinity" in piece:
                piece = _NOT_JSON.sub(b":null", piece)
            try:
                events = msgspec.json.decode(piece, type=list[Event])
            except msgspec.DecodeError:
                continue
            return events, text[cut:].lstrip().removeprefix(b",")
        return [], text

    def _tail(self, opening: bytes, rest: bytes) -> list[Event]:
        if opening == b"[":
            return self._keep(b'{"traceEvents":[' + rest + b"}")
        return self._keep(opening + rest)
