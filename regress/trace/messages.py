"""Collectives by operation and message size, and who was waited for: views of what was matched across ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regress.trace.analysis import Analysis
from regress.trace.collectives import Matched
from regress.trace.names import OPERATIONS
from regress.trace.timeline import Tracer

_GATHERED = frozenset(("AllGather", "ReduceScatter"))
_ALL_TO_ALL = OPERATIONS.index("AllToAll")


@dataclass(frozen=True, slots=True)
class MessageSize:
    """Collectives of one operation and size, over all communicators of one world size.

    size_bytes: as NCCL counts it per call, but of an all-to-all what a rank sends to all (S of nccl-tests, whichever
    tracer it is from); None where the trace does not hold sizes. Seconds are means. channels: thread blocks of the
    kernels, the fewest seen; None where unknown. busbw_bytes_per_second: from the transfer, as nccl-tests counts it;
    None where size or operation is unknown.
    """

    operation: str
    size_bytes: int | None
    ranks: int
    count: int
    transfer_seconds: float
    slowest_seconds: float
    skew_seconds: float
    channels: int | None
    busbw_bytes_per_second: float | None


@dataclass(frozen=True, slots=True)
class Arrival:
    """How one rank comes to its collectives. last: how often it started last; late_seconds: mean time after the first
    rank; waiting_seconds: mean of its duration beyond the transfer, which it spent waiting."""

    rank: int
    collectives: int
    last: int
    late_seconds: float
    waiting_seconds: float


def bus_factor(operation: str, ranks: int) -> float | None:
    """busbw over algbw (nccl-tests, PERFORMANCE.md); None for operations it does not define."""
    if operation == "AllReduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("AllGather", "ReduceScatter", "AllToAll"):
        return (ranks - 1) / ranks
    return 1.0 if operation in ("Broadcast", "Reduce", "SendRecv", "Send", "Recv") else None


def sizes_of(analysis: Analysis, group: Matched) -> NDArray[np.int64]:
    """Bytes of each collective of a group as `MessageSize` counts them, -1 where unknown.

    The payload of ncclAlltoAll (its NVTX range, NCCL 2.28 on) is what goes to one rank: count times the type's size.
    torch.profiler and ranges around the collectives of a CPU backend say what goes to all.
    """
    size = group.size_bytes
    if analysis.tracer is not Tracer.NSYS or {lane.rank for lane in analysis.device_lanes}.isdisjoint(group.ranks):
        return size
    return np.where((group.operation == _ALL_TO_ALL) & (size > 0), size * len(group.ranks), size)


def message_sizes(analysis: Analysis) -> tuple[MessageSize, ...]:
    """The table of message sizes, biggest share of time first."""
    rows: dict[tuple[int, int, int], list[tuple[Matched, int]]] = {}
    for group in analysis.matching.groups:
        for k, key in enumerate(zip(group.operation.tolist(), sizes_of(analysis, group).tolist(), strict=True)):
            rows.setdefault((*key, len(group.ranks)), []).append((group, k))
    table = [_row(operation, size, ranks, members) for (operation, size, ranks), members in rows.items()]
    return tuple(sorted(table, key=lambda row: -row.count * row.transfer_seconds))


def _row(operation: int, size: int, ranks: int, members: Sequence[tuple[Matched, int]]) -> MessageSize:
    picked: dict[int, tuple[Matched, list[int]]] = {}
    for group, k in members:
        picked.setdefault(id(group), (group, []))[1].append(k)

    def seconds(column: str) -> float:
        return float(np.concatenate([getattr(group, column)[ks] for group, ks in picked.values()]).mean()) / 1e9

    transfer = seconds("transfer_ns")
    channels = min(int(group.channels[ks].min()) for group, ks in picked.values())
    name = OPERATIONS[operation]
    factor = bus_factor(name, ranks)
    gathered = size * ranks if name in _GATHERED else size
    busbw = None if size < 0 or factor is None or transfer <= 0 else gathered * factor / transfer
    return MessageSize(name, None if size < 0 else size, ranks, len(members), transfer, seconds("slowest_ns"),
                       seconds("skew_ns"), channels or None, busbw)


def arrivals(analysis: Analysis) -> tuple[Arrival, ...]:
    """One entry a rank, in order of rank; empty where nothing was matched."""
    late: dict[int, list[float]] = {}
    waiting: dict[int, list[float]] = {}
    last: dict[int, int] = {}
    for group in analysis.matching.groups:
        first = group.start.min(axis=1)
        for column, rank in enumerate(group.ranks):
            late.setdefault(rank, []).extend((group.start[:, column] - first).tolist())
            waited = group.end[:, column] - group.start[:, column] - group.transfer_ns
            waiting.setdefault(rank, []).extend(waited.tolist())
            last[rank] = last.get(rank, 0) + int(np.count_nonzero(group.last == column))
    return tuple(Arrival(rank, len(late[rank]), last[rank], float(np.mean(late[rank])) / 1e9,
                         float(np.mean(waiting[rank])) / 1e9) for rank in sorted(late))
