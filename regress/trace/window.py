"""The window that ratios are taken over, per process and device, on the device's clock."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from regress.trace.intervals import EMPTY, Intervals, covers, union
from regress.trace.timeline import NO_TIME, Timeline

Int64 = NDArray[np.int64]


class WindowSource(enum.Enum):
    """Where a window came from."""

    STEPS = "steps"
    KERNELS = "kernels"


_GAP_TIMES = 10
"""Blocks of steps lie this many times their usual gap apart on the host, and more than a step."""
_AT_ONCE_NS = 1_000_000
_AT_ONCE_OF_STEP = 0.1
"""A closing collective is launched within 0.6 ms of the last step's end (measured, a fill of its buffer before it)."""

_LEAD_OF_WINDOW = 0.05
"""Below that a window begins with its first kernel, as the reference figures do: steps come out at most that short."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """spans: stretches in ns on the device, one for each block of steps; host: the step ranges on the host, merged.

    since_host: the spans, each from where the host began its first step: that step's first copy may run before its
    first kernel. steps: how many there were. Where the steps are one block, as they mostly are, there is one span.
    closings: how many of the spans a closing collective ends; unclosed: the window without these, None if it has none.
    """

    spans: Intervals
    since_host: Intervals
    source: WindowSource
    host: Intervals
    steps: int
    closings: int = 0
    unclosed: Window | None = None

    @property
    def start(self) -> int:
        """Where the first span begins."""
        return int(self.spans.start[0])

    @property
    def end(self) -> int:
        """Where the last span ends."""
        return int(self.spans.end[-1])

    @property
    def left_out_ns(self) -> int:
        """Time on the device between blocks of steps."""
        return self.end - self.start - self.spans.total


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


def blocks(start: Int64, end: Int64) -> Int64:
    """The first of each block of steps (in order of start): blocks lie unusually far apart on the host.

    What a program does there (validation, a checkpoint) is no part of its steps. What it does between any two steps is:
    one gap alone, or gaps that are all wide, part nothing.
    """
    gap = np.maximum(start[1:] - np.maximum.accumulate(end)[:-1], 0)
    if not len(gap):
        return np.zeros(1, np.int64)
    usual = np.quantile(gap, 0.5, method="lower")
    far = gap > max(_GAP_TIMES * float(usual), float(np.median(end - start)))
    return np.concatenate(([0], np.flatnonzero(far) + 1))


def lane_window(timeline: Timeline, process: int, rows: Int64, limits: Intervals | None = None) -> Window:
    """The window of one lane; `rows` are its kernels in order of start.

    With step ranges: for each block of them from the first to the last kernel launched inside a step, whatever thread
    launched it, with what the block's first step spent before (`_lead`), and on to the end of the barrier that closes
    it. Without: first kernel's start to last end.
    """
    kernels = timeline.kernels
    start, end, launch = kernels.start[rows], kernels.end[rows], kernels.launch[rows]
    begun, ended = steps_of(timeline, process, limits)
    host = union(begun, ended)
    inside = covers(host, launch)
    if not inside.any():
        whole = _spans(start[:1], np.array([end.max()], np.int64))
        return Window(whole, whole, WindowSource.KERNELS, host, 0)
    first = blocks(begun, ended)
    last = np.append(first[1:], len(begun)) - 1
    until = np.maximum.accumulate(ended)[last]
    places = np.flatnonzero(inside)
    of = np.searchsorted(begun[first], launch[places], side="right") - 1
    order = np.argsort(of, kind="stable")
    places, of = places[order], of[order]
    at = np.flatnonzero(np.diff(of, prepend=-1))
    found, opening, final = of[at], places[at], places[np.append(at[1:], len(of)) - 1]
    low, high = start[opening], np.maximum.reduceat(end[places], at)
    at_once = np.maximum(_AT_ONCE_NS, _AT_ONCE_OF_STEP * (high - low) / (last - first + 1)[found]).astype(np.int64)
    latest = np.maximum(high, until[found]) + at_once
    closing = {i: place for i in range(len(found))
               if (place := _closing(timeline, rows, inside, int(final[i]), int(latest[i]))) is not None}
    lead = _lead(start, end, np.where(inside, np.searchsorted(begun, launch, side="right") - 1, -1), begun, opening)
    if lead.sum() >= _LEAD_OF_WINDOW * (high - low).sum():
        low -= lead
    begin = np.minimum(low, begun[first[found]])
    window = Window(_spans(low, high), _spans(begin, high), WindowSource.STEPS, host, len(begun))
    if not closing:
        return window
    at = np.array(list(closing))
    high[at] = np.maximum(high[at], end[list(closing.values())])
    return replace(window, spans=_spans(low, high), since_host=_spans(begin, high), closings=len(at), unclosed=window)


def _lead(start: Int64, end: Int64, step: Int64, begun: Int64, opening: Int64) -> Int64:
    """Time of each block's first step before its first kernel (a place of `opening`), the device idle, in ns.

    A step that loads its data first leaves the device idle at its begin every time: the first counts like the others,
    by their median, as what stands before the very first kernel is also the profiler's start and an empty queue. Where
    the host runs ahead it is nothing. step: of each kernel, -1 outside.
    """
    of, place = np.unique(step, return_index=True)
    of, place = of[of >= 0], place[of >= 0]
    busy_until = np.maximum.accumulate(np.concatenate((begun[:1], end[:-1])))
    lead = np.maximum(start[place] - np.maximum(begun[of], busy_until[place]), 0)
    opens = np.isin(place, opening)
    own, others = lead[opens], lead[~opens]
    if len(others):
        own = np.minimum(own, np.int64(np.quantile(others, 0.5, method="lower")))
    return own


def _spans(start: Int64, end: Int64) -> Intervals:
    """The union; where nothing has a duration, the empty window at its place."""
    spans = union(start, end)
    return spans if len(spans) else Intervals(start[:1], end[:1])


def _closing(timeline: Timeline, rows: Int64, inside: NDArray[np.bool_], last: int, latest: int) -> int | None:
    """The place in `rows` of the collective that closes a block of steps, on which a rank that finished early waits.

    It is the next kernel on the device or the one after it (a fill of its buffer may come first), and was launched at
    once when the last step had ended, not later than `latest`; how long it then waits says nothing against it.
    """
    kernels = timeline.kernels
    for place in range(last + 1, min(last + 3, len(rows))):
        row = rows[place]
        launch = int(kernels.launch[row])
        begun = int(kernels.start[row]) if launch == NO_TIME else launch
        if inside[place] or begun > latest:
            return None
        if kernels.is_comm[row]:
            return place
    return None


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


def timeline_windows(timeline: Timeline, within: str | None = None) -> dict[tuple[int, int], Intervals]:
    """The spans of every lane's window (of what was launched inside the named ranges)."""
    found: dict[tuple[int, int], Intervals] = {}
    for lane, every in lanes_of(timeline):
        limits = None if within is None else named_ranges(timeline, within, lane[0])
        rows = every if limits is None else every[covers(limits, timeline.kernels.launch[every])]
        if len(rows):
            found[lane] = lane_window(timeline, lane[0], rows, limits).spans
    return found
