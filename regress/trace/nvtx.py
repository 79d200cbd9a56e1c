"""The NVTX rows of an nsys export that mean something here: steps, NCCL's calls and our rank marks.

Event types: 59 push/pop range, 60 start/end range, 34 mark. Text is inline (`text`) or registered (`textId`).
Domain ids are per process and may lack their creation row, so NCCL's ranges are known by their text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regress.trace.codes import Codes
from regress.trace.export_db import ExportDb
from regress.trace.host_ranges import RANK_MARK, host_collective, is_step, kept_by
from regress.trace.nccl_ranges import NCCL_RANGE, NcclRanges, join, range_code
from regress.trace.payload import Offsets, decode_payloads
from regress.trace.timeline import HostComm, ReadOptions, Steps

Int64 = NDArray[np.int64]
_RANGES = (59, 60)
_Row = tuple[Any, ...]
"""start, end, eventType, globalTid, text, textId, binaryData, jsonText, jsonTextId, as SQLite gives them."""
_THREAD_BITS = 0xFFFFFF


@dataclass(frozen=True, slots=True, eq=False)
class NvtxFound:
    """marks: process key to (rank, world size). init_ranks: to (rank, ranks, communicator) of the largest communicator
    that the process made. clipped: ranges that never ended in the trace."""

    steps: Steps
    host_comm: HostComm
    nccl: NcclRanges
    marks: dict[int, tuple[int, int]] = field(default_factory=dict)
    init_ranks: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    named: dict[str, Steps] = field(default_factory=dict)
    clipped: int = 0


def _wanted(text: str, options: ReadOptions) -> bool:
    return (is_step(text, options) or kept_by(text, options) or host_collective(text) is not None
            or any(known.fullmatch(text) for known in (NCCL_RANGE, RANK_MARK)))


def _offsets(db: ExportDb) -> Offsets:
    found: dict[int, dict[str, int]] = {}
    for table in db.tables("NVTX_PAYLOAD_SCHEMA_ENTRIES"):
        for schema, name, offset in db.rows(f'SELECT schemaId, name, IFNULL("offset", 0) FROM "{table}"'):
            if isinstance(schema, int) and isinstance(offset, int) and offset >= 0:
                found.setdefault(schema, {})[str(name)] = offset
    return found


def _query(db: ExportDb, table: str, registered: list[int], options: ReadOptions) -> tuple[str, list[object]]:
    """SQL for the rows that can matter, with columns that an old export lacks read as NULL."""
    present = db.columns(table)
    fields = [name if name in present else "NULL" for name in ("textId", "binaryData", "jsonText", "jsonTextId")]
    usable = "textId" in present and bool(registered)
    choices = f"textId IN ({', '.join(map(str, registered))}) OR " if usable else ""
    return (f'SELECT start, "end", eventType, globalTid, text, {", ".join(fields)} FROM "{table}" WHERE {choices}'
            f"text IN ({', '.join('?' * (len(options.keep) + 1))}) OR text GLOB 'nccl[A-Z]*' "
            "OR text GLOB 'comm_regress.rank=*' OR text GLOB 'ProfilerStep#*' OR text GLOB 'case:*' "
            "OR text GLOB '[a-z]*/[0-9]*'", [options.step_range, *options.keep])


def read_nvtx(db: ExportDb, processes: Codes, options: ReadOptions, ids: Int64, texts: list[str]) -> NvtxFound:
    """Steps, NCCL ranges and identities; empty where NVTX was not traced."""
    by_id = {int(i): t for i, t in zip(ids, texts, strict=True) if _wanted(t, options)}
    json_by_id = {int(i): t for i, t in zip(ids, texts, strict=True) if t.startswith("{")}
    found: dict[str, list[tuple[int, int, int]]] = {}
    marks: dict[int, tuple[int, int]] = {}
    parts: list[NcclRanges] = []
    offsets, clipped = _offsets(db), 0
    for table in db.tables("NVTX_EVENTS"):
        for batch in db.batches(*_query(db, table, list(by_id), options)):
            nccl: list[tuple[_Row, str]] = []
            for row in batch:
                start, end, kind, thread, inline, text_id = row[:6]
                text = inline if inline is not None else by_id.get(text_id, "")
                if not (isinstance(text, str) and isinstance(start, int) and isinstance(thread, int)
                        and isinstance(end, int | None)):
                    raise db.odd_value(table)
                if text.startswith("nccl") and end is not None and kind in _RANGES:
                    nccl.append((row, text))
                    if text not in options.keep:
                        continue
                mark = RANK_MARK.fullmatch(text)
                if mark:
                    marks[thread & ~_THREAD_BITS] = int(mark.group(1)), int(mark.group(2))
                elif kind not in _RANGES:
                    continue
                elif end is None:
                    clipped += _wanted(text, options)
                else:
                    found.setdefault(text, []).append((start, end, thread & ~_THREAD_BITS))
            parts.append(_nccl_ranges(nccl, json_by_id, offsets))
    ranges = join(parts)
    named = {text: _steps(spans, processes) for text, spans in found.items() if kept_by(text, options)}
    steps = [span for text, spans in found.items() if is_step(text, options) for span in spans]
    return NvtxFound(_steps(steps, processes), _host_comm(found, processes), ranges, marks, _ranks_named(ranges), named,
                     clipped)


def _nccl_ranges(found: list[tuple[_Row, str]], json_by_id: dict[int, str], offsets: Offsets) -> NcclRanges:
    """NCCL's ranges as columns, with their payloads decoded."""
    code = {text: range_code(text) for text in {text for _, text in found}}
    payload = decode_payloads([row[6] for row, _ in found], [
        row[7] or json_by_id.get(row[8]) if row[8] is not None or row[7] else None for row, _ in found], offsets)
    return NcclRanges(thread=np.array([row[3] for row, _ in found], np.int64),
                      start=np.array([row[0] for row, _ in found], np.int64),
                      end=np.array([row[1] for row, _ in found], np.int64),
                      codes=np.array([code[text] for _, text in found], np.int32), payload=payload)


def _ranks_named(ranges: NcclRanges) -> dict[int, tuple[int, int, int]]:
    """Process key to (rank, ranks, communicator) of the largest communicator a process makes in the capture.

    That is the world, or a group of ranks where the world's was made before: `identity` tells them apart.
    """
    found: dict[int, tuple[int, int, int]] = {}
    for row in np.flatnonzero(ranges.payload.ranks > 0).tolist():
        process = int(ranges.thread[row]) & ~_THREAD_BITS
        rank, ranks = int(ranges.payload.rank[row]), int(ranges.payload.ranks[row])
        if rank >= 0 and ranks > found.get(process, (0, 0, 0))[1]:
            found[process] = rank, ranks, int(ranges.payload.communicator[row])
    return found


def _steps(rows: list[tuple[int, int, int]], processes: Codes) -> Steps:
    columns = np.array(rows, np.int64).reshape(-1, 3)
    return Steps(columns[:, 0].copy(), columns[:, 1].copy(), processes.encode(columns[:, 2]))


def _host_comm(found: dict[str, list[tuple[int, int, int]]], processes: Codes) -> HostComm:
    """The ranges our workloads set around collectives: all that a CPU backend leaves in such a trace."""
    rows = sorted((*span, *known) for text, spans in found.items() if (known := host_collective(text))
                  for span in spans)
    columns = np.array(rows, np.int64).reshape(-1, 5)
    return HostComm(columns[:, 0].copy(), columns[:, 1].copy(), processes.encode(columns[:, 2]),
                    columns[:, 3].astype(np.int32), columns[:, 4].copy())
