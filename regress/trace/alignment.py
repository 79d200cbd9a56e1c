"""Which rows of several ranks are one collective: the k-th of one rank with the k-th of the others, kind by kind.

Sends and receives are no part of that order: a pipeline's stages make different numbers of them between the same two
collectives. They are put together among themselves, and only where the trace says who is at the other end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regress.trace.lane import Lane
from regress.trace.names import OPERATIONS
from regress.units import counted

Int64 = NDArray[np.int64]
Side = tuple[Lane, Int64]
"""A lane, and the rows of its collectives (in order of start) that belong to one communicator."""

_EXCHANGE, SEND, _RECEIVE = (OPERATIONS.index(name) for name in ("SendRecv", "Send", "Recv"))


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """rows: one row a collective in order of the first side, one column a side, indices into its lane's collectives.

    warnings: what had to be left out, and why.
    """

    rows: Int64
    warnings: tuple[str, ...]


def align(sides: Sequence[Side]) -> Aligned:
    """The common collectives of one communicator, without those whose operation or size disagrees."""
    operation = [lane.collectives.operation[rows] for lane, rows in sides]
    parts, warnings = _collectives(_picked(sides, [~np.isin(of, (_EXCHANGE, SEND, _RECEIVE)) for of in operation]))
    exchanges = _picked(sides, [of == _EXCHANGE for of in operation])
    sends = _picked(sides, [of == SEND for of in operation])
    receives = _picked(sides, [of == _RECEIVE for of in operation])
    matched = [part for part in (_same_count(exchanges), *_directions(sends, receives)) if part is not None]
    every = sum(len(rows) for kind in (exchanges, sends, receives) for _, rows in kind)
    left = every - sum(part.size for part in matched)
    if left:
        unmatched = counted(left, "send or receive", "sends and receives")
        warnings.append(f"not matched: {unmatched} of {len(sides)} ranks, as the trace does not say which belong "
                        "together; waiting in them counts as transfer")
    rows = np.concatenate([parts, *matched])
    return Aligned(rows[np.argsort(rows[:, 0], kind="stable")], tuple(warnings))


def _picked(sides: Sequence[Side], masks: Sequence[NDArray[np.bool_]]) -> list[Side]:
    return [(lane, rows[mask]) for (lane, rows), mask in zip(sides, masks, strict=True)]


def _collectives(sides: Sequence[Side]) -> tuple[Int64, list[str]]:
    """The k-th with the k-th up to the shortest rank's count."""
    warnings = []
    counts = {lane.rank: len(rows) for lane, rows in sides}
    common = min(counts.values())
    if len(set(counts.values())) > 1:
        few, many = min(counts, key=lambda r: counts[r]), max(counts, key=lambda r: counts[r])
        warnings.append(f"rank {few} shows {counts[few]} collectives where rank {many} shows {counts[many]}: "
                        "matched in order up to the shorter count")
    operation = np.stack([lane.collectives.operation[rows[:common]] for lane, rows in sides])
    size = np.stack([lane.collectives.size_bytes[rows[:common]] for lane, rows in sides])
    agree = (operation == operation[0]).all(axis=0) & (size == size[0]).all(axis=0)
    if not agree.all():
        warnings.append(f"{int((~agree).sum())} of {common} collectives differ in operation or size between ranks and "
                        "were left out")
    return np.stack([rows[:common][agree] for _, rows in sides], axis=1), warnings


def _same_count(sides: Sequence[Side]) -> Int64 | None:
    """Grouped sends and receives that every rank makes equally often, as in an all-to-all; sizes may differ."""
    if len({len(rows) for _, rows in sides}) > 1:
        return None
    return np.stack([rows for _, rows in sides], axis=1)


def _directions(sends: Sequence[Side], receives: Sequence[Side]) -> list[Int64]:
    """Between two ranks, the k-th send of one with the k-th receive of the other, each direction on its own.

    A direction whose counts or sizes differ leads, in part, to a rank that is not in the trace: nothing is matched.
    """
    if len(sends) != 2:
        return []
    found = []
    for source, target in ((0, 1), (1, 0)):
        (sender, sent), (receiver, received) = sends[source], receives[target]
        if len(sent) == len(received) and (
                sender.collectives.size_bytes[sent] == receiver.collectives.size_bytes[received]).all():
            pair = (sent, received) if source == 0 else (received, sent)
            found.append(np.stack(pair, axis=1))
    return found
