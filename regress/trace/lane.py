"""One rank's share of a timeline, reduced to what metrics, diagnosis and other ranks need.

A lane is one process on one device: the owner of a rank. Its kernels are summed up here and can then be forgotten, so
that a run of many ranks costs the memory of one rank at a time; only the table of collectives crosses ranks whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from regress.trace.intervals import EMPTY, Intervals, clip, covers, intersection, union
from regress.trace.names import CallKind, call_kind, plain_call
from regress.trace.timeline import COPY_KINDS, NO_TIME, CopyKind, IdentitySource, LostAndFound, Steps, Timeline
from regress.trace.window import Window, WindowSource, lane_window, lanes_of

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Nanoseconds of one lane over one window, each the length of a union of kernels.

    busy: any kernel runs. comm: a communication kernel runs. compute: another kernel runs. overlap: both. exposed:
    a communication kernel and nothing else. span: the window itself.
    """

    span_ns: int
    busy_ns: int
    comm_ns: int
    compute_ns: int

    @property
    def overlap_ns(self) -> int:
        """Both kinds run: |A and B| = |A| + |B| - |A or B|."""
        return self.comm_ns + self.compute_ns - self.busy_ns

    @property
    def exposed_ns(self) -> int:
        """Communication with no compute beside it."""
        return self.busy_ns - self.compute_ns


@dataclass(frozen=True, slots=True)
class Gaps:
    """Stretches of the window in which no kernel ran, by cause; profiler overhead inside them is taken out.

    late: the next kernel's launch call began after the device had run dry. queued: it was waiting in the queue (for a
    copy, another stream or the device). unknown: its launch call was not recorded.
    """

    late_ns: int
    queued_ns: int
    unknown_ns: int
    late: int
    queued: int
    unknown: int
    longest_late_ns: int
    profiler_ns: int


@dataclass(frozen=True, slots=True)
class CallTotal:
    """One runtime call of a lane's process: its full name, how often, how long, and how often inside a step."""

    name: str
    kind: CallKind
    count: int
    total_ns: int
    in_steps: int
    in_steps_ns: int

    @property
    def plain_name(self) -> str:
        """The name without the version of its signature."""
        return plain_call(self.name)


@dataclass(frozen=True, slots=True)
class CopyTotal:
    """Copies of one kind on a lane; in_window_*: those that began inside the step window."""

    kind: CopyKind
    pageable: bool
    count: int
    bytes: int
    total_ns: int
    in_window: int
    in_window_bytes: int
    in_window_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class LaneCollectives:
    """Communication kernels of a lane in order of start; columns as in `CommCalls`. in_steps: launched in a step."""

    start: Int64
    end: Int64
    operation: Int32
    communicator: NDArray[np.uint64]
    size_bytes: Int64
    grouped: Int32
    in_steps: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One process on one device, reduced.

    rank: final only in an `Analysis`. key: the process's identity in its file (nsys: globalPid). gpu: (machine or file,
    number) of the physical device. offset_ns: add to the lane's times to put lanes of several files on one clock;
    clock: lanes with equal clock are comparable without it. counters: mean of each sampled GPU counter in the window.
    """

    file: str
    key: int
    pid: int
    device: int
    gpu: tuple[str, int]
    rank: int | None
    world_size: int | None
    source: IdentitySource
    window: Window
    in_window: Occupancy
    in_trace: Occupancy
    kernels: int
    comm_kernels: int
    gaps: Gaps
    host_ns: int
    host_sync_ns: int
    calls: tuple[CallTotal, ...]
    copies: tuple[CopyTotal, ...]
    collectives: LaneCollectives
    kernel_names: dict[str, int]
    clock: str = ""
    offset_ns: int = 0
    counters: dict[str, float] = field(default_factory=dict)
    lost: LostAndFound = LostAndFound()


def occupancy(start: Int64, end: Int64, is_comm: NDArray[np.bool_], window: tuple[int, int]) -> Occupancy:
    """Busy, communication and compute time inside the window."""
    low, high = window
    busy, comm, compute = (clip(union(start[mask], end[mask]), low, high).total
                           for mask in (slice(None), is_comm, ~is_comm))
    return Occupancy(high - low, busy, comm, compute)


def split_gaps(start: Int64, end: Int64, launch: Int64, window: tuple[int, int], overhead: Intervals) -> Gaps:
    """The gaps between a lane's kernels (ordered by start) inside the window; none is before the first kernel."""
    reach = np.maximum.accumulate(end)
    before, after = reach[:-1], start[1:]
    at = np.flatnonzero((after > before) & (before >= window[0]) & (after <= window[1]))
    holes = Intervals(before[at], after[at])
    length = holes.end - holes.start
    covered = np.zeros(len(at), np.int64)
    held = intersection(holes, overhead)
    np.add.at(covered, np.searchsorted(holes.start, held.start, side="right") - 1, held.end - held.start)
    length = length - covered
    launched = launch[1:][at]
    unknown = launched == NO_TIME
    late = ~unknown & (launched > holes.start)
    queued = ~unknown & ~late
    return Gaps(late_ns=int(length[late].sum()), queued_ns=int(length[queued].sum()),
                unknown_ns=int(length[unknown].sum()), late=int(np.count_nonzero(late)),
                queued=int(np.count_nonzero(queued)), unknown=int(np.count_nonzero(unknown)),
                longest_late_ns=int(length[late].max(initial=0)), profiler_ns=int(covered.sum()))


