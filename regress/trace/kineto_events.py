"""Sorts the events of one torch.profiler file into columns.

Stamps are microseconds, whole in older files and with three decimals (nanoseconds) in newer ones, which also give a
base to add. They are parsed as text: a double cannot hold nanoseconds since 1970.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from regress.trace.event_stream import Event
from regress.trace.host_ranges import RANK_MARK, host_collective, is_step, kept_by
from regress.trace.names import CallKind, call_kind, is_comm_kernel, operation
from regress.trace.timeline import COPY_KINDS, CopyKind, ReadOptions

_COPY_NAMES = (("HtoD", CopyKind.HOST_TO_DEVICE), ("DtoH", CopyKind.DEVICE_TO_HOST), ("PtoP", CopyKind.PEER),
               ("DtoD", CopyKind.DEVICE_TO_DEVICE))
_BYTES = {"float": 4, "float32": 4, "int": 4, "int32": 4, "double": 8, "float64": 8, "long": 8, "int64": 8, "half": 2,
          "float16": 2, "bfloat16": 2, "short": 2, "int16": 2, "byte": 1, "uint8": 1, "char": 1, "int8": 1, "bool": 1,
          "float8_e4m3fn": 1, "float8_e5m2": 1}
_RUNTIME = frozenset(("cuda_runtime", "cuda_driver", "runtime"))
_HOST_COLLECTIVE = re.compile(r"(?:gloo|mpi|ucc):(\w+)")


class _Args(msgspec.Struct, rename={
        "collective": "Collective name", "sent": "In msg nelems", "received": "Out msg nelems",
        "group": "Process Group Name", "members": "Process Group Ranks", "shapes": "Input Dims",
        "types": "Input type"}):
    """Arguments of GPU events and runtime calls that matter; Kineto fills the collective's since torch 2.3."""

    device: int | str | None = None
    stream: int | str | None = None
    correlation: int | None = None
    bytes: int | float | None = None
    dtype: str | None = None
    collective: str | None = None
    sent: int | float | None = None
    received: int | float | None = None
    group: str | None = None
    members: str | list[int] | None = None
    grid: list[int] | None = None
    shapes: list[msgspec.Raw] | None = None
    types: list[str] | None = None


_DECODE_ARGS = msgspec.json.Decoder(_Args, strict=False)


def to_ns(raw: msgspec.Raw) -> int:
    """Microseconds as JSON text to whole nanoseconds, without a float in between."""
    whole, dot, fraction = bytes(raw).strip(b'"').partition(b".")
    if not dot:
        return int(whole) * 1000 if whole.lstrip(b"-").isdigit() else round(float(whole) * 1000)
    if not fraction.isdigit():
        return round(float(bytes(raw)) * 1000)
    below = int(fraction[:3].ljust(3, b"0")) + (fraction[3:4] >= b"5")
    return int(whole) * 1000 + (-below if whole.startswith(b"-") else below)


@dataclass(slots=True)
class Collected:
    """Columns as they grow, eight bytes a value.

    kernels: start, end, device, stream, name, correlation. comm: kernel row, operation, communicator, bytes, grid.
    copies: start, end, device, bytes, kind, pageable, correlation. calls: start, end, name, correlation, thread.
    launches, and where captures of CUDA graphs begin and end: start, correlation, name, thread.
    ranges: by text, steps under "". host_comm: collectives that a CPU backend named, own_comm: ranges that our
    workloads set around any backend's; start, end, operation, bytes. foreign: the accelerator the trace is of, where it
    is none of NVIDIA's.
    """

    names: dict[str, int] = field(default_factory=dict)
    kernels: tuple[array[int], ...] = field(default_factory=lambda: tuple(array("q") for _ in range(6)))
    comm: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    copies: tuple[array[int], ...] = field(default_factory=lambda: tuple(array("q") for _ in range(7)))
    calls: tuple[array[int], ...] = field(default_factory=lambda: tuple(array("q") for _ in range(5)))
    launches: tuple[array[int], ...] = field(default_factory=lambda: tuple(array("q") for _ in range(4)))
    ranges: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    host_comm: list[tuple[int, int, int, int]] = field(default_factory=list)
    own_comm: list[tuple[int, int, int, int]] = field(default_factory=list)
    overhead: list[tuple[int, int]] = field(default_factory=list)
    pids: dict[int, int] = field(default_factory=dict)
    mark: tuple[int, int] | None = None
    foreign: str = ""

    def name(self, text: str) -> int:
        """The number of a text, given when it is first seen."""
        return self.names.setdefault(text, len(self.names))


