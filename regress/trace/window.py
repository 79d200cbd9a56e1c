"""The window that ratios are taken over, per process and device, on the device's clock."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regress.trace.intervals import EMPTY, Intervals, covers, union
from regress.trace.timeline import Timeline

Int64 = NDArray[np.int64]


class WindowSource(enum.Enum):
    """Where a window came from."""

    STEPS = "steps"
    KERNELS = "kernels"


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """start and end in ns on the device; host: the step ranges on the host, merged; steps: how many there were."""

    start: int
    end: int
    source: WindowSource
    host: Intervals
    steps: int


def steps_of(timeline: Timeline, process: int, limits: Intervals | None = None) -> tuple[Int64, Int64]:
    """Starts and ends of the steps of a process (that begin inside `limits`), in order of start.

    A step inside a step is the same one under another name (`step` in `ProfilerStep#n`) or a part of it: the outermost
    count, of equal ones one.
    """
    mine = timeline.steps.process == process
    if limits is not None:
        mine &= covers(limits, timeline.steps.start)
    start, end = timeline.steps.start[mine], timeline.steps.end[mine]
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    outermost = np.ones(len(end), np.bool_)
    outermost[1:] = end[1:] > np.maximum.accumulate(end)[:-1]
    return start[outermost], end[outermost]


def step_ranges(timeline: Timeline, process: int, limits: Intervals | None = None) -> tuple[Intervals, int]:
    """The steps of a process (that begin inside `limits`), merged where they touch, and their number."""
    start, end = steps_of(timeline, process, limits)
    return union(start, end), len(start)


def lane_window(timeline: Timeline, process: int, rows: Int64, limits: Intervals | None = None) -> Window:
    """The window of one lane; `rows` are its kernels in order of start.

    With step ranges: from the first to the last kernel launched inside a step, whatever thread launched it, and on to
    the end of the barrier that closes the steps: the collective that follows at once (a fill of its buffer may come
    first), on which a rank that finished early waits for the others. Without: first kernel's start to last end.
    """
    kernels = timeline.kernels
    start, end = kernels.start[rows], kernels.end[rows]
    host, count = step_ranges(timeline, process, limits)
    inside = covers(host, kernels.launch[rows])
    if not inside.any():
        return Window(int(start[0]), int(end.max()), WindowSource.KERNELS, host, 0)
    first, last = np.flatnonzero(inside)[[0, -1]]
    stop = int(end[inside].max())
    for closing in range(int(last) + 1, min(int(last) + 3, len(rows))):
        if kernels.is_comm[rows[closing]]:
            stop = max(stop, int(end[closing]))
            break
    return Window(int(start[first]), stop, WindowSource.STEPS, host, count)


def lanes_of(timeline: Timeline) -> Iterator[tuple[tuple[int, int], Int64]]:
    """(process, device) and its kernels' rows in order of start; kernels of negative duration are left out.

    One lane at a time: the rows of all lanes of a big trace are too much to hold at once.
    """
    kernels = timeline.kernels
    for process in range(len(timeline.processes)):
        rows = np.flatnonzero(kernels.process == process)
        for device in np.unique(kernels.device[rows]).tolist():
            mine = rows[kernels.device[rows] == device]
            mine = mine[kernels.end[mine] >= kernels.start[mine]]
            begun = kernels.start[mine]
            if (begun[1:] < begun[:-1]).any():
                mine = mine[np.argsort(begun, kind="stable")]
            if len(mine):
                yield (process, int(device)), mine


def named_ranges(timeline: Timeline, text: str, process: int) -> Intervals:
    """The kept host ranges of that text in a process, merged; none where the process never entered one."""
    ranges = timeline.named.get(text)
    if ranges is None:
        return EMPTY
    mine = ranges.process == process
    return union(ranges.start[mine], ranges.end[mine])


def timeline_windows(timeline: Timeline, within: str | None = None) -> dict[tuple[int, int], tuple[int, int]]:
    """The window of every lane (of what was launched inside the named ranges), as start and end in ns."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for lane, every in lanes_of(timeline):
        limits = None if within is None else named_ranges(timeline, within, lane[0])
        rows = every if limits is None else every[covers(limits, timeline.kernels.launch[every])]
        if len(rows):
            window = lane_window(timeline, lane[0], rows, limits)
            found[lane] = window.start, window.end
    return found
