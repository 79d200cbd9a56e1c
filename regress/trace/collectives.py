"""The k-th collective of each communicator, matched across ranks.

A NCCL kernel spins while it waits for a late rank, so one rank's duration says little: the shortest rank's duration is
the transfer, and who started last is who the others waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regress.trace.alignment import Side, align
from regress.trace.clocks import clock_offsets
from regress.trace.lane import Lane
from regress.trace.subgroups import subgroups

Int64 = NDArray[np.int64]

_CLOCK_TOLERANCE_NS = 20_000
"""Ends of one collective agree within 10 µs on one machine (7 µs on 8 V100, 9 µs on 2 H200): beyond, clocks differ."""


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """Collectives of one communicator. start and end: one row a collective, one column a rank, in ns.

    communicator: 0 where no name was in the trace, negative where its ranks were told by ends. ranks: rank of each
    column. operation: index into `names.OPERATIONS`, Send for a send with its receive. size_bytes: as NCCL counts it
    per call, -1 where unknown. in_steps: launched inside a step on every rank. channels: thread blocks of its kernels,
    the fewest over ranks, 0 where unknown.
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

    By communicator and order where every lane's trace names communicators, else by order alone as far as ends do not
    contradict it (`regress.trace.subgroups`; then a warning says so).
    """
    if len(lanes) < 2:
        return Matching()
    known = all(bool((lane.collectives.communicator != 0).all()) for lane in lanes)
    members: dict[int, list[Side]] = {}
    for lane in lanes:
        names = lane.collectives.communicator
        for communicator in np.unique(names).tolist() if known else [0]:
            rows = np.flatnonzero(names == communicator) if known else np.arange(len(lane.collectives))
            if len(rows):
                members.setdefault(int(communicator), []).append((lane, rows))
    groups, warnings = [], []
    for communicator, sides in sorted(members.items()):
        if len(sides) > 1:
            group, said = _matched(communicator, sides)
            warnings += said
            groups += [group] if len(group.operation) else []
    groups, offsets = _one_clock(groups, lanes)
    if groups and not known:
        groups, said = subgroups(groups[0], [lane for lane, _ in members[0]], _CLOCK_TOLERANCE_NS)
        warnings += said
    apart = any(abs(offset) > _CLOCK_TOLERANCE_NS for offset in offsets)
    if apart:
        worst = max(range(len(offsets)), key=lambda i: abs(offsets[i]))
        warnings.append(f"clocks differ: rank {lanes[worst].rank} is off by {offsets[worst] / 1e3:.0f} µs from rank "
                        f"{lanes[0].rank}, judged by when collectives end; skew and span are taken after removing each "
                        "clock's offset")
    shifts = tuple(lane.offset_ns - (offset if apart else 0) for lane, offset in zip(lanes, offsets, strict=True))
    return Matching(tuple(groups), tuple(warnings), tuple(offsets), shifts)


def _matched(communicator: int, sides: list[Side]) -> tuple[Matched, list[str]]:
    """The collectives that the sides of one communicator have in common, and what was left out."""
    aligned = align(sides)

    def column(name: str) -> NDArray[Any]:
        return np.stack([getattr(lane.collectives, name)[rows] for (lane, _), rows in zip(sides, aligned.rows.T,
                                                                                          strict=True)], axis=1)

    offset = np.array([lane.offset_ns for lane, _ in sides], np.int64)
    ranks = tuple(lane.rank if lane.rank is not None else -1 for lane, _ in sides)
    # OPERATIONS has Send before Recv: the two of one message are a Send.
    return Matched(communicator, ranks, column("operation").min(axis=1), column("size_bytes")[:, 0],
                   column("channels").min(axis=1), np.logical_and.reduce(column("in_steps"), axis=1),
                   column("start") + offset, column("end") + offset), list(aligned.warnings)


def _one_clock(groups: list[Matched], lanes: Sequence[Lane]) -> tuple[list[Matched], list[int]]:
    """Groups with each clock's offset removed, and the offsets by lane; untouched where clocks agree."""
    offsets = clock_offsets(groups, lanes)
    if max(map(abs, offsets)) <= _CLOCK_TOLERANCE_NS:
        return groups, offsets
    of_rank = {lane.rank: offset for lane, offset in zip(lanes, offsets, strict=True)}
    moved = []
    for group in groups:
        shift = np.array([of_rank[rank] for rank in group.ranks], np.int64)
        moved.append(replace(group, start=group.start - shift, end=group.end - shift))
    return moved, offsets
