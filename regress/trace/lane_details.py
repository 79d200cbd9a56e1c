"""Smaller facts of a lane: what its compute kernels cost by name, and communication that keeps odd company."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regress.trace.intervals import Intervals, covers, holds, intersection, union
from regress.trace.lane import HostCollectives, KernelTotal
from regress.trace.timeline import Timeline

Int64 = NDArray[np.int64]


def serial_count(stream: NDArray[np.int32], is_comm: NDArray[np.bool_]) -> int:
    """How many communication kernels run on a stream that other kernels run on too, and so never beside those."""
    return int(np.count_nonzero(np.isin(stream[is_comm], np.unique(stream[~is_comm]))))


def computed_totals(timeline: Timeline, rows: Int64, spans: Intervals) -> tuple[KernelTotal, ...]:
    """Kernels (rows without communication) that began inside the window's spans, by name, dearest first."""
    kernels = timeline.kernels
    rows = rows[holds(spans, kernels.start[rows])]
    if not len(rows):
        return ()
    names = kernels.name[rows]
    counts = np.bincount(names)
    took = np.bincount(names, weights=(kernels.end[rows] - kernels.start[rows]).astype(np.float64))
    found = [KernelTotal(timeline.names[code], int(counts[code]), int(took[code]))
             for code in np.flatnonzero(counts).tolist()]
    return tuple(sorted(found, key=lambda total: (-total.total_ns, total.name)))


def host_collectives(timeline: Timeline, process: int, host: Intervals,
                     limits: Intervals | None) -> HostCollectives | None:
    """Collectives of a CPU backend that this process made inside its steps; None where it made none at all.

    Only those that the backend itself names: the ranges that our own workloads set are around collectives of any.
    """
    comm = timeline.host_comm
    if not comm.by_backend:
        return None
    mine = comm.process == process
    if limits is not None:
        mine &= covers(limits, comm.start)
    if not mine.any():
        return None
    inside = mine & covers(host, comm.start)
    took = intersection(union(comm.start[inside], comm.end[inside]), host).total
    return HostCollectives(int(np.count_nonzero(inside)), took)
