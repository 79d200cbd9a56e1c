"""NCCL's own NVTX ranges: what each call says (operation, communicator, bytes), and which kernel it launched.

NCCL registers ranges since 2.8.3, their message size since 2.16, the communicator's hash since 2.25.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regress.trace.names import operation
from regress.trace.payload import Payloads

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]

NCCL_RANGE = re.compile(r"nccl[A-Z]\w*$")
_CALLS = frozenset(("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Bcast", "Reduce", "Send", "Recv",
                    "AllToAll", "AlltoAll", "Gather", "Scatter"))
_SEND, _RECEIVE, _ALL_TO_ALL = operation("Send"), operation("Recv"), operation("AllToAll")
_GROUP_START, _GROUP_END, _NO_CALL = -1, -2, -3


@dataclass(frozen=True, slots=True, eq=False)
class NcclRanges:
    """One row an NCCL range. thread: any number unique to its process and thread. codes: from `range_code`."""

    thread: Int64
    start: Int64
    end: Int64
    codes: Int32
    payload: Payloads


def join(parts: Sequence[NcclRanges]) -> NcclRanges:
    """Ranges that were read in parts as one; no ranges where there is no part."""
    def column(name: str, dtype: type[np.generic], of: str = "") -> NDArray[Any]:
        found = [getattr(getattr(part, of) if of else part, name) for part in parts]
        return np.concatenate(found) if found else np.empty(0, dtype)

    payload = Payloads(column("communicator", np.uint64, "payload"), column("size_bytes", np.int64, "payload"),
                       column("ranks", np.int64, "payload"), column("rank", np.int64, "payload"))
    return NcclRanges(column("thread", np.int64), column("start", np.int64), column("end", np.int64),
                      column("codes", np.int32), payload)


@dataclass(frozen=True, slots=True, eq=False)
class Linked:
    """Per kernel: what NCCL's range says. communicator 0, size -1 and operation 0 where no range was found.

    operation: index into `names.OPERATIONS`; a group of several operations keeps 0, but all-to-alls alone, whose kernel
    is called SendRecv and whose size is that of a part, are one.
    """

    communicator: NDArray[np.uint64]
    size_bytes: Int64
    grouped: Int32
    operation: Int32


def range_code(name: str) -> int:
    """What a range is to a launch: an operation (index into `names.OPERATIONS`), or one of three negative codes."""
    if name == "ncclGroupStart":
        return _GROUP_START
    if name == "ncclGroupEnd":
        return _GROUP_END
    return operation(name) if name[4:] in _CALLS else _NO_CALL


@dataclass(frozen=True, slots=True, eq=False)
class _Targets:
    """Ranges of one thread that can hold a launch, by start; all arrays are rows of the ranges.

    low, high: the operations of target i are `members[low[i]:high[i]]`; a call outside groups is its own only member.
    """

    row: Int64
    low: Int64
    high: Int64
    members: Int64


def _targets(code: Int32, order: Int64) -> _Targets:
    """Calls outside groups, and the end of each outermost group with the calls inside the group."""
    codes = code[order]
    level = np.cumsum((codes == _GROUP_START).astype(np.int64) - (codes == _GROUP_END))
    # An end without its start (the capture began inside a group) must not count against what follows.
    depth = level - np.minimum(np.minimum.accumulate(level), 0)
    group = np.cumsum((codes == _GROUP_START) & (depth == 1))
    single, inside = (codes >= 0) & (depth == 0), (codes >= 0) & (depth > 0)
    closing = (codes == _GROUP_END) & (depth == 0)
    at = np.flatnonzero(single | closing)
    grouped = np.flatnonzero(inside)
    low = np.searchsorted(group[grouped], group[at], side="left")
    high = np.searchsorted(group[grouped], group[at], side="right")
    # Singles follow the grouped calls in `members`, one each.
    own = single[at]
    low[own] = high[own] = len(grouped) + np.arange(np.count_nonzero(own))
    high[own] += 1
    return _Targets(order[at], low, high, order[np.concatenate((grouped, at[own]))])


def link(ranges: NcclRanges, launch_thread: Int64, launch_start: Int64) -> Linked:
    """What NCCL's ranges say of each kernel, found by the launch call that lies inside a range of its thread.

    A group's launch lies in its ncclGroupEnd, which has no payload: the operations since ncclGroupStart are the
    kernel's. Several kernels of one group share its operations in order when there are as many, else none has a size.
    """
    count = len(launch_start)
    out = Linked(np.zeros(count, np.uint64), np.full(count, -1, np.int64), np.ones(count, np.int32),
                 np.zeros(count, np.int32))
    for thread in np.unique(ranges.thread).tolist():
        mine = np.flatnonzero(ranges.thread == thread)
        targets = _targets(ranges.codes, mine[np.argsort(ranges.start[mine], kind="stable")])
        kernels = np.flatnonzero(launch_thread == thread)
        if len(targets.row) == 0 or len(kernels) == 0:
            continue
        kernels = kernels[np.argsort(launch_start[kernels], kind="stable")]
        at = np.searchsorted(ranges.start[targets.row], launch_start[kernels], side="right") - 1
        held = (at >= 0) & (launch_start[kernels] <= ranges.end[targets.row[np.maximum(at, 0)]])
        _fill(ranges, out, targets, kernels[held], at[held])
    return out


def _fill(ranges: NcclRanges, out: Linked, targets: _Targets, kernels: Int64, at: Int64) -> None:
    """Write what the targets say onto their kernels; both in order of launching."""
    payload, code = ranges.payload, ranges.codes
    shared = np.bincount(at, minlength=len(targets.row))[at]
    members = (targets.high - targets.low)[at]
    plain = (shared == 1) & (members == 1)
    rows = targets.members[targets.low[at[plain]]]
    out.communicator[kernels[plain]] = payload.communicator[rows]
    out.size_bytes[kernels[plain]] = payload.size_bytes[rows]
    out.operation[kernels[plain]] = code[rows]
    nth: dict[int, int] = {}
    for kernel, index in zip(kernels[~plain].tolist(), at[~plain].tolist(), strict=True):
        rows = targets.members[targets.low[index]:targets.high[index]]
        share = int(np.count_nonzero(at == index)) if index not in nth else 0
        if share == len(rows) or index in nth:
            nth[index] = nth.get(index, -1) + 1
            rows = rows[nth[index]:nth[index] + 1]
        if len(rows) == 0:
            continue
        exact = index in nth or share <= 1
        communicators = np.unique(payload.communicator[rows])
        if len(communicators) == 1:
            out.communicator[kernel] = communicators[0]
        if exact and (payload.size_bytes[rows] >= 0).all():
            out.size_bytes[kernel] = _group_bytes(code[rows], payload.size_bytes[rows])
        out.grouped[kernel] = len(rows)
        alike = len(rows) == 1 or (code[rows] == _ALL_TO_ALL).all()
        out.operation[kernel] = code[rows[0]] if alike else 0


def _group_bytes(code: Int32, size_bytes: Int64) -> int:
    """Bytes of a group: its operations' sum, but sends and receives go on at once and only the fuller direction counts.

    So S of a grouped send and receive is what nccl-tests calls it (sendrecv.cu): the bytes that a rank sends.
    """
    sent, received = (int(size_bytes[code == one].sum()) for one in (_SEND, _RECEIVE))
    return int(size_bytes.sum()) - min(sent, received)
