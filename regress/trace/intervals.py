"""Interval algebra: union, intersection, difference and gaps of half-open intervals in integer nanoseconds.

An `Intervals` value is always canonical: ascending, non-empty, and with a gap between neighbours. Every operation is
vectorised and costs a sort or a binary search per interval; none builds a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A canonical set of half-open intervals [start, end): ascending, non-empty, not touching one another."""

    start: Int64
    end: Int64

    @property
    def total(self) -> int:
        """Covered time in nanoseconds."""
        return int((self.end - self.start).sum())

    def __len__(self) -> int:
        return len(self.start)


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: Int64, end: Int64) -> Intervals:
    """The canonical set that covers what any of the intervals covers; empty and negative ones cover nothing.

    Islands begin where a start lies beyond the running maximum of all earlier ends.
    """
    real = end > start
    if not real.all():
        start, end = start[real], end[real]
    if len(start) == 0:
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    last = np.concatenate((first[1:] - 1, [len(start) - 1]))
    return Intervals(start[first], reach[last])


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """What both sets cover."""
    low = np.searchsorted(b.end, a.start, side="right")
    count = np.searchsorted(b.start, a.end, side="left") - low
    total = int(count.sum())
    if total == 0:
        return EMPTY
    of_a = np.repeat(np.arange(len(a)), count)
    # Position inside each run of b's intervals that meet the same interval of a.
    within = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
    of_b = low[of_a] + within
    return Intervals(np.maximum(a.start[of_a], b.start[of_b]), np.minimum(a.end[of_a], b.end[of_b]))


def gaps(a: Intervals, start: int, end: int) -> Intervals:
    """What `a` leaves uncovered of [start, end)."""
    if end <= start:
        return EMPTY
    inside = clip(a, start, end)
    begins = np.concatenate((np.array([start], np.int64), inside.end))
    ends = np.concatenate((inside.start, np.array([end], np.int64)))
    real = ends > begins
    return Intervals(begins[real], ends[real])


def difference(a: Intervals, b: Intervals) -> Intervals:
    """What `a` covers and `b` does not."""
    if len(a) == 0 or len(b) == 0:
        return a
    return intersection(a, gaps(b, int(a.start[0]), int(a.end[-1])))


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The part of `a` inside [start, end)."""
    low = int(np.searchsorted(a.end, start, side="right"))
    high = int(np.searchsorted(a.start, end, side="left"))
    if high <= low or end <= start:
        return EMPTY
    return Intervals(np.maximum(a.start[low:high], start), np.minimum(a.end[low:high], end))


def covered_before(covered: Intervals, times: Int64) -> Int64:
    """How much of the set lies before each time, in nanoseconds."""
    index = np.searchsorted(covered.start, times, side="right")
    total = np.concatenate((np.zeros(1, np.int64), np.cumsum(covered.end - covered.start)))
    ends = np.concatenate((np.zeros(1, np.int64), covered.end))
    found: Int64 = total[index] - np.where(index > 0, np.maximum(ends[index] - times, 0), 0)
    return found


def covers(a: Intervals, times: Int64) -> NDArray[np.bool_]:
    """For each time whether `a` covers it; an interval's end counts as covered: a call may end with its range."""
    if len(a) == 0:
        return np.zeros(len(times), np.bool_)
    index = np.searchsorted(a.start, times, side="right") - 1
    inside: NDArray[np.bool_] = (index >= 0) & (times <= a.end[np.maximum(index, 0)])
    return inside


def holds(a: Intervals, times: Int64) -> NDArray[np.bool_]:
    """For each time whether it lies inside `a`, an interval's end not counted."""
    return covers(Intervals(a.start, a.end - 1), times)