class Collector:
    """Sorts events into columns; one per file."""

    def __init__(self, options: ReadOptions) -> None:
        self.out = Collected()
        self._options = options
        self._comm: dict[str, bool] = {}
        self._kinds: dict[str, CallKind | None] = {}

    def add(self, event: Event) -> None:
        """File one event under what it is; those no metric needs are dropped."""
        category = event.cat
        if category is None or event.ph != "X":
            return
        if category in ("kernel", "Kernel"):
            self._kernel(event)
        elif category in _RUNTIME or category == "Runtime":
            self._call(event)
        elif category in ("gpu_memcpy", "Memcpy"):
            self._copy(event)
        elif category == "user_annotation":
            self._annotation(event)
        elif category in ("overhead", "Overhead"):
            start = to_ns(event.ts)
            self.out.overhead.append((start, start + to_ns(event.dur)))
        elif category.startswith(("mtia", "hpu", "xpu")):
            self.out.foreign = category.split("_")[0].upper()

    def _kernel(self, event: Event) -> None:
        args = _DECODE_ARGS.decode(event.args)
        name = event.name
        if name not in self._comm:
            self._comm[name] = is_comm_kernel(name, self._options.custom_comm)
        start = to_ns(event.ts)
        row = (start, start + to_ns(event.dur), _number(args.device), _number(args.stream), self.out.name(name),
               -1 if args.correlation is None else args.correlation)
        for column, value in zip(self.out.kernels, row, strict=True):
            column.append(value)
        if self._comm[name]:
            code = operation((args.collective or "").replace("_", "")) or operation(name)
            self.out.comm.append((len(self.out.kernels[0]) - 1, code, _communicator(args), _size(args),
                                  args.grid[0] if args.grid else 0))

    def _call(self, event: Event) -> None:
        name = event.name
        if name not in self._kinds:
            self._kinds[name] = call_kind(name)
            if name.startswith("hip"):
                self.out.foreign = "AMD"
        kind = self._kinds[name]
        if kind is None:
            return
        start = to_ns(event.ts)
        if isinstance(event.pid, int):
            self.out.pids[event.pid] = self.out.pids.get(event.pid, 0) + 1
        launching = kind in (CallKind.LAUNCH, CallKind.CAPTURE_BEGIN, CallKind.CAPTURE_END)
        correlation = None
        if launching or kind is CallKind.COPY:
            correlation = _DECODE_ARGS.decode(event.args).correlation
        key = -1 if correlation is None else correlation
        thread = _number(event.tid)
        row: tuple[int, ...] = (start, start + to_ns(event.dur), self.out.name(name), key, thread)
        columns: Sequence[array[int]] = self.out.calls
        if launching:
            row, columns = (start, key, self.out.name(name), thread), self.out.launches
        for column, value in zip(columns, row, strict=True):
            column.append(value)

    def _copy(self, event: Event) -> None:
        args = _DECODE_ARGS.decode(event.args)
        start, name = to_ns(event.ts), event.name
        kind = next((kind for text, kind in _COPY_NAMES if text in name), CopyKind.OTHER)
        pageable = kind in (CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST) and "Pageable" in name
        row = (start, start + to_ns(event.dur), _number(args.device), int(args.bytes or 0), COPY_KINDS.index(kind),
               int(pageable), -1 if args.correlation is None else args.correlation)
        for column, value in zip(self.out.copies, row, strict=True):
            column.append(value)

    def _annotation(self, event: Event) -> None:
        name, start = event.name, to_ns(event.ts)
        end = start + to_ns(event.dur)
        if isinstance(event.pid, int):
            self.out.pids[event.pid] = self.out.pids.get(event.pid, 0) + 1
        mark, sized = RANK_MARK.fullmatch(name), host_collective(name)
        collective = _HOST_COLLECTIVE.fullmatch(name)
        if mark:
            self.out.mark = int(mark.group(1)), int(mark.group(2))
        if is_step(name, self._options):
            self.out.ranges.setdefault("", []).append((start, end))
        if kept_by(name, self._options):  # and what it is besides, it stays
            self.out.ranges.setdefault(name, []).append((start, end))
        if collective:
            size = _shape_bytes(_DECODE_ARGS.decode(event.args)) if bytes(event.args) else -1
            self.out.host_comm.append((start, end, operation(collective.group(1).replace("_", "")), size))
        if sized:
            self.out.own_comm.append((start, end, *sized))


def _number(value: int | str | None) -> int:
    return value if isinstance(value, int) else int(value) if value is not None and value.lstrip("-").isdigit() else -1


def _communicator(args: _Args) -> int:
    """A number for the process group, equal on all its ranks; 0 where the trace does not name it."""
    if args.group is None:
        return 0
    text = f"{args.group}|{args.members}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") | 1


def _size(args: _Args) -> int:
    """Bytes per call as NCCL counts them: received by a reduce-scatter, sent by everything else; -1 where unknown."""
    width = _BYTES.get((args.dtype or "").lower().removeprefix("torch."))
    scattered = "reduce_scatter" in (args.collective or "")
    elements = args.received if scattered else args.sent
    return -1 if width is None or elements is None else int(elements) * width


def _shape_bytes(args: _Args) -> int:
    if not args.shapes or not args.types:
        return -1
    width = _BYTES.get(args.types[0].lower().removeprefix("c10::"))
    try:
        shape = msgspec.json.decode(args.shapes[0], type=list[int])
    except msgspec.DecodeError:
        return -1
    return -1 if width is None else int(np.prod(shape, dtype=np.int64)) * width
