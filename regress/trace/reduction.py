"""Reduces a timeline to its lanes: sums of unions, gaps by cause, calls, copies, and the table of collectives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from regress.trace.intervals import Intervals, clip, covers, difference, holds, intersection, union
from regress.trace.lane import LONG_GAP_NS, CallTotal, CopyTotal, Gaps, Lane, LaneCollectives, Occupancy
from regress.trace.lane_details import computed_totals, host_collectives, serial_count
from regress.trace.names import BLOCKING, CallKind, call_kind
from regress.trace.timeline import COPY_KINDS, NO_TIME, Timeline
from regress.trace.window import Window, WindowSource, lane_window, lanes_of, named_ranges, step_ranges

Int64 = NDArray[np.int64]


def occupancy(start: Int64, end: Int64, is_comm: NDArray[np.bool_], spans: Intervals) -> Occupancy:
    """Busy, communication and compute time inside the window's spans."""
    busy, comm, compute = (intersection(union(start[mask], end[mask]), spans).total
                           for mask in (slice(None), is_comm, ~is_comm))
    return Occupancy(spans.total, busy, comm, compute)


def split_gaps(start: Int64, end: Int64, launch: Int64, spans: Intervals, overhead: Intervals) -> Gaps:
    """The gaps before a lane's kernels (ordered by start) inside the window's spans."""
    before = np.maximum.accumulate(np.concatenate((np.minimum(start[:1], spans.start[0]), end[:-1])))
    span = np.searchsorted(spans.start, start, side="left") - 1
    before = np.maximum(before, spans.start[span])
    at = np.flatnonzero((span >= 0) & (start > before) & (start <= spans.end[span]))
    holes = Intervals(before[at], start[at])
    length = holes.end - holes.start
    covered = np.zeros(len(at), np.int64)
    held = intersection(holes, overhead)
    np.add.at(covered, np.searchsorted(holes.start, held.start, side="right") - 1, held.end - held.start)
    length = length - covered
    launched = launch[at]
    unknown = launched == NO_TIME
    late = ~unknown & (launched > holes.start)
    queued = ~unknown & ~late
    long = late & (length >= LONG_GAP_NS)
    return Gaps(late_ns=int(length[late].sum()), queued_ns=int(length[queued].sum()),
                unknown_ns=int(length[unknown].sum()), late=int(np.count_nonzero(late)),
                queued=int(np.count_nonzero(queued)), unknown=int(np.count_nonzero(unknown)),
                longest_late_ns=int(length[late].max(initial=0)), profiler_ns=int(covered.sum()),
                long_ns=int(length[long].sum()), long=int(np.count_nonzero(long)))


def reduce_timeline(timeline: Timeline, within: str | None = None) -> tuple[Lane, ...]:
    """The lanes of a timeline, in order of device and process.

    within: keep only kernels launched (and copies and calls begun) inside the named host ranges of that text; GPU
    counters are then known only if the timeline was read for that range.
    """
    lanes = []
    for (process, device), every in lanes_of(timeline):
        limits = None if within is None else named_ranges(timeline, within, process)
        rows = every if limits is None else every[covers(limits, timeline.kernels.launch[every])]
        if len(rows):
            lanes.append(_reduce(timeline, process, device, rows, limits))
    lanes.sort(key=lambda lane: (lane.device, lane.key))
    used = {lane.key for lane in lanes}
    for process, owner in enumerate(timeline.processes):
        limits = None if within is None else named_ranges(timeline, within, process)
        mine = np.flatnonzero(timeline.host_comm.process == process)
        mine = mine if limits is None else mine[covers(limits, timeline.host_comm.start[mine])]
        if owner.key not in used and len(mine):
            lanes.append(_reduce_host(timeline, process, mine, limits))
    return tuple(lanes)


