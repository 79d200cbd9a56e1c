"""The payload NCCL attaches to its NVTX ranges, as nsys exports it.

A blob is a 32-byte header (domain, schema id, size, offset of the fields, each a little-endian u64) and the fields,
which lie where NVTX_PAYLOAD_SCHEMA_ENTRIES says; a NULL offset there means 0. nsys exports blobs only with
--include-blobs and JSON only with --include-json. JSON is decoded here and not by SQLite, whose json_extract makes a
64-bit hash a float.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

HEADER_BYTES = 32
_COMMUNICATOR, _SIZE, _RANKS, _RANK = "NCCL communicator ID", "Message size [bytes]", "No. of ranks", "Rank"

_NUMBER = re.compile(r"[0-9]{1,20}")

Offsets = Mapping[int, Mapping[str, int]]
"""Schema id to field name to the field's offset in bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Payloads:
    """One row a range; communicator 0 and -1 in the others where the payload does not say it or was not exported."""

    communicator: NDArray[np.uint64]
    size_bytes: Int64
    ranks: Int64
    rank: Int64


def decode_payloads(blobs: Sequence[object], texts: Sequence[object], offsets: Offsets) -> Payloads:
    """The payload of each range from its blob, else from its JSON text.

    Blobs of one length are decoded together: a trace has a million of them and some three lengths.
    """
    count = len(blobs)
    out = Payloads(np.zeros(count, np.uint64), np.full(count, -1, np.int64), np.full(count, -1, np.int64),
                   np.full(count, -1, np.int64))
    lengths = np.array([len(b) if isinstance(b, bytes) else 0 for b in blobs], np.int64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        if length > HEADER_BYTES:
            parts = [blob for blob in (blobs[row] for row in rows.tolist()) if isinstance(blob, bytes)]
            _from_blobs(out, rows, np.frombuffer(b"".join(parts), np.uint8).reshape(-1, length), offsets)
    for row in np.flatnonzero(lengths <= HEADER_BYTES).tolist():
        text = texts[row]
        if isinstance(text, str) and text.startswith("{"):
            try:
                found = json.loads(text)
            except (ValueError, RecursionError):
                continue  # a range whose payload cannot be read is one without
            _from_json(out, row, found)
    return out


def _from_blobs(out: Payloads, rows: Int64, table: NDArray[np.uint8], offsets: Offsets) -> None:
    """Fields of blobs of one length: `table` has one blob a row."""
    header = table[:, :HEADER_BYTES].copy().view("<u8")
    # Schema and offset repeat all the time: each pair is read from all its rows at once.
    for schema, begin in np.unique(header[:, (1, 3)], axis=0).tolist():
        mine = np.flatnonzero((header[:, 1] == schema) & (header[:, 3] == begin))
        for name, kind, column in ((_COMMUNICATOR, "<u8", out.communicator), (_SIZE, "<i8", out.size_bytes),
                                   (_RANKS, "<i4", out.ranks), (_RANK, "<i4", out.rank)):
            at = begin + offsets.get(schema, {}).get(name, table.shape[1])
            width = np.dtype(kind).itemsize
            if at + width <= table.shape[1]:
                column[rows[mine]] = table[mine, at:at + width].copy().view(kind)[:, 0]


def _from_json(out: Payloads, row: int, found: Mapping[str, object]) -> None:
    for name, column in ((_COMMUNICATOR, out.communicator), (_SIZE, out.size_bytes), (_RANKS, out.ranks),
                         (_RANK, out.rank)):
        value = found.get(name)
        # ASCII digits alone: int() takes no "²", and no more of them than the largest number has.
        if isinstance(value, (int, str)) and _NUMBER.fullmatch(str(value)) and int(value) <= np.iinfo(column.dtype).max:
            column[row] = int(value)
