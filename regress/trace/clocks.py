"""How far the clocks of several machines are apart, judged by when ranks leave the collectives that they share.

Ranks leave a collective together, so what their ends differ by, on the median, is what their clocks differ by. Groups
inside one machine say nothing about another's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regress.trace.alignment import SEND
from regress.trace.lane import Lane

if TYPE_CHECKING:
    from regress.trace.collectives import Matched

Int64 = NDArray[np.int64]


def clock_offsets(groups: Sequence[Matched], lanes: Sequence[Lane]) -> list[int]:
    """For each lane, by how many ns its clock is ahead of the first lane's.

    0 where no chain of shared collectives leads to the first lane's clock: then nothing is compared across the two.
    """
    clocks = list(dict.fromkeys(lane.clock for lane in lanes))
    clock_of = {lane.rank: clocks.index(lane.clock) for lane in lanes}
    apart: dict[int, dict[int, list[Int64]]] = {number: {} for number in range(len(clocks))}
    for group in groups:
        columns = np.array([clock_of[rank] for rank in group.ranks])
        first, *others = dict.fromkeys(columns.tolist())
        # A buffered send is over before its receiver comes: only where there is nothing else does it tell the time.
        steady = group.operation != SEND
        end = group.end[steady] if steady.any() else group.end
        end = end - end[:, :1]  # a double cannot hold nanoseconds since 1970
        base = np.median(end[:, columns == first], axis=1)
        for other in others:
            later = (np.median(end[:, columns == other], axis=1) - base).astype(np.int64)
            apart[first].setdefault(other, []).append(later)
            apart[other].setdefault(first, []).append(-later)
    offset: dict[int, int] = {}
    for start in range(len(clocks)):
        if start in offset:
            continue
        offset[start], reached = 0, [start]
        for near in reached:  # grows while it is walked
            for far, ahead in apart[near].items():
                if far not in offset:
                    offset[far] = offset[near] + int(np.median(np.concatenate(ahead)))
                    reached.append(far)
    return [offset[clocks.index(lane.clock)] for lane in lanes]
