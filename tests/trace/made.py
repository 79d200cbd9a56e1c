"""Traces made up for a test: nsys exports and Kineto files with exactly the rows a test needs."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
_ALL_REDUCE_SCHEMA = (1 << 24) + 5


def global_pid(pid: int) -> int:
    """A globalPid as nsys makes it, of virtual machine 1."""
    return (1 << 48) | (pid << 24)


def payload(communicator: int, size: int) -> bytes:
    """NCCL's payload of an all-reduce: 32-byte header, hash, size, operation and padding."""
    return struct.pack("<4Q2QQ", 1, _ALL_REDUCE_SCHEMA, 24, 32, communicator, size, 0)


@dataclass(slots=True)
class Export:
    """Rows of an nsys export; times in ns. Tables without rows are not created, as nsys does."""

    strings: list[str] = field(default_factory=list)
    tables: dict[str, tuple[str, list[tuple[object, ...]]]] = field(default_factory=dict)
    correlation: int = 100

    def name(self, text: str) -> int:
        """The id of a string."""
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text) + 1

    def row(self, table: str, columns: str, *values: object) -> None:
        """One row of any table."""
        self.tables.setdefault(table, (columns, []))[1].append(values)

    def steps(self, count: int, every: int = 10_000_000, length: int = 9_000_000, pids: Sequence[int] = (10, 11)
              ) -> Iterator[tuple[int, int, int]]:
        """Ranks on a GPU each, in turn, and their steps: rank, pid and begin of each, its range made from 10 µs before.
        """
        for rank, pid in enumerate(pids):
            self.gpu(rank, rank, pid)
            for step in range(count):
                begin = 1_000_000 + step * every
                self.nvtx(pid, begin - 10_000, begin + length, "step")
                yield rank, pid, begin

    def call(self, pid: int, start: int, end: int, name: str, correlation: int = 0, *, thread: int = 7) -> None:
        """One runtime call."""
        self.row("CUPTI_ACTIVITY_KIND_RUNTIME", 'start,"end",globalTid,correlationId,nameId', start, end,
                 global_pid(pid) | thread, correlation, self.name(name))

    def kernel(self, pid: int, start: int, end: int, name: str = "gemm", *, device: int = 0, stream: int = 7,
               launch: int | None = None, thread: int = 7) -> None:
        """One kernel and, 2 µs before it unless told otherwise, its launch; a negative launch leaves it out."""
        self.correlation += 1
        self.row("CUPTI_ACTIVITY_KIND_KERNEL",
                 'start,"end",deviceId,streamId,correlationId,globalPid,demangledName,shortName,gridX', start, end,
                 device, stream, self.correlation, global_pid(pid), self.name(name), self.name(name), 2)
        began = start - 2000 if launch is None else launch
        if began >= 0:
            self.call(pid, began, began + 1000, "cudaLaunchKernel_v7000", self.correlation, thread=thread)

    def nvtx(self, pid: int, start: int, end: int | None, text: str, *, kind: int = 59, thread: int = 7,
             blob: bytes | None = None, json_text: str | None = None, registered: bool = False) -> None:
        """One NVTX row, its text inline or registered."""
        self.row("NVTX_EVENTS", 'start,"end",eventType,globalTid,text,textId,domainId,jsonText,binaryData', start, end,
                 kind, global_pid(pid) | thread, None if registered else text, self.name(text) if registered else None,
                 1, json_text, blob)

    def copy(self, pid: int, start: int, end: int, size: int, *, kind: int = 1, source: int = 0,
             target: int = 2, device: int = 0, correlation: int = 0) -> None:
        """One copy; kinds as nsys numbers them (1 to the device, 0 pageable)."""
        self.row("CUPTI_ACTIVITY_KIND_MEMCPY",
                 'start,"end",deviceId,globalPid,bytes,copyKind,srcKind,dstKind,correlationId', start,
                 end, device, global_pid(pid), size, kind, source, target, correlation)

    def all_reduce(self, pid: int, start: int, end: int, *, size: int = 1 << 20, communicator: int = 9,
                   device: int = 0) -> None:
        """An all-reduce kernel with NCCL's range and payload around its launch."""
        self.collective(pid, start, end, "AllReduce", size=size, communicator=communicator, device=device)

    def collective(self, pid: int, start: int, end: int, operation: str, *, size: int = 1 << 20, communicator: int = 9,
                   device: int = 0) -> None:
        """The same of any collective; size as NCCL counts it."""
        self.kernel(pid, start, end, ALL_REDUCE.replace("AllReduce", operation), device=device, stream=17)
        self.nvtx(pid, start - 3000, start - 500, f"nccl{operation}", registered=True, blob=payload(communicator, size))

    def gpu(self, gpu: int, ordinal: int, pid: int) -> None:
        """Which physical GPU a process's ordinal is."""
        self.row("TARGET_INFO_CUDA_DEVICE", "gpuId,cudaId,pid", gpu, ordinal, pid)

    def write(self, path: Path, version: str | None = "3.20.3", meta: str = "META_DATA_EXPORT",
              suffix: dict[str, str] | None = None) -> Path:
        """Write the database; suffix renames tables (`{"NVTX_EVENTS": "_V2"}`)."""
        if version is not None:
            self.row(meta, "name,value", "EXPORT_SCHEMA_VERSION", version)
        for field_name, offset in (("NCCL communicator ID", None), ("Message size [bytes]", 8)):
            self.row("NVTX_PAYLOAD_SCHEMA_ENTRIES", 'domainId,schemaId,idx,name,"offset"', 1, _ALL_REDUCE_SCHEMA, 0,
                     field_name, offset)
        for number, text in enumerate(self.strings, 1):
            self.row("StringIds", "id,value", number, text)
        with sqlite3.connect(path) as db:
            for table, (columns, rows) in self.tables.items():
                named = table + (suffix or {}).get(table, "")
                db.execute(f'CREATE TABLE "{named}" ({columns})')
                marks = ",".join("?" * (columns.count(",") + 1))
                db.executemany(f'INSERT INTO "{named}" VALUES ({marks})', rows)  # noqa: S608 - names are the tests' own
        db.close()
        return path