def _reduce(timeline: Timeline, process: int, device: int, rows: Int64, limits: Intervals | None) -> Lane:
    kernels, owner = timeline.kernels, timeline.processes[process]
    start, end, is_comm = kernels.start[rows], kernels.end[rows], kernels.is_comm[rows]
    window = lane_window(timeline, process, rows, limits)
    mine = timeline.overhead.process == process
    overhead = union(timeline.overhead.start[mine], timeline.overhead.end[mine])
    host = window.host if window.source is WindowSource.STEPS else Intervals(
        np.array([window.start], np.int64), np.array([window.end], np.int64))
    whole = Intervals(start[:1], np.array([end.max()]))
    names, counts = np.unique(kernels.name[rows[is_comm]], return_counts=True)
    launching = _launching(timeline, process, host)
    gpu = timeline.gpus.get((process, device), device)
    machine = timeline.host or ("" if timeline.began_ns is None else timeline.file)
    lane = Lane(
        file=timeline.file, key=owner.key, pid=owner.pid, device=device, gpu=(machine, gpu), rank=owner.rank,
        world_size=owner.world_size, source=owner.source, window=window,
        in_window=occupancy(start, end, is_comm, window.spans),
        in_trace=occupancy(start, end, is_comm, whole),
        kernels=len(rows), comm_kernels=int(np.count_nonzero(is_comm)),
        gaps=split_gaps(start, end, kernels.launch[rows], window.spans, overhead),
        host_ns=host.total, host_sync_ns=_host_sync_ns(timeline, process, host, launching),
        calls=_calls(timeline, process, window.host, limits, launching),
        copies=_copies(timeline, process, device, window, limits),
        collectives=_collectives(timeline, rows[is_comm], window.host),
        kernel_names={timeline.names[n]: int(c) for n, c in zip(names.tolist(), counts, strict=True)},
        clock=timeline.host or timeline.file, offset_ns=timeline.began_ns or 0,
        counters=_counters(timeline, gpu, limits), lost=timeline.lost,
        exposed=intersection(difference(union(start[is_comm], end[is_comm]), union(start[~is_comm], end[~is_comm])),
                             window.spans),
        serial_comm=serial_count(kernels.stream[rows], is_comm),
        kernel_totals=computed_totals(timeline, rows[~is_comm], window.spans),
        host_collectives=host_collectives(timeline, process, window.host, limits), communicator=owner.communicator)
    bare = window.unclosed
    if bare is None:
        return lane
    return replace(lane, unclosed=replace(
        lane, window=bare, in_window=occupancy(start, end, is_comm, bare.spans),
        gaps=split_gaps(start, end, kernels.launch[rows], bare.spans, overhead),
        copies=_copies(timeline, process, device, bare, limits), exposed=intersection(lane.exposed, bare.spans),
        kernel_totals=computed_totals(timeline, rows[~is_comm], bare.spans)))


