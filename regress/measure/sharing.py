"""How two ranks on one GPU share it, read from what they measured: side by side, or in turns."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Mapping, Sequence

SLICE_SECONDS = 0.00225
"""Turn of a process on an H200 whose GPU is time-sliced, measured; without the multi-process service."""

_SMALL_BYTES = 1 << 20
_MINIMUM = 10


class GpuSharing(enum.Enum):
    """mps: kernels of both ranks run side by side. time-sliced: in turns, and no duration means anything."""

    MPS = "mps"
    TIME_SLICED = "time-sliced"


def sharing_from_durations(seconds: Mapping[int, Sequence[float]]) -> GpuSharing | None:
    """How the GPU was shared, from durations of two-rank collectives by message size in bytes; None if undecidable.

    Neither rank of a collective can end before the other has had the GPU. In turns, even the smallest message so lasts
    about a turn; side by side it lasts the transport's latency, well below. Small messages therefore decide. With
    large ones alone, durations gather at two or more multiples of a turn when sliced; at a single one nothing is
    known, since any duration is a multiple of something.
    """
    small = [value for size, series in seconds.items() if size <= _SMALL_BYTES for value in series]
    if len(small) >= _MINIMUM:
        quarter = statistics.quantiles(small, n=4)[0]
        if quarter < 0.4 * SLICE_SECONDS:
            return GpuSharing.MPS
        if quarter > 0.8 * SLICE_SECONDS:
            return GpuSharing.TIME_SLICED
    large = [value for size, series in seconds.items() if size > _SMALL_BYTES for value in series]
    return GpuSharing.TIME_SLICED if _gathers_at_multiples(large) else None


def _gathers_at_multiples(seconds: Sequence[float]) -> bool:
    """Whether nine in ten durations lie within 6 % of a turn of its multiples, at least a tenth on each of two."""
    if len(seconds) < _MINIMUM:
        return False
    for percent in range(92, 109, 2):  # the turn is not the same on every driver
        turn = SLICE_SECONDS * percent / 100
        near = [round(value / turn) for value in seconds if abs(value / turn - round(value / turn)) < 0.06]
        levels = [level for level in set(near) if level > 0 and near.count(level) >= len(seconds) / 10]
        if len(near) >= 0.9 * len(seconds) and len(levels) >= 2:
            return True
    return False
