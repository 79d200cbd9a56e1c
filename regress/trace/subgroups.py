"""Which ranks a collective is of, where the trace does not name communicators and order alone put them together.

No rank leaves an all-reduce (or another collective in which each needs something of all) before the last has come: rows
of which one ends before another starts are of different groups. Ranks of one group are never apart in this way, others
sooner or later are. So of the collectives at one place in the step, ranks that are never apart are taken for a group.
On all sample traces of ranks that communicate as one no row is apart, not even on a GPU that is sliced in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regress.trace.lane import Lane
from regress.trace.names import OPERATIONS

if TYPE_CHECKING:
    from regress.trace.collectives import Matched

Int64 = NDArray[np.int64]

_ALL_NEED_ALL = tuple(OPERATIONS.index(name) for name in ("Unknown", "AllReduce", "AllGather", "ReduceScatter",
                                                          "AllToAll", "Barrier"))
_SHOWN = 4


def subgroups(group: Matched, lanes: Sequence[Lane], tolerance_ns: int) -> tuple[list[Matched], list[str]]:
    """The group itself where nothing contradicts it, else one for each set of ranks found, and what is said of it.

    lanes: those of the group's columns. tolerance_ns: by how much clocks may differ. A set of ranks that was found by
    ends has a negative number for its communicator. Rows whose ranks cannot be told are left out.
    """
    judged = np.flatnonzero(np.isin(group.operation, _ALL_NEED_ALL))
    if not _apart(group, judged, tolerance_ns).any():
        return [group], []
    everyone = tuple(range(len(group.ranks)))
    found: dict[tuple[int, ...], list[Int64]] = {}
    for rows, known in _places(group, judged, lanes):
        if not _apart(group, rows, tolerance_ns).any():
            found.setdefault(everyone, []).append(rows)
        elif known:
            for columns in _never_apart(group, rows, tolerance_ns):
                found.setdefault(columns, []).append(rows)
    parts = []
    for number, columns in enumerate(sorted(found)):
        rows = np.sort(np.concatenate(found[columns]))
        parts.append(_part(group, rows, columns, group.communicator if columns == everyone else -1 - number))
    return parts, _said(group, [part for part in parts if len(part.ranks) < len(everyone)],
                        [rows for some in found.values() for rows in some])


def _apart(group: Matched, rows: Int64, tolerance_ns: int) -> NDArray[np.bool_]:
    """For each row, whether a rank leaves before the last has come."""
    early: NDArray[np.bool_] = group.end[rows].min(axis=1) + tolerance_ns < group.start[rows].max(axis=1)
    return early


def _places(group: Matched, judged: Int64, lanes: Sequence[Lane]) -> Iterator[tuple[Int64, bool]]:
    """Rows of one operation and size at one place in the step, and whether that place is known.

    It is where all ranks make as many collectives, and as many in every step: else rows of several groups may mix.
    """
    steps = min(lane.window.steps for lane in lanes)
    inside = np.cumsum(group.in_steps) - 1
    in_steps = int(group.in_steps.sum())
    counts = {int(np.isin(lane.collectives.operation, _ALL_NEED_ALL).sum()) for lane in lanes}
    even = steps > 0 and in_steps >= steps and in_steps % steps == 0 and len(counts) == 1
    place = np.where(group.in_steps, inside % (in_steps // steps), -1) if even else np.full(len(inside), -1)
    keys = np.stack([place, group.operation, group.size_bytes], axis=1)[judged]
    kinds, kind_of = np.unique(keys, axis=0, return_inverse=True)
    for number, kind in enumerate(kinds):
        yield judged[kind_of.reshape(-1) == number], bool(kind[0] >= 0)


def _never_apart(group: Matched, rows: Int64, tolerance_ns: int) -> list[tuple[int, ...]]:
    """Sets of two and more columns that are together in all these rows; none where the sets would overlap."""
    start, end = group.start[rows], group.end[rows] + tolerance_ns
    waits = np.stack([(start <= end[:, [column]]).all(axis=0) for column in range(len(group.ranks))])
    together = waits & waits.T
    sets = np.unique(together, axis=0)
    if (sets.sum(axis=0) > 1).any():
        return []
    return [tuple(np.flatnonzero(members).tolist()) for members in sets if members.sum() > 1]


def _part(group: Matched, rows: Int64, columns: tuple[int, ...], communicator: int) -> Matched:
    return replace(group, communicator=communicator, ranks=tuple(group.ranks[column] for column in columns),
                   operation=group.operation[rows], size_bytes=group.size_bytes[rows], channels=group.channels[rows],
                   in_steps=group.in_steps[rows], start=group.start[rows][:, list(columns)],
                   end=group.end[rows][:, list(columns)])


def _said(group: Matched, smaller: list[Matched], kept: list[Int64]) -> list[str]:
    """What a reader must know: which groups were found, and how much could not be matched."""
    every, warnings = len(group.operation), []
    left = every - len(np.unique(np.concatenate(kept))) if kept else every
    if smaller:
        sets = sorted({part.ranks for part in smaller})
        shown = "; ".join(", ".join(map(str, ranks)) for ranks in sets[:_SHOWN]) + ("; ..." if sets[_SHOWN:] else "")
        warnings.append("the trace does not say which ranks a collective is of: ranks that leave one before others "
                        f"come were taken to be of different groups (ranks {shown})")
    if left:
        warnings.append(f"not matched: {left} of {every} collectives, which are of different groups of ranks, as some "
                        "leave before others come; the trace does not say of which (NCCL names them to nsys from 2.25 "
                        "on), and waiting in them counts as transfer")
    return warnings
