"""Reads a torch.profiler (Kineto) trace into a `Timeline`: one file is one process."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from regress.errors import TraceInputError, TraceUnfitError
from regress.trace.event_stream import Document, EventStream
from regress.trace.host_calls import HostCalls, HostCopies
from regress.trace.kineto_events import Collected, Collector
from regress.trace.launches import captured, thinned
from regress.trace.names import launches_kernel
from regress.trace.timeline import (
    DEFAULTS,
    NO_TIME,
    Calls,
    CommCalls,
    Copies,
    HostComm,
    IdentitySource,
    Kernels,
    LaunchTimes,
    LostAndFound,
    Overhead,
    Process,
    ReadOptions,
    Steps,
    Timeline,
    Tracer,
)

Int64 = NDArray[np.int64]

_FOREIGN = re.compile(r"AMD|Instinct|Radeon|gfx\d", re.IGNORECASE)


def read_kineto(path: Path, options: ReadOptions = DEFAULTS) -> Timeline:
    """The timeline of one file.

    Raises TraceInputError (no trace, truncated, of another accelerator) and TraceUnfitError (nothing to measure in it).
    """
    stream, collector = EventStream(path), Collector(options)
    try:
        for event in stream:
            collector.add(event)
        return _timeline(path, collector.out, stream.document)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise TraceInputError(f"an event that is none of torch.profiler's: {error}", where=str(path),
                              accepted="a trace of torch.profiler") from error


def _timeline(path: Path, out: Collected, document: Document) -> Timeline:
    """Everything that was collected, as columns."""
    _refuse_foreign(path, out, document)
    kernels, comm, lost = _kernel_tables(out)
    if len(kernels) == 0 and not out.host_comm and not out.own_comm:
        raise TraceUnfitError("neither a GPU kernel nor a collective in the trace", where=str(path),
                              accepted="torch.profiler with ProfilerActivity.CUDA, or a gloo run",
                              next_step="profile steps that communicate")
    steps = _steps(out.ranges.pop("", []))
    process = _identity(out, document)
    copies, of_calls = _copies(out)
    return Timeline(
        file=str(path), tracer=Tracer.KINETO, version="torch.profiler", processes=(process,), names=tuple(out.names),
        kernels=kernels, comm=comm, copies=copies, calls=_calls(out, of_calls), steps=steps, overhead=_overhead(out),
        host_comm=_host_comm(out), gpus=_gpus(process, kernels, document), lost=lost, began_ns=document.base_ns or 0,
        host=document.host_name or "", launches=_launch_times(out),
        named={name: _steps(rows) for name, rows in out.ranges.items()})


def _refuse_foreign(path: Path, out: Collected, document: Document) -> None:
    device = next((d.name for d in document.devices or [] if _FOREIGN.search(d.name)), "")
    if device or out.foreign:
        raise TraceInputError(f"a trace of {device or out.foreign + ' devices'}", where=str(path),
                              accepted="traces of NVIDIA GPUs, or of gloo on the CPU")


def _kernel_tables(out: Collected) -> tuple[Kernels, CommCalls, LostAndFound]:
    """Kernels with their launch times joined on the correlation id, and the communication kernels among them."""
    start, end, device, stream, name, correlation = (np.array(column, np.int64) for column in out.kernels)
    launched, keys, called, thread = (np.array(column, np.int64) for column in out.launches)
    launch = np.full(len(start), NO_TIME, np.int64)
    texts = list(out.names)
    idle = 0
    if len(keys):
        order = np.lexsort((launched, keys))
        at = np.minimum(np.searchsorted(keys[order], correlation, side="left"), len(keys) - 1)
        hit = (keys[order][at] == correlation) & (correlation >= 0)
        launch[hit] = launched[order][at[hit]]
        single = np.array([launches_kernel(text) for text in texts], np.bool_)
        idle = int(np.count_nonzero(single[called] & ~np.isin(keys, correlation)
                                    & ~captured(launched, thread, called, texts)))
    table = np.array([row[:2] + row[3:] for row in out.comm], np.int64).reshape(-1, 4)
    rows = table[:, 0].copy()
    is_comm = np.zeros(len(start), np.bool_)
    is_comm[rows] = True
    kernels = Kernels(start, end, np.zeros(len(start), np.int32), device.astype(np.int32), stream.astype(np.int32),
                      name.astype(np.int32), is_comm, launch)
    comm = CommCalls(rows, table[:, 1].astype(np.int32), np.array([row[2] for row in out.comm], np.uint64),
                     table[:, 2].copy(), np.ones(len(rows), np.int32), table[:, 3].astype(np.int32))
    lost = LostAndFound(kernels_without_launch=int(np.count_nonzero(launch == NO_TIME)), launches_without_kernel=idle,
                        zero_length_kernels=int(np.count_nonzero(end == start)),
                        negative_kernels=int(np.count_nonzero(end < start)))
    return kernels, comm, lost


def _identity(out: Collected, document: Document) -> Process:
    pid = max(out.pids, key=lambda p: out.pids[p], default=0)
    if out.mark is not None:
        return Process(pid, pid, *out.mark, IdentitySource.MARK)
    info = document.distributed
    if info is not None and info.rank is not None:
        return Process(pid, pid, info.rank, info.world_size, IdentitySource.DISTRIBUTED_INFO)
    return Process(pid, pid)


def _gpus(process: Process, kernels: Kernels, document: Document) -> dict[tuple[int, int], int]:
    """Physical GPUs: nodes are told apart by rank where there are more ranks than GPUs in a node."""
    local = len(document.devices or ())
    many = process.rank is not None and process.world_size is not None and 0 < local < process.world_size
    node = (process.rank or 0) // local if many else 0
    return {(0, int(d)): node * max(local, 1) + int(d) for d in np.unique(kernels.device)}


def _steps(rows: list[tuple[int, int]]) -> Steps:
    columns = np.array(rows, np.int64).reshape(-1, 2)
    return Steps(columns[:, 0].copy(), columns[:, 1].copy(), np.zeros(len(rows), np.int32))


def _copies(out: Collected) -> tuple[Copies, HostCopies]:
    start, end, device, size, kind, pageable, correlation = (np.array(column, np.int64) for column in out.copies)
    copies = Copies(start, end, np.zeros(len(start), np.int32), device.astype(np.int32), size, kind.astype(np.int32),
                    pageable.astype(np.bool_))
    return copies, HostCopies(copies, correlation)


def _calls(out: Collected, copies: HostCopies) -> Calls:
    start, end, name, correlation, thread = (np.array(column, np.int64) for column in out.calls)
    calls = HostCalls({code: text for text, code in out.names.items()}, copies)
    calls.add(start, end, process=np.zeros(len(start), np.int32), thread=thread, name=name.astype(np.int32),
              correlation=correlation)
    return calls.calls()


def _launch_times(out: Collected) -> LaunchTimes:
    start, thread = (np.array(out.launches[column], np.int64) for column in (0, 3))
    threads, codes = np.unique(thread, return_inverse=True)
    return thinned(start, np.zeros(len(start), np.int32), threads, codes.astype(np.int32))


def _overhead(out: Collected) -> Overhead:
    columns = np.array(out.overhead, np.int64).reshape(-1, 2)
    return Overhead(columns[:, 0].copy(), columns[:, 1].copy(), np.zeros(len(columns), np.int32))


def _host_comm(out: Collected) -> HostComm:
    """Collectives of a CPU backend: what the backend itself annotated, else the ranges our own workloads set."""
    columns = np.array(sorted(out.host_comm or out.own_comm), np.int64).reshape(-1, 4)
    return HostComm(columns[:, 0].copy(), columns[:, 1].copy(), np.zeros(len(columns), np.int32),
                    columns[:, 2].astype(np.int32), columns[:, 3].copy(), bool(out.host_comm))
