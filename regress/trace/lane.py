"""One rank's share of a timeline, reduced to what metrics, diagnosis and other ranks need.

A lane is one process on one device: the owner of a rank. Its kernels are summed up here and can then be forgotten, so
that a run of many ranks costs the memory of one rank at a time; only the table of collectives crosses ranks whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from regress.trace.intervals import EMPTY, Intervals
from regress.trace.names import CallKind, plain_call
from regress.trace.timeline import CopyKind, IdentitySource, LostAndFound
from regress.trace.window import Window

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
LONG_GAP_NS = 1_000_000
"""Launching a kernel takes some 10 µs: in a gap from here on the host did something else."""


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
    copy, another stream or the device). unknown: its launch call was not recorded. long: late ones of LONG_GAP_NS and
    more.
    """

    late_ns: int
    queued_ns: int
    unknown_ns: int
    late: int
    queued: int
    unknown: int
    longest_late_ns: int
    profiler_ns: int
    long_ns: int
    long: int


@dataclass(frozen=True, slots=True)
class CallTotal:
    """One runtime call of a lane's process: its full name, how often, how long, and how often inside a step.

    launching: those inside a step that are by threads which launch kernels there. A thread that launches none
    (it writes a checkpoint or fetches a batch) may wait as long as it likes: no kernel comes later for it.
    uploading: of those again the ones that are part of a copy from pageable memory, as in `Calls`.
    """

    name: str
    kind: CallKind
    count: int
    total_ns: int
    in_steps: int
    in_steps_ns: int
    launching: int
    launching_ns: int
    uploading: int
    uploading_ns: int

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


@dataclass(frozen=True, slots=True)
class KernelTotal:
    """Kernels of one name, communication left out, that began inside the step window."""

    name: str
    count: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class HostCollectives:
    """Collectives of a CPU backend in a process that has a GPU: how many inside steps, and the time they took there."""

    in_steps: int
    in_steps_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class LaneCollectives:
    """Communication kernels of a lane in order of start; columns as in `CommCalls`. in_steps: launched in a step."""

    start: Int64
    end: Int64
    operation: Int32
    communicator: NDArray[np.uint64]
    size_bytes: Int64
    grouped: Int32
    channels: Int32
    in_steps: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One process on one device, reduced.

    key: identity of the process in its file (nsys: globalPid). device: CUDA ordinal in its process; -1 for a process of
    a CPU backend, whose collectives are ranges on the host and which has no device to measure. gpu: (machine or file,
    number) of the physical device. rank: final only in an `Analysis`. communicator: as in `Process`. in_window,
    in_trace: over the step window, and from the first kernel's start to the last end. host_ns, host_sync_ns: the window
    on the host, and the part of it in which a thread that launches kernels was in a blocking call. counters: mean of
    each sampled GPU counter in the window. offset_ns: add to the lane's times to put lanes of several files on one
    clock; clock: lanes with equal clock are comparable without correction. exposed: when, in the window, communication
    ran alone (for a CPU backend: when a collective ran inside a step, as what runs beside it is not seen). serial_comm:
    communication kernels on a stream that computes too. host_collectives: those of a CPU backend beside this lane's
    own, None where there are none.
    unclosed: the lane over its window without closing collectives, None where there are none.
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
    exposed: Intervals = EMPTY
    serial_comm: int = 0
    kernel_totals: tuple[KernelTotal, ...] = ()
    host_collectives: HostCollectives | None = None
    communicator: int = 0
    unclosed: Lane | None = None

    @property
    def on_host(self) -> bool:
        """Whether this is a process of a CPU backend, with no device to measure."""
        return self.device < 0

    @property
    def span_ns(self) -> int:
        """What shares of its time are taken of: the window on its device, the step ranges of a CPU backend."""
        return self.window.host.total if self.on_host else self.in_window.span_ns