def reduce_timeline(timeline: Timeline, within: str | None = None) -> tuple[Lane, ...]:
    """The lanes of a timeline, in order of device and process.

    within: keep only kernels launched (and copies and calls begun) inside the named host ranges of that text.
    """
    lanes = []
    for (process, device), every in sorted(lanes_of(timeline).items(), key=lambda item: (item[0][1], item[0][0])):
        limits = None if within is None else _ranges(timeline.named.get(within), process)
        rows = every if limits is None else every[covers(limits, timeline.kernels.launch[every])]
        if len(rows):
            lanes.append(_reduce(timeline, process, device, rows, limits))
    return tuple(lanes)


def _ranges(steps: Steps | None, process: int) -> Intervals:
    if steps is None:
        return EMPTY
    mine = steps.process == process
    return union(steps.start[mine], steps.end[mine])


def _reduce(timeline: Timeline, process: int, device: int, rows: Int64, limits: Intervals | None) -> Lane:
    kernels, owner = timeline.kernels, timeline.processes[process]
    start, end, is_comm = kernels.start[rows], kernels.end[rows], kernels.is_comm[rows]
    window = lane_window(timeline, process, rows)
    mine = timeline.overhead.process == process
    overhead = union(timeline.overhead.start[mine], timeline.overhead.end[mine])
    host = window.host if window.source is WindowSource.STEPS else Intervals(
        np.array([window.start], np.int64), np.array([window.end], np.int64))
    names, counts = np.unique(kernels.name[rows[is_comm]], return_counts=True)
    gpu = timeline.gpus.get((process, device), device)
    machine = timeline.host or ("" if timeline.began_ns is None else timeline.file)
    return Lane(
        file=timeline.file, key=owner.key, pid=owner.pid, device=device, gpu=(machine, gpu), rank=owner.rank,
        world_size=owner.world_size, source=owner.source, window=window,
        in_window=occupancy(start, end, is_comm, (window.start, window.end)),
        in_trace=occupancy(start, end, is_comm, (int(start[0]), int(end.max()))),
        kernels=len(rows), comm_kernels=int(np.count_nonzero(is_comm)),
        gaps=split_gaps(start, end, kernels.launch[rows], (window.start, window.end), overhead),
        host_ns=host.total, host_sync_ns=_host_sync_ns(timeline, process, host),
        calls=_calls(timeline, process, window.host, limits), copies=_copies(timeline, process, device, window, limits),
        collectives=_collectives(timeline, rows[is_comm], window.host),
        kernel_names={timeline.names[n]: int(c) for n, c in zip(names.tolist(), counts, strict=True)},
        clock=timeline.file, offset_ns=timeline.began_ns or 0,
        counters={m.name: m.window_mean for m in timeline.gpu_metrics
                  if m.gpu == gpu and m.window_mean is not None}, lost=timeline.lost)


def _host_sync_ns(timeline: Timeline, process: int, host: Intervals) -> int:
    """Time of the host window in which any thread of the process sat in a synchronising call."""
    calls = timeline.calls
    sync = np.array([call_kind(timeline.names[n]) is CallKind.SYNC for n in np.unique(calls.name)], np.bool_)
    mine = (calls.process == process) & np.isin(calls.name, np.unique(calls.name)[sync])
    return intersection(union(calls.start[mine], calls.end[mine]), host).total


def _calls(timeline: Timeline, process: int, host: Intervals, limits: Intervals | None) -> tuple[CallTotal, ...]:
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
        found.append(CallTotal(text, call_kind(text) or CallKind.RELEASE, int(np.count_nonzero(of_name)),
                               int(length[of_name].sum()), int(np.count_nonzero(both)), int(length[both].sum())))
    return tuple(sorted(found, key=lambda call: call.name))


def _copies(timeline: Timeline, process: int, device: int, window: Window,
            limits: Intervals | None) -> tuple[CopyTotal, ...]:
    copies = timeline.copies
    mine = np.flatnonzero((copies.process == process) & (copies.device == device))
    if limits is not None and len(limits):
        # A copy's launch is not kept: it lies between the ranges' begin and the end of what they launched.
        mine = mine[(copies.start[mine] >= limits.start[0]) & (copies.start[mine] <= max(limits.end[-1], window.end))]
    # A step's first copy may run before its first kernel, but not before the host began the step.
    low = min(window.start, int(window.host.start[0])) if len(window.host) else window.start
    inside = (copies.start[mine] >= low) & (copies.start[mine] < window.end)
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
                           comm.size_bytes[at], comm.grouped[at], covers(host, kernels.launch[rows]))
