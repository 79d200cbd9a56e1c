"""NCCL's own NVTX ranges: what each call says (operation, communicator, bytes), and which kernel it launched.

NCCL registers ranges since 2.8.3, their message size since 2.16, the communicator's hash since 2.25.1. The payload's
32-byte header is domain, schema id, size and offset of the fields, each a little-endian u64; fields lie where
NVTX_PAYLOAD_SCHEMA_ENTRIES says (a NULL offset means 0). nsys exports them only with --include-blobs or --include-json.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regress.trace.names import operation

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]

NCCL_RANGE = re.compile(r"nccl[A-Z]\w*$")
_CALLS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Bcast", "Reduce", "Send", "Recv", "AllToAll",
          "AlltoAll", "Gather", "Scatter")
_HEADER_BYTES = 32
_COMMUNICATOR, _SIZE, _RANKS, _RANK = "NCCL communicator ID", "Message size [bytes]", "No. of ranks", "Rank"


@dataclass(frozen=True, slots=True)
class Payload:
    """What one range's payload says; None for what it does not hold."""

    communicator: int | None = None
    size_bytes: int | None = None
    ranks: int | None = None
    rank: int | None = None


Offsets = Mapping[int, Mapping[str, int]]
"""Schema id to field name to the field's offset in bytes."""


def decode_payload(blob: object, text: object, offsets: Offsets) -> Payload:
    """A range's payload from its blob, else from its JSON text; an empty Payload where neither was exported.

    JSON is decoded here and not by SQLite, whose json_extract turns a 64-bit hash into a float.
    """
    if isinstance(blob, bytes) and len(blob) > _HEADER_BYTES:
        schema, = struct.unpack_from("<Q", blob, 8)
        begin, = struct.unpack_from("<Q", blob, 24)
        fields = offsets.get(schema, {})

        def read(name: str, code: str) -> int | None:
            at = begin + fields[name] if name in fields else len(blob)
            return int(struct.unpack_from(code, blob, at)[0]) if at + struct.calcsize(code) <= len(blob) else None

        return Payload(read(_COMMUNICATOR, "<Q"), read(_SIZE, "<Q"), read(_RANKS, "<i"), read(_RANK, "<i"))
    if isinstance(text, str) and text.startswith("{"):
        found = json.loads(text)
        values = [found.get(name) for name in (_COMMUNICATOR, _SIZE, _RANKS, _RANK)]
        return Payload(*(int(v) if isinstance(v, (int, str)) and str(v).isdigit() else None for v in values))
    return Payload()


@dataclass(slots=True)
class NcclRanges:
    """NCCL ranges as they are collected: parallel lists, one entry a range."""

    thread: list[int]
    start: list[int]
    end: list[int]
    name: list[str]
    payload: list[Payload]

    @classmethod
    def empty(cls) -> NcclRanges:
        """No ranges yet."""
        return cls([], [], [], [], [])

    def add(self, thread: int, start: int, end: int, name: str, payload: Payload) -> None:
        """Append one range; thread is any number unique to its process and thread."""
        self.thread.append(thread)
        self.start.append(start)
        self.end.append(end)
        self.name.append(name)
        self.payload.append(payload)


@dataclass(frozen=True, slots=True, eq=False)
class Linked:
    """Per kernel: what NCCL's range says. communicator 0, size -1 and operation 0 where no range was found.

    operation: index into `names.OPERATIONS`; a group of several operations keeps 0.
    """

    communicator: NDArray[np.uint64]
    size_bytes: Int64
    grouped: Int32
    operation: Int32


@dataclass(frozen=True, slots=True)
class _Target:
    """A range that can hold a launch, with the operations a launch inside it runs."""

    operations: tuple[int, ...]


def _targets(ranges: NcclRanges, order: Int64) -> tuple[list[int], list[_Target]]:
    """Ranges of one thread, by start, that can hold a launch: calls outside groups, and the end of each group."""
    rows: list[int] = []
    targets: list[_Target] = []
    depth = 0
    group: list[int] = []
    for row in order.tolist():
        name = ranges.name[row]
        if name == "ncclGroupStart":
            group = [] if depth == 0 else group
            depth += 1
        elif name == "ncclGroupEnd":
            depth = max(depth - 1, 0)
            if depth == 0:
                rows.append(row)
                targets.append(_Target(tuple(group)))
                group = []
        elif name[4:] in _CALLS:
            if depth:
                group.append(row)
            else:
                rows.append(row)
                targets.append(_Target((row,)))
    return rows, targets


def link(ranges: NcclRanges, launch_thread: Int64, launch_start: Int64) -> Linked:
    """What NCCL's ranges say of each kernel, found by the launch call that lies inside a range of its thread.

    A group's launch lies in its ncclGroupEnd, which has no payload: the operations since ncclGroupStart are the
    kernel's. Several kernels of one group share its operations in order when there are as many, else none has a size.
    """
    count = len(launch_start)
    out = Linked(np.zeros(count, np.uint64), np.full(count, -1, np.int64), np.ones(count, np.int32),
                 np.zeros(count, np.int32))
    threads, starts = np.array(ranges.thread, np.int64), np.array(ranges.start, np.int64)
    ends = np.array(ranges.end, np.int64)
    for thread in np.unique(threads).tolist():
        mine = np.flatnonzero(threads == thread)
        mine = mine[np.argsort(starts[mine], kind="stable")]
        rows, targets = _targets(ranges, mine)
        kernels = np.flatnonzero(launch_thread == thread)
        if not rows or len(kernels) == 0:
            continue
        kernels = kernels[np.argsort(launch_start[kernels], kind="stable")]
        at = np.searchsorted(starts[rows], launch_start[kernels], side="right") - 1
        inside = (at >= 0) & (launch_start[kernels] <= ends[np.array(rows)[np.maximum(at, 0)]])
        _fill(ranges, out, kernels[inside], at[inside], targets)
    return out


def _fill(ranges: NcclRanges, out: Linked, kernels: Int64, at: Int64, targets: list[_Target]) -> None:
    """Write the payloads of the targets onto their kernels; both in order of launching."""
    shared = np.bincount(at, minlength=len(targets))
    nth: dict[int, int] = {}
    for kernel, index in zip(kernels.tolist(), at.tolist(), strict=True):
        operations = targets[index].operations
        if not operations:
            continue
        split = shared[index] > 1
        exact = not split or shared[index] == len(operations)
        if split and exact:
            nth[index] = nth.get(index, -1) + 1
            operations = (operations[nth[index]],)
        payloads = [ranges.payload[row] for row in operations]
        communicators = {p.communicator for p in payloads}
        sizes = [p.size_bytes for p in payloads if p.size_bytes is not None]
        if len(communicators) == 1:
            out.communicator[kernel] = communicators.pop() or 0
        if exact and len(sizes) == len(payloads):
            out.size_bytes[kernel] = sum(sizes)
        out.grouped[kernel] = len(operations)
        out.operation[kernel] = operation(ranges.name[operations[0]]) if len(operations) == 1 else 0
