"""Small integer codes for big, few identifiers, and columns that grow by chunks in little memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]


class Codes:
    """Numbers identifiers in the order they are first seen: 0, 1, 2, ..."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self._sorted = np.empty(0, np.int64)
        self._code = np.empty(0, np.int32)

    def encode(self, values: Int64) -> Int32:
        """The code of each value; unseen values are added."""
        if len(values) == 0:
            return np.empty(0, np.int32)
        at = np.searchsorted(self._sorted, values)
        missing = at == len(self._sorted)
        if len(self._sorted):
            missing |= self._sorted[np.minimum(at, len(self._sorted) - 1)] != values
        if missing.any():
            self._extend(np.unique(values[missing]))
            at = np.searchsorted(self._sorted, values)
        return self._code[at]

    def _extend(self, fresh: Int64) -> None:
        self.values += [int(v) for v in fresh]
        everything = np.array(self.values, np.int64)
        order = np.argsort(everything, kind="stable")
        self._sorted, self._code = everything[order], order.astype(np.int32)


class Growing:
    """One column that arrives in chunks and is kept in the narrow type it needs."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._dtype = dtype
        self._parts: list[NDArray[np.generic]] = []

    def add(self, part: NDArray[np.int64] | NDArray[np.int32]) -> None:
        """Append a chunk; it is copied, so the wide chunk it came from can be freed."""
        self._parts.append(part.astype(self._dtype))

    def int64(self) -> Int64:
        """The whole column as 64-bit integers; the parts are given up."""
        return self._joined().astype(np.int64, copy=False)

    def int32(self) -> Int32:
        """The whole column as 32-bit integers; the parts are given up."""
        return self._joined().astype(np.int32, copy=False)

    def uint32(self) -> NDArray[np.uint32]:
        """The whole column as unsigned 32-bit integers; the parts are given up."""
        return self._joined().astype(np.uint32, copy=False)

    def _joined(self) -> NDArray[np.generic]:
        joined = np.concatenate(self._parts) if self._parts else np.empty(0, self._dtype)
        self._parts = []
        return joined
