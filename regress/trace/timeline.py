"""What a profiler saw of one file, whichever profiler it was: columns in integer nanoseconds.

Rows of a column table belong to a process (index into `Timeline.processes`) and to a device (CUDA ordinal inside that
process). Both key every interval: two processes on one device never merge, nor do two devices of one process.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Bool = NDArray[np.bool_]

NO_TIME = int(np.iinfo(np.int64).min)
"""The launch time of a kernel whose launch call was not recorded."""


class Tracer(enum.Enum):
    """Which profiler wrote the trace. Figures of one are never compared with those of another."""

    NSYS = "nsys"
    KINETO = "kineto"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a reader looks for.

    step_range: text of the range around a training step (torch.profiler's `ProfilerStep#n` always counts as one).
    keep: texts of other host ranges to keep under `Timeline.named`, beside those that begin with `case:`.
    custom_comm: finds, in a kernel's name, communication kernels that are not NCCL's. within: text of the host ranges
    that GPU counters are averaged over (of what was launched inside), None for the step windows.
    """

    step_range: str = "step"
    keep: frozenset[str] = frozenset()
    custom_comm: re.Pattern[str] | None = None
    within: str | None = None


DEFAULTS = ReadOptions()


class IdentitySource(enum.Enum):
    """How a process's rank was found, most trustworthy first."""

    MARK = "comm_regress.rank mark"
    DISTRIBUTED_INFO = "distributedInfo of the trace"
    NCCL_INIT = "NCCL communicator payload"
    ORDER = "order of devices and processes"


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the run. rank and world_size are None where the trace does not say them.

    key: unique inside its file (nsys: globalPid). pid: as the operating system numbered it. communicator: NCCL's hash
    of the one that rank and world_size are of, 0 where unknown or where NCCL did not name them.
    """

    key: int
    pid: int
    rank: int | None = None
    world_size: int | None = None
    source: IdentitySource = IdentitySource.ORDER
    communicator: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """One row a kernel. name: index into `Timeline.names`. launch: when its launch call began, NO_TIME if unseen."""

    start: Int64
    end: Int64
    process: Int32
    device: Int32
    stream: Int32
    name: Int32
    is_comm: Bool
    launch: Int64

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, eq=False)
class CommCalls:
    """One row a communication kernel, in the order of `kernel` (row in `Kernels`).

    operation: index into `names.OPERATIONS`. communicator: NCCL's hash, 0 where unknown. size_bytes: as NCCL counts it
    per call (what a rank sends into allgather, receives from reduce-scatter), summed over the operations of a group, of
    its sends and receives the fuller direction; -1 where the trace does not hold it. grouped: operations the kernel
    runs. channels: its thread blocks, of which NCCL has one for each channel; 0 where unknown.
    """

    kernel: Int64
    operation: Int32
    communicator: NDArray[np.uint64]
    size_bytes: Int64
    grouped: Int32
    channels: Int32


class CopyKind(enum.Enum):
    """Direction of a copy."""

    HOST_TO_DEVICE = "host to device"
    DEVICE_TO_HOST = "device to host"
    DEVICE_TO_DEVICE = "device to device"
    PEER = "peer to peer"
    OTHER = "other"


COPY_KINDS = tuple(CopyKind)


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """One row a copy on a device. kind: index into COPY_KINDS. pageable: host memory of it was not pinned."""

    start: Int64
    end: Int64
    process: Int32
    device: Int32
    bytes: Int64
    kind: Int32
    pageable: Bool


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """One row a synchronising, allocating or freeing runtime call, or one that waits for what it copies.

    name: index into `Timeline.names`. thread: a number of the thread that no other of the file has (nsys: globalTid),
    -1 where unknown. uploading: the call copies from pageable memory to the device, or follows at once on its thread on
    a call that does: such a copy is a copy and a wait for its stream.
    """

    start: Int64
    end: Int64
    process: Int32
    name: Int32
    thread: Int64
    uploading: Bool


@dataclass(frozen=True, slots=True, eq=False)
class LaunchTimes:
    """When threads launched kernels or graphs: of launches close together by one thread, one row stands for all.

    thread: as in `Calls`.
    """

    start: Int64
    process: Int32
    thread: Int64


NO_LAUNCHES = LaunchTimes(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class HostComm:
    """One row a collective of a CPU backend, on the host; operation and size_bytes as in `CommCalls`.

    by_backend: whether the backend itself named them; the ranges of our own workloads are around any backend's.
    """

    start: Int64
    end: Int64
    process: Int32
    operation: Int32
    size_bytes: Int64
    by_backend: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Overhead:
    """One row a stretch in which the profiler itself held a thread of the process (buffer flushes)."""

    start: Int64
    end: Int64
    process: Int32


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """One row a step range (or another named range), on the host's clock."""

    start: Int64
    end: Int64
    process: Int32


@dataclass(frozen=True, slots=True)
class GpuMetric:
    """A sampled hardware counter of one GPU: mean over the samples inside the window of its processes, and over all."""

    gpu: int
    name: str
    window_mean: float | None
    window_samples: int
    mean: float
    samples: int


@dataclass(frozen=True, slots=True)
class LostAndFound:
    """Counts the health checks judge: what the trace itself shows to be missing or odd."""

    kernels_without_launch: int = 0
    launches_without_kernel: int = 0
    zero_length_kernels: int = 0
    negative_kernels: int = 0
    clipped_ranges: int = 0
    graph_launches_hidden: int = 0
    diagnostics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One trace file.

    gpus: (process index, device) to the machine's GPU number, where the trace knows it. began_ns: absolute time (Unix
    epoch) of the file's zero, None where unknown. named: ranges of the texts a reader was asked to keep. host: as the
    trace names the machine, "" where it does not. within: the ranges that gpu_metrics' window means are over.
    """

    file: str
    tracer: Tracer
    version: str
    processes: tuple[Process, ...]
    names: tuple[str, ...]
    kernels: Kernels
    comm: CommCalls
    copies: Copies
    calls: Calls
    steps: Steps
    overhead: Overhead
    host_comm: HostComm
    gpus: dict[tuple[int, int], int] = field(default_factory=dict)
    gpu_metrics: tuple[GpuMetric, ...] = ()
    lost: LostAndFound = LostAndFound()
    began_ns: int | None = None
    host: str = ""
    named: dict[str, Steps] = field(default_factory=dict)
    within: str | None = None
    launches: LaunchTimes = NO_LAUNCHES
    warnings: tuple[str, ...] = ()
