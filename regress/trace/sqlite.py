"""Reads an nsys SQLite export (nsys 2022.4 to 2026.2, schemas 3.1 to 3.25) into a `Timeline`.

Facts of the tables used here: processes are globalPid = vm << 48 | pid << 24, threads add their id in the low 24 bits;
correlation ids are unique inside a process only; names are StringIds; payloads exist only when they were exported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regress.trace.codes import Codes, Growing
from regress.trace.diagnostics import read_diagnostics
from regress.trace.export_db import ExportDb, no_kernels, open_export, read_schema
from regress.trace.gpu_counters import read_gpu_metrics, read_gpus
from regress.trace.host_calls import HostCalls, HostCopies
from regress.trace.launches import Launches, join_launches, read_launches, thinned
from regress.trace.names import CallKind, call_kind, is_comm_kernel, operation
from regress.trace.nccl_ranges import NcclRanges, link
from regress.trace.nvtx import NvtxFound, read_nvtx
from regress.trace.timeline import (
    COPY_KINDS,
    DEFAULTS,
    NO_TIME,
    Calls,
    CommCalls,
    Copies,
    CopyKind,
    IdentitySource,
    Kernels,
    Overhead,
    Process,
    ReadOptions,
    Timeline,
    Tracer,
)
from regress.trace.window import timeline_windows

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
UInt32 = NDArray[np.uint32]

_COPY_CODES = {1: CopyKind.HOST_TO_DEVICE, 2: CopyKind.DEVICE_TO_HOST, 8: CopyKind.DEVICE_TO_DEVICE, 10: CopyKind.PEER}
_PAGEABLE = 0


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """StringIds as the reader needs them: texts by row, and per row what kind of thing it names."""

    ids: Int64
    texts: list[str]
    comm: NDArray[np.bool_]

    def rows(self, ids: Int64 | Int32) -> Int32:
        """The row of each id; row 0 for an id that StringIds lacks."""
        if len(self.ids) == 0:
            return np.zeros(len(ids), np.int32)
        first = int(self.ids[0])
        dense = int(self.ids[-1]) - first + 1 == len(self.ids)
        row = ids - first if dense else np.searchsorted(self.ids, ids)
        return np.clip(row, 0, len(self.ids) - 1).astype(np.int32)

    def call_ids(self, *kinds: CallKind) -> list[int]:
        """Ids of the runtime calls of these kinds."""
        return [int(i) for i, text in zip(self.ids, self.texts, strict=True)
                if text.startswith(("cu", "hip")) and call_kind(text) in kinds]


def read_sqlite(path: Path, options: ReadOptions = DEFAULTS) -> Timeline:
    """The timeline of one export.

    Raises TraceInputError (not an export, damaged, locked, unknown schema) and TraceUnfitError (no kernel in it).
    """
    with open_export(path) as db:
        schema = read_schema(db)
        ids, texts = db.strings()
        names = Names(ids, texts, np.array([is_comm_kernel(t, options.custom_comm) for t in texts], np.bool_))
        processes = Codes()
        kernels, correlation, grid = _read_kernels(db, names, processes)
        launches = read_launches(db, names.call_ids(CallKind.LAUNCH, CallKind.CAPTURE_BEGIN, CallKind.CAPTURE_END),
                                 processes)
        kernels, launch_row, lost = join_launches(kernels, correlation, launches, names.rows(launches.name), texts)
        launched = _launched(launches, launch_row, kernels)
        launch_times = thinned(launches.start, launches.process, launches.thread_ids, launches.thread)
        # The biggest tables are not needed any more: what is read next must not come on top of them.
        del correlation, launches, launch_row
        nvtx = read_nvtx(db, processes, options, names.ids, texts)
        comm = _comm_calls(kernels, grid, texts, launched, nvtx.nccl)
        copies, of_calls = _read_copies(db, processes)
        timeline = Timeline(
            file=str(path), tracer=Tracer.NSYS, version=f"nsys {schema.product or 'before 2023'}", processes=(),
            names=tuple(texts), kernels=kernels, comm=comm, copies=copies,
            calls=_read_calls(db, names, processes, of_calls), steps=nvtx.steps, overhead=_read_overhead(db, processes),
            host_comm=nvtx.host_comm,
            began_ns=_session_start(db), host=_host(db),
            named=nvtx.named,
            launches=launch_times,
            lost=replace(lost, clipped_ranges=nvtx.clipped, diagnostics=read_diagnostics(db),
                         graph_launches_hidden=db.count("CUPTI_ACTIVITY_KIND_GRAPH_TRACE")), warnings=schema.warnings)
        timeline = replace(timeline, processes=_processes(processes, nvtx))
        if len(kernels) == 0 and len(nvtx.host_comm.start) == 0:
            raise no_kernels(db)
        timeline = replace(timeline, gpus=read_gpus(db, timeline))
        if not db.tables("GPU_METRICS"):
            return timeline
        return replace(timeline, gpu_metrics=read_gpu_metrics(
            db, timeline.gpus, timeline_windows(timeline, options.within)), within=options.within)


def _read_kernels(db: ExportDb, names: Names, processes: Codes) -> tuple[Kernels, UInt32, Int32]:
    """Kernel columns, the correlation id of each, and the grid size of the communication kernels among them.

    Kernels of negative duration stay, for the health check.
    """
    start, end, correlation = Growing(np.int64), Growing(np.int64), Growing(np.uint32)
    process, device, stream, name = Growing(np.int16), Growing(np.int16), Growing(np.int32), Growing(np.int32)
    grid = Growing(np.int32)
    wanted = ("start", "end", "globalPid", "deviceId", "streamId", "shortName", "correlationId", "gridX")
    for chunk in db.chunks("CUPTI_ACTIVITY_KIND_KERNEL", wanted):
        start.add(chunk[0])
        end.add(chunk[1])
        process.add(processes.encode(chunk[2]))
        device.add(chunk[3])
        stream.add(chunk[4])
        named = names.rows(chunk[5])
        name.add(named)
        correlation.add(chunk[6])
        grid.add(chunk[7][names.comm[named]])
    rows = name.int32()
    kernels = Kernels(start=start.int64(), end=end.int64(), process=process.int32(), device=device.int32(),
                      stream=stream.int32(), name=rows, is_comm=names.comm[rows], launch=np.empty(0, np.int64))
    return kernels, correlation.uint32(), grid.int32()


def _launched(launches: Launches, launch_row: Int32, kernels: Kernels) -> tuple[Int64, Int64]:
    """Thread and start of the launch of each communication kernel; -1 and NO_TIME where it was not recorded."""
    row = launch_row[np.flatnonzero(kernels.is_comm)]
    thread, start = np.full(len(row), -1, np.int64), np.full(len(row), NO_TIME, np.int64)
    seen = row >= 0
    thread[seen], start[seen] = launches.thread_ids[launches.thread[row[seen]]], launches.start[row[seen]]
    return thread, start


def _comm_calls(kernels: Kernels, grid: Int32, texts: list[str], launched: tuple[Int64, Int64],
                ranges: NcclRanges) -> CommCalls:
    """What is known of each communication kernel: from NCCL's range where it is linked, else from the kernel's name."""
    rows = np.flatnonzero(kernels.is_comm)
    linked = link(ranges, *launched)
    by_name = np.zeros(len(texts), np.int32)
    for name in np.unique(kernels.name[rows]).tolist():
        by_name[name] = operation(texts[name])
    spoken = np.where(linked.operation > 0, linked.operation, by_name[kernels.name[rows]])
    return CommCalls(rows, spoken, linked.communicator, linked.size_bytes, linked.grouped, grid)


def _read_copies(db: ExportDb, processes: Codes) -> tuple[Copies, HostCopies]:
    """The copies, and which call made those between host and device."""
    wanted = ("start", "end", "globalPid", "deviceId", "bytes", "copyKind", "srcKind", "dstKind", "correlationId")
    parts = [Growing(np.int64) for _ in wanted]
    for chunk in db.chunks("CUPTI_ACTIVITY_KIND_MEMCPY", wanted):
        for column, part in zip(parts, chunk, strict=True):
            column.add(part)
    start, end, pid, device, size, kind, source, target, correlation = (column.int64() for column in parts)
    codes = np.full(len(kind), COPY_KINDS.index(CopyKind.OTHER), np.int32)
    for number, meaning in _COPY_CODES.items():
        codes[kind == number] = COPY_KINDS.index(meaning)
    # Only the host's side can be pageable: device memory never is, whatever its kind column says.
    pageable = ((kind == 1) & (source == _PAGEABLE)) | ((kind == 2) & (target == _PAGEABLE))
    copies = Copies(start, end, processes.encode(pid), device.astype(np.int32), size, codes, pageable)
    return copies, HostCopies(copies, correlation)


def _read_calls(db: ExportDb, names: Names, processes: Codes, copies: HostCopies) -> Calls:
    """The calls kept, those that copy only where they wait for one of these copies."""
    ids = names.call_ids(CallKind.SYNC, CallKind.ALLOC, CallKind.RELEASE, CallKind.COPY)
    rows = names.rows(np.array(ids, np.int64)).tolist()
    ids = [one for one, row in zip(ids, rows, strict=True) if copies.asks_for(names.texts[row])]
    calls = HostCalls({row: names.texts[row] for row in rows}, copies)
    if ids:
        where = f"WHERE nameId IN ({', '.join(map(str, ids))})"
        wanted = ("start", "end", "globalTid", "nameId", "correlationId")
        for start, end, thread, name, correlation in db.chunks("CUPTI_ACTIVITY_KIND_RUNTIME", wanted, where):
            calls.add(start, end, process=processes.encode(thread & ~np.int64(0xFFFFFF)), thread=thread,
                      name=names.rows(name), correlation=correlation)
    return calls.calls()


def _read_overhead(db: ExportDb, processes: Codes) -> Overhead:
    parts = [Growing(np.int64) for _ in range(3)]
    for chunk in db.chunks("PROFILER_OVERHEAD", ("start", "end", "globalTid")):
        for column, part in zip(parts, chunk, strict=True):
            column.add(part)
    start, end, thread = (column.int64() for column in parts)
    return Overhead(start, end, processes.encode(thread & ~np.int64(0xFFFFFF)))


def _processes(codes: Codes, nvtx: NvtxFound) -> tuple[Process, ...]:
    """Every process seen, with its rank from our mark, else from NCCL's communicator payload."""
    found = []
    for key in codes.values:
        rank, world, communicator, source = None, None, 0, IdentitySource.ORDER
        if key in nvtx.marks:
            (rank, world), source = nvtx.marks[key], IdentitySource.MARK
        elif key in nvtx.init_ranks:
            (rank, world, communicator), source = nvtx.init_ranks[key], IdentitySource.NCCL_INIT
        found.append(Process(key, (key >> 24) & 0xFFFFFF, rank, world, source, communicator))
    return tuple(found)


def _session_start(db: ExportDb) -> int | None:
    for table in db.tables("TARGET_INFO_SESSION_START_TIME"):
        if "utcEpochNs" in db.columns(table):
            for row in db.rows(f'SELECT utcEpochNs FROM "{table}"'):
                return int(row[0]) if isinstance(row[0], int) else None
    return None


def _host(db: ExportDb) -> str:
    for table in db.tables("TARGET_INFO_SYSTEM_ENV"):
        for row in db.rows(f"SELECT value FROM \"{table}\" WHERE name = 'Hostname'"):
            return str(row[0])
    return ""
