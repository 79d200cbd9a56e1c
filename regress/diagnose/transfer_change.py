"""Messages of one size that move slower than in the run compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.diagnose import CRITICAL, MEDIUM, SHARE, WARNING, Need, Rule
from regress.record import Diagnosis
from regress.trace.messages import MessageSize, message_sizes
from regress.units import format_seconds, format_size

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_SLOWER, _MUCH_SLOWER = 0.10, 0.50
_ENOUGH = 5
_WORTH = 0.01
"""Part of all transfer time that a size must have lost: barriers of 4 bytes vary by their own size and matter not."""


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    """The message size that lost most time in all, among those seen often enough in both runs."""
    if against is None:
        return []
    before = {(row.operation, row.size_bytes, row.ranks): row for row in message_sizes(against)}
    slower: list[tuple[float, MessageSize, MessageSize]] = []
    rows = message_sizes(analysis)
    total = sum(row.count * row.transfer_seconds for row in rows)
    for row in rows:
        old = before.get((row.operation, row.size_bytes, row.ranks))
        if old is not None and row.size_bytes is not None and min(row.count, old.count) >= _ENOUGH:
            change = row.transfer_seconds / old.transfer_seconds - 1
            lost = row.count * (row.transfer_seconds - old.transfer_seconds)
            if change >= _SLOWER and lost >= _WORTH * total:
                slower.append((change, row, old))
    if not slower:
        return []
    change, row, old = max(slower, key=lambda one: one[1].count * (one[1].transfer_seconds - one[2].transfer_seconds))
    fewer = row.channels is not None and old.channels is not None and row.channels < old.channels
    return [Diagnosis(
        "transfer_change", CRITICAL if change >= _MUCH_SLOWER else WARNING,
        {"operation": row.operation, "message_bytes": row.size_bytes, "transfer_seconds": row.transfer_seconds,
         "transfer_seconds_before": old.transfer_seconds, "change": change, "sizes_slower": len(slower),
         "channels": row.channels, "channels_before": old.channels, SHARE: min(change, 1.0)},
        f"{row.operation} of {format_size(row.size_bytes or 0)} takes {format_seconds(row.transfer_seconds)} where it "
        f"took {format_seconds(old.transfer_seconds)} ({change:+.0%}), waiting left out"
        + (f"; it uses {row.channels} channels instead of {old.channels}" if fewer else ""),
        "compare NCCL's version, NCCL_* variables and the links between the GPUs of the two runs",
        confidence=MEDIUM)]


RULE = Rule("transfer_change", "messages of the same size move slower than in the run compared with",
            "transfer per operation and size, matched across ranks, so that late ranks do not count",
            _check, needs=(Need.BEFORE, Need.RANKS, Need.SIZES, Need.DEVICE, Need.DURATIONS))
