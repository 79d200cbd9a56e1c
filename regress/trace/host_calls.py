"""Which runtime calls are kept: those that synchronise, allocate or free, and those that wait for what they copy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from regress.trace.codes import Growing
from regress.trace.names import CallKind, call_kind, returns_early
from regress.trace.timeline import COPY_KINDS, Calls, Copies, CopyKind

Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]

_AT_ONCE_NS = 20_000
"""torch waits as soon as the call that copies has returned: within 5.9 us in 77 waits under nsys (the sample traces
`mps/pageable`, `nsys-ai_mfu_2gpu_before`, `nsys-ai_h100_2gpu_1s`), within 2 us in 24 of the eight-rank DLRM run."""


def call_keys(process: Int32, correlation: Int64) -> Int64:
    """One number for a call: correlation ids count the calls of a process, in 32 bits."""
    return process.astype(np.int64) << 32 | correlation & 0xFFFFFFFF


class HostCopies:
    """The copies between host and device, by the key of the call that made them."""

    def __init__(self, copies: Copies, correlation: Int64) -> None:
        codes = [COPY_KINDS.index(kind) for kind in (CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST)]
        rows = np.flatnonzero(np.isin(copies.kind, codes) & (correlation >= 0))
        keys = call_keys(copies.process[rows], correlation[rows])
        order = np.argsort(keys, kind="stable")
        self._keys, rows = keys[order], rows[order]
        self._pageable, self._upload = copies.pageable[rows], copies.kind[rows] == codes[0]

    def __len__(self) -> int:
        return len(self._keys)

    def asks_for(self, name: str) -> bool:
        """Whether to read calls of that name: those that copy need not all be, and a trace may have as many as kernels.

        Where all host memory is pinned, asynchronous calls wait for nothing.
        """
        if call_kind(name) is not CallKind.COPY:
            return True
        return bool(self._pageable.any()) if returns_early(name) else len(self) > 0

    def copied(self, keys: Int64) -> tuple[Bool, Bool, Bool]:
        """For each call whether it made one of the copies, one to pageable memory, and one from pageable memory."""
        if len(self) == 0:
            none = np.zeros(len(keys), np.bool_)
            return none, none, none
        at = np.minimum(np.searchsorted(self._keys, keys), len(self) - 1)
        hit: Bool = self._keys[at] == keys
        return hit, hit & self._pageable[at] & ~self._upload[at], hit & self._pageable[at] & self._upload[at]


class HostCalls:
    """Gathers runtime calls by chunks, and of those that copy only the ones that wait for it (`CallKind.COPY`).

    names: the texts of the calls by the number that stands for each.
    """

    def __init__(self, names: Mapping[int, str], copies: HostCopies) -> None:
        self._copying = [code for code, text in names.items() if call_kind(text) is CallKind.COPY]
        self._early = [code for code in self._copying if returns_early(names[code])]
        self._copies = copies
        self._start, self._end = Growing(np.int64), Growing(np.int64)
        self._process, self._name, self._thread = Growing(np.int32), Growing(np.int32), Growing(np.int64)
        self._uploading = Growing(np.int8)
        # Of the calls between host and device, kept or not: what came last on a thread.
        self._copied, self._copier, self._uploaded = Growing(np.int64), Growing(np.int64), Growing(np.int8)

    def add(self, start: Int64, end: Int64, *, process: Int32, thread: Int64, name: Int32, correlation: Int64) -> None:
        """One chunk of calls that synchronise, allocate, free or copy."""
        copying = np.isin(name, self._copying)
        copied, downloaded, uploaded = (made & copying for made in self._copies.copied(call_keys(process, correlation)))
        kept = ~copying | downloaded | (copied & ~np.isin(name, self._early))
        uploads = uploaded.astype(np.int32)
        for column, part, rows in (
                (self._start, start, kept), (self._end, end, kept), (self._process, process, kept),
                (self._name, name, kept), (self._thread, thread, kept), (self._uploading, uploads, kept),
                (self._copied, end, copied), (self._copier, thread, copied), (self._uploaded, uploads, copied)):
            column.add(part[rows])

    def calls(self) -> Calls:
        """What was kept; the columns are given up."""
        start, thread = self._start.int64(), self._thread.int64()
        follows = _follow(start, thread, self._copied.int64(), self._copier.int64(), self._uploaded.int32() > 0)
        return Calls(start, self._end.int64(), self._process.int32(), self._name.int32(), thread,
                     (self._uploading.int32() > 0) | follows)


def _follow(start: Int64, thread: Int64, copied: Int64, copier: Int64, uploaded: Bool) -> Bool:
    """For each call whether what its thread copied last, until just before, came from pageable memory.

    copied, copier, uploaded: when calls that copy ended, on which thread, and whether it was from such memory.
    """
    found = np.zeros(len(start), np.bool_)
    for one in np.unique(copier[uploaded]).tolist():
        rows, mine = np.flatnonzero(copier == one), np.flatnonzero(thread == one)
        rows = rows[np.argsort(copied[rows], kind="stable")]
        last = np.searchsorted(copied[rows], start[mine], side="right") - 1
        before = rows[np.maximum(last, 0)]
        found[mine] = (last >= 0) & uploaded[before] & (start[mine] - copied[before] <= _AT_ONCE_NS)
    return found
