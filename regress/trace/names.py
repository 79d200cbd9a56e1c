"""What names mean: NCCL kernels of every naming generation, and the runtime calls metrics are made of.

Kernels were `ncclKernel_AllReduce_RING_LL_Sum_float(...)` up to NCCL 2.18, and since 2.19 they are
`ncclDevKernel_AllReduce_Sum_f32_RING_LL`, `ncclDevKernel_Generic` where one kernel serves all, and
`ncclSymkDevKernel_...` for symmetric memory.
The algorithm and protocol in a name are the symbol's, not what ran (https://github.com/NVIDIA/nccl/pull/2223).
Runtime calls carry the version of their signature as a suffix: `cudaDeviceSynchronize_v3020`.
"""

from __future__ import annotations

import enum
import re

COMM_KERNEL = re.compile(r"(?:void\s+)?nccl\w*kernel", re.IGNORECASE)
_OPERATION = re.compile(r"(AllReduce|AllGather|ReduceScatter|AllToAll|Broadcast|Bcast|SendRecv|Send|Recv|Reduce|Gather"
                        r"|Scatter|Barrier)", re.IGNORECASE)
OPERATIONS = ("Unknown", "AllReduce", "AllGather", "ReduceScatter", "AllToAll", "Broadcast", "SendRecv", "Send", "Recv",
              "Reduce", "Gather", "Scatter", "Barrier")
"""Collectives in NCCL's spelling; tables hold indices into this, 0 for what a name does not tell."""
_CODES = {**{name.lower(): code for code, name in enumerate(OPERATIONS)}, "bcast": OPERATIONS.index("Broadcast")}
_VERSION_SUFFIX = re.compile(r"(_ptsz|_ptds)?(_v\d+)*(_ptsz|_ptds)?$")
_SYNC = re.compile(r"(cuda(Device|Thread|Stream|Event)Synchronize|cu(Ctx|Stream|Event)Synchronize)$")
_ALLOC = re.compile(r"(cudaMalloc(Async|Managed|Pitch|3D|Array|FromPoolAsync)?"
                    r"|cuMem(Alloc|AllocAsync|AllocManaged|AllocPitch|AllocFromPoolAsync|Create))$")
_RELEASE = re.compile(r"(cudaMallocHost|cudaHostAlloc|cudaFree\w*|cuMemFree\w*|cuMemAllocHost|cuMemHostAlloc"
                      r"|cuMemRelease)$")
_COPY = re.compile(r"(cuda|cu)Memcpy\w*$")
_LAUNCH = re.compile(r"(cu|cuda|hip)(Launch\w*|GraphLaunch)$")
_CAPTURE_BEGIN = re.compile(r"(cuda|cu)StreamBeginCapture(ToGraph)?$")
_CAPTURE_END = re.compile(r"(cuda|cu)StreamEndCapture$")
_KERNEL_LAUNCH = re.compile(r"(cu|cuda)Launch(Cooperative)?Kernel(Ex|ExC)?$")


class CallKind(enum.Enum):
    """What a runtime call means to a metric.

    SYNC blocks the host until the device is done. ALLOC takes device memory. RELEASE frees device memory or takes
    or frees host memory. COPY moves memory: from the device to pageable host memory, and where the call is none of the
    `Async` ones between host and device at all, it comes behind the device's work and returns when that is done, and so
    blocks as SYNC does (CUDA runtime API, "API synchronization behavior"); copies of other kinds are not kept.
    LAUNCH enqueues a kernel or a graph. Between CAPTURE_BEGIN and CAPTURE_END the launches of a thread become nodes of
    a CUDA graph and run nothing. Others are not kept.
    """

    SYNC = "sync"
    ALLOC = "alloc"
    RELEASE = "release"
    COPY = "copy"
    LAUNCH = "launch"
    CAPTURE_BEGIN = "capture begin"
    CAPTURE_END = "capture end"


def plain_call(name: str) -> str:
    """A runtime call's name without the version of its signature: `cudaMalloc_v3020` is `cudaMalloc`."""
    return _VERSION_SUFFIX.sub("", name)


BLOCKING = (CallKind.SYNC, CallKind.COPY)
"""Kinds of the calls that are kept and hold the host until the device has come to them."""


def call_kind(name: str) -> CallKind | None:
    """The kind of a runtime or driver call, None for those no metric needs (cudaEventQuery does not block)."""
    plain = plain_call(name)
    for kind, pattern in ((CallKind.SYNC, _SYNC), (CallKind.ALLOC, _ALLOC), (CallKind.RELEASE, _RELEASE),
                          (CallKind.COPY, _COPY), (CallKind.LAUNCH, _LAUNCH), (CallKind.CAPTURE_BEGIN, _CAPTURE_BEGIN),
                          (CallKind.CAPTURE_END, _CAPTURE_END)):
        if pattern.fullmatch(plain):
            return kind
    return None


def returns_early(name: str) -> bool:
    """Whether a copying call may return before its copy is done (`cudaMemcpy2DAsync`, `cuMemcpyDtoHAsync`)."""
    return "Async" in plain_call(name)


def launches_kernel(name: str) -> bool:
    """Whether the call launches exactly one kernel (a graph launch may launch any number)."""
    return _KERNEL_LAUNCH.fullmatch(plain_call(name)) is not None


def is_comm_kernel(name: str, custom: re.Pattern[str] | None = None) -> bool:
    """Whether a kernel communicates: NCCL's by name, and those the custom pattern finds (custom all-reduce kernels)."""
    return COMM_KERNEL.match(name) is not None or (custom is not None and custom.search(name) is not None)


def operation(name: str) -> int:
    """The collective a kernel's or range's name speaks of, as index into OPERATIONS; 0 for Generic kernels."""
    match = _OPERATION.search(name)
    return _CODES[match.group(1).lower()] if match else 0