def two_ranks(pids: Sequence[int] = (10, 11), collectives: int = 4, late_ns: int = 0) -> Export:
    """Two ranks, each on its own GPU: per collective 50 µs of compute and a 100 µs all-reduce; rank 1 comes late."""
    made = Export()
    for rank, pid in enumerate(pids):
        made.gpu(rank, rank, pid)
        for k in range(collectives):
            begin = 1_000_000 + k * 300_000
            made.kernel(pid, begin, begin + 50_000, device=rank)
            start = begin + 60_000 + rank * late_ns
            made.all_reduce(pid, start, begin + 160_000 + late_ns, device=rank)
    return made


def kineto(path: Path, events: list[dict[str, object]], **metadata: object) -> Path:
    """A torch.profiler file with those events."""
    path.write_text(json.dumps({"schemaVersion": 1, **metadata, "traceEvents": events, "traceName": path.name}))
    return path


def kineto_rank(rank: int, world: int = 2, late_us: float = 0.0, name: str = ALL_REDUCE) -> list[dict[str, object]]:
    """Events of one rank: a step with a kernel, a launch and an all-reduce that carries its metadata."""
    def event(category: str, text: str, start: float, length: float, **args: object) -> dict[str, object]:
        return {"ph": "X", "cat": category, "name": text, "pid": 40 + rank, "tid": 1, "ts": start, "dur": length,
                "args": args}

    start = 200.0 + late_us
    return [event("user_annotation", "ProfilerStep#3", 90.0, 400.0),
            event("cuda_runtime", "cudaLaunchKernel", 100.0, 5.0, correlation=1),
            event("kernel", "gemm", 110.5, 50.25, device=rank, stream=7, correlation=1),
            event("cuda_runtime", "cudaLaunchKernel", 170.0, 5.0, correlation=2),
            {**event("kernel", name, start, 300.0 - start, device=rank, stream=9, correlation=2, grid=[4, 1, 1], **{
                "Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "BFloat16",
                "Process Group Name": "0", "Process Group Ranks": list(range(world))})},
            event("cuda_runtime", "cudaDeviceSynchronize", 300.0, 20.0, correlation=3)]
