"""The k-th collective of each communicator, matched across ranks.

A NCCL kernel spins while it waits for a late rank, so one rank's duration says little: the shortest rank's duration is
the transfer, and who started last is who the others waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from regress.trace.lane import Lane
from regress.trace.names import OPERATIONS

Int64 = NDArray[np.int64]

_POINT_TO_POINT = frozenset(OPERATIONS.index(name) for name in ("SendRecv", "Send", "Recv"))
_CLOCK_TOLERANCE_NS = 20_000
"""Ends of one collective agree within 10 µs on one machine (7 µs on 8 V100, 9 µs on 2 H200): beyond, clocks differ."""


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """Collectives of one communicator. start and end: one row a collective, one column a rank, in ns.

    ranks: rank of each column. size_bytes: as NCCL counts it per call, -1 where unknown. in_steps: launched inside a
    step on every rank. channels: thread blocks of its kernels, the fewest over ranks, 0 where unknown.
    """

    communicator: int
    ranks: tuple[int, ...]
    operation: NDArray[np.int32]
    size_bytes: Int64
    channels: NDArray[np.int32]
    in_steps: NDArray[np.bool_]
    start: Int64
    end: Int64

    @property
    def transfer_ns(self) -> Int64:
        """The shortest rank's duration: it came last and waited for nobody."""
        shortest: Int64 = (self.end - self.start).min(axis=1)
        return shortest

    @property
    def slowest_ns(self) -> Int64:
        """The longest rank's duration, waiting included."""
        longest: Int64 = (self.end - self.start).max(axis=1)
        return longest

    @property
    def skew_ns(self) -> Int64:
        """Last start minus first start."""
        skew: Int64 = self.start.max(axis=1) - self.start.min(axis=1)
        return skew

    @property
    def span_ns(self) -> Int64:
        """Last end minus first start."""
        span: Int64 = self.end.max(axis=1) - self.start.min(axis=1)
        return span

    @property
    def end_skew_ns(self) -> Int64:
        """Last end minus first end: near zero when clocks agree and ranks run at the same time."""
        skew: Int64 = self.end.max(axis=1) - self.end.min(axis=1)
        return skew

    @property
    def last(self) -> Int64:
        """Column of the rank that started last."""
        column: Int64 = self.start.argmax(axis=1)
        return column


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """All matched collectives of a run, and what stood in the way.

    shifts_ns: for each lane, what was added to its own times to put them on the clock of `groups`.
    """

    groups: tuple[Matched, ...] = ()
    warnings: tuple[str, ...] = ()
    clock_offsets_ns: tuple[int, ...] = ()
    shifts_ns: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Matched collectives over all communicators."""
        return sum(len(group.operation) for group in self.groups)

    def column(self, name: str) -> Int64:
        """One property of `Matched` over all collectives, communicator after communicator."""
        parts = [getattr(group, name) for group in self.groups]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


def match(lanes: Sequence[Lane]) -> Matching:
    """Match the collectives of lanes that already have their ranks; nothing is matched for a single lane.

    By communicator and order where every lane's trace names communicators, else by order alone (then a warning says so
    where the order of operations differs).
    """
    if len(lanes) < 2:
        return Matching()
    known = all(bool((lane.collectives.communicator != 0).all()) for lane in lanes)
    members: dict[int, list[tuple[Lane, Int64]]] = {}
    for lane in lanes:
        names = lane.collectives.communicator
        for communicator in np.unique(names).tolist() if known else [0]:
            rows = np.flatnonzero(names == communicator) if known else np.arange(len(lane.collectives))
            if len(rows):
                members.setdefault(int(communicator), []).append((lane, rows))
    groups, warnings = [], []
    for communicator, sides in sorted(members.items()):
        if len(sides) > 1:
            group, said = _align(communicator, sides)
            warnings += said
            groups += [group] if len(group.operation) else []
    groups, offsets = _one_clock(groups, lanes)
    apart = any(abs(offset) > _CLOCK_TOLERANCE_NS for offset in offsets)
    if apart:
        worst = max(range(len(offsets)), key=lambda i: abs(offsets[i]))
        warnings.append(f"clocks differ: rank {lanes[worst].rank} is off by {offsets[worst] / 1e3:.0f} µs, judged by "
                        "when collectives end; skew and span are taken after removing each rank's offset")
    shifts = tuple(lane.offset_ns - (offset if apart else 0) for lane, offset in zip(lanes, offsets, strict=True))
    return Matching(tuple(groups), tuple(warnings), tuple(offsets), shifts)


def _align(communicator: int, sides: list[tuple[Lane, Int64]]) -> tuple[Matched, list[str]]:
    """The common collectives of one communicator, k-th with k-th, without those whose operation or size disagrees."""
    warnings = []
    counts = {lane.rank: len(rows) for lane, rows in sides}
    common = min(counts.values())
    if len(set(counts.values())) > 1:
        few, many = min(counts, key=lambda r: counts[r]), max(counts, key=lambda r: counts[r])
        warnings.append(f"rank {few} shows {counts[few]} collectives where rank {many} shows {counts[many]}: "
                        "matched in order up to the shorter count")
    operation = np.stack([lane.collectives.operation[rows[:common]] for lane, rows in sides])
    size = np.stack([lane.collectives.size_bytes[rows[:common]] for lane, rows in sides])
    pairs = np.isin(operation[0], list(_POINT_TO_POINT))
    agree = (operation == operation[0]).all(axis=0) & ((size == size[0]).all(axis=0) | pairs)
    if not agree.all():
        warnings.append(f"{int((~agree).sum())} of {common} collectives differ in operation or size between ranks and "
                        "were left out")
    keep = np.flatnonzero(agree)
    start = np.stack([lane.collectives.start[rows[keep]] + lane.offset_ns for lane, rows in sides], axis=1)
    end = np.stack([lane.collectives.end[rows[keep]] + lane.offset_ns for lane, rows in sides], axis=1)
    inside = np.logical_and.reduce([lane.collectives.in_steps[rows[keep]] for lane, rows in sides], axis=0)
    channels = np.stack([lane.collectives.channels[rows[keep]] for lane, rows in sides]).min(axis=0)
    ranks = tuple(lane.rank if lane.rank is not None else -1 for lane, _ in sides)
    return Matched(communicator, ranks, operation[0][keep], size[0][keep], channels, inside, start,
                   end), warnings


def _one_clock(groups: list[Matched], lanes: Sequence[Lane]) -> tuple[list[Matched], list[int]]:
    """Groups with each rank's clock offset removed, and the offsets by lane; untouched where lanes share a clock.

    All ranks leave a collective together, so a rank's offset is the median of its end against the ranks' median end.
    """
    if len({lane.clock for lane in lanes}) < 2 or not groups:
        return groups, [0] * len(lanes)
    late: dict[int, list[Int64]] = {}
    for group in groups:
        middle = np.median(group.end, axis=1).astype(np.int64)
        for column, rank in enumerate(group.ranks):
            late.setdefault(rank, []).append(group.end[:, column] - middle)
    offset = {rank: int(np.median(np.concatenate(parts))) for rank, parts in late.items()}
    offsets = [offset.get(lane.rank if lane.rank is not None else -1, 0) for lane in lanes]
    if max(map(abs, offsets)) <= _CLOCK_TOLERANCE_NS:
        return groups, offsets
    moved = []
    for group in groups:
        shift = np.array([offset[rank] for rank in group.ranks], np.int64)
        moved.append(replace(group, start=group.start - shift, end=group.end - shift))
    return moved, offsets
