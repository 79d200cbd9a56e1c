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
        self._awaited = copies.pageable[rows] & (copies.kind[rows] == codes[1])

    def __len__(self) -> int:
        return len(self._keys)

    def copied(self, keys: Int64) -> tuple[Bool, Bool]:
        """For each call whether it made one of the copies, and one from the device to pageable memory."""
        if len(self) == 0:
            return np.zeros(len(keys), np.bool_), np.zeros(len(keys), np.bool_)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self) - 1)
        hit: Bool = self._keys[at] == keys
        return hit, hit & self._awaited[at]


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

    def add(self, calls: Calls, correlation: Int64) -> None:
        """One chunk of calls that synchronise, allocate, free or copy, with the correlation id of each."""
        copied, awaited = self._copies.copied(call_keys(calls.process, correlation))
        kept = ~np.isin(calls.name, self._copying) | awaited | (copied & ~np.isin(calls.name, self._early))
        for column, part in ((self._start, calls.start), (self._end, calls.end), (self._process, calls.process),
                             (self._name, calls.name), (self._thread, calls.thread)):
            column.add(part[kept])

    def calls(self) -> Calls:
        """What was kept; the columns are given up."""
        return Calls(self._start.int64(), self._end.int64(), self._process.int32(), self._name.int32(),
                     self._thread.int64())