def _reduce_host(timeline: Timeline, process: int, rows: Int64, limits: Intervals | None) -> Lane:
    """A process of a CPU backend: its collectives and steps, and nothing of a device."""
    comm, owner = timeline.host_comm, timeline.processes[process]
    rows = rows[np.argsort(comm.start[rows], kind="stable")]
    start, end = comm.start[rows], comm.end[rows]
    host, steps = step_ranges(timeline, process, limits)
    source = WindowSource.STEPS if steps else WindowSource.KERNELS
    low, high = (int(host.start[0]), int(host.end[-1])) if steps else (int(start[0]), int(end.max()))
    span = Intervals(np.array([low], np.int64), np.array([high], np.int64))
    unmeasured = Occupancy(0, 0, 0, 0)
    collectives = LaneCollectives(start, end, comm.operation[rows], np.zeros(len(rows), np.uint64),
                                  comm.size_bytes[rows], np.ones(len(rows), np.int32),
                                  np.zeros(len(rows), np.int32), covers(host, start))
    return Lane(
        file=timeline.file, key=owner.key, pid=owner.pid, device=-1, gpu=(timeline.host, -1), rank=owner.rank,
        world_size=owner.world_size, source=owner.source, window=Window(span, span, source, host, steps),
        in_window=unmeasured, in_trace=unmeasured, kernels=0, comm_kernels=0, gaps=Gaps(0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        host_ns=0, host_sync_ns=0, calls=(), copies=(), collectives=collectives, kernel_names={},
        clock=timeline.host or timeline.file, offset_ns=timeline.began_ns or 0, lost=timeline.lost,
        exposed=intersection(union(start, end), host) if steps else clip(union(start, end), low, high))


def _counters(timeline: Timeline, gpu: int, limits: Intervals | None) -> dict[str, float]:
    """Counters of the lane's GPU; none where they were averaged over another window than the lane's."""
    if (timeline.within is None) != (limits is None):
        return {}
    return {metric.name: metric.window_mean for metric in timeline.gpu_metrics
            if metric.gpu == gpu and metric.window_mean is not None}


def _launching(timeline: Timeline, process: int, host: Intervals) -> NDArray[np.bool_]:
    """For each call whether a thread made it that launches in the host window; every call where no launch is known.

    The thread that runs backward() is such a one, though the main thread only waits for it. A thread that launches
    nothing, and for which the main thread waits, cannot be told from one that holds nobody up.
    """
    launches = timeline.launches
    threads = np.unique(launches.thread[(launches.process == process) & covers(host, launches.start)])
    return np.isin(timeline.calls.thread, threads, invert=len(threads) == 0)


def _host_sync_ns(timeline: Timeline, process: int, host: Intervals, launching: NDArray[np.bool_]) -> int:
    """Time of the host window in which a launching thread of the process sat in a call that waits for the device."""
    calls = timeline.calls
    sync = np.array([call_kind(timeline.names[n]) in BLOCKING for n in np.unique(calls.name)], np.bool_)
    mine = (calls.process == process) & launching & np.isin(calls.name, np.unique(calls.name)[sync])
    return intersection(union(calls.start[mine], calls.end[mine]), host).total


def _calls(timeline: Timeline, process: int, host: Intervals, limits: Intervals | None,
           launching: NDArray[np.bool_]) -> tuple[CallTotal, ...]:
    calls = timeline.calls
    mine = np.flatnonzero(calls.process == process)
    if limits is not None:
        mine = mine[covers(limits, calls.start[mine])]
    inside = covers(host, calls.start[mine])
    length = calls.end[mine] - calls.start[mine]
    found = []
    for name in np.unique(calls.name[mine]).tolist():
        of_name = calls.name[mine] == name
        text, both = timeline.names[name], of_name & inside
        held = both & launching[mine]
        found.append(CallTotal(text, call_kind(text) or CallKind.RELEASE, *(
            value for mask in (of_name, both, held, held & calls.uploading[mine]) for value in (
                int(np.count_nonzero(mask)), int(length[mask].sum())))))
    return tuple(sorted(found, key=lambda call: call.name))


def _copies(timeline: Timeline, process: int, device: int, window: Window,
            limits: Intervals | None) -> tuple[CopyTotal, ...]:
    copies = timeline.copies
    mine = np.flatnonzero((copies.process == process) & (copies.device == device))
    if limits is not None and len(limits):
        # A copy's launch is not kept: it lies between the ranges' begin and the end of what they launched.
        mine = mine[(copies.start[mine] >= limits.start[0]) & (copies.start[mine] <= max(limits.end[-1], window.end))]
    inside = holds(window.since_host, copies.start[mine])
    length, size = copies.end[mine] - copies.start[mine], copies.bytes[mine]
    found = []
    for kind in np.unique(copies.kind[mine]).tolist():
        for pageable in (False, True):
            of_kind = (copies.kind[mine] == kind) & (copies.pageable[mine] == pageable)
            if of_kind.any():
                both = of_kind & inside
                found.append(CopyTotal(COPY_KINDS[kind], pageable, *(
                    value for mask in (of_kind, both) for value in (
                        int(np.count_nonzero(mask)), int(size[mask].sum()), int(length[mask].sum())))))
    return tuple(found)


def _collectives(timeline: Timeline, rows: Int64, host: Intervals) -> LaneCollectives:
    """The collectives of these kernel rows; an unlinked kernel takes the communicator its whole stream agrees on."""
    comm, kernels = timeline.comm, timeline.kernels
    at = np.searchsorted(comm.kernel, rows)
    communicator = comm.communicator[at].copy()
    streams = kernels.stream[rows]
    for stream in np.unique(streams).tolist():
        mine = streams == stream
        known = np.unique(communicator[mine & (communicator != 0)])
        if len(known) == 1:
            communicator[mine] = known[0]
    return LaneCollectives(kernels.start[rows], kernels.end[rows], comm.operation[at], communicator,
                           comm.size_bytes[at], comm.grouped[at], comm.channels[at], covers(host, kernels.launch[rows]))
