"""Messages of one size that move slower than in the run compared with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regress.diagnose import CRITICAL, MEDIUM, SHARE, WARNING, Need, Rule
from regress.record import Diagnosis
from regress.trace.budget import exposed_shares
from regress.trace.messages import MessageSize, message_sizes, sizes_of
from regress.trace.names import OPERATIONS
from regress.units import format_seconds, format_size

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_SLOWER, _MUCH_SLOWER = 0.10, 0.50
_ENOUGH = 5
_WORTH = 0.01
"""Part of all transfer time that a size must have lost: barriers of 4 bytes vary by their own size and matter not."""


@dataclass(frozen=True, slots=True)
class _Slower:
    """A size that lost time against `old`: seconds over the whole trace, and inside steps (the same without steps)."""

    row: MessageSize
    old: MessageSize
    lost: float
    lost_in_steps: float

    @property
    def change(self) -> float:
        """Relative change of the transfer."""
        return self.row.transfer_seconds / self.old.transfer_seconds - 1


def _in_steps(analysis: Analysis) -> Counter[tuple[str, int, int]]:
    """Matched collectives launched inside steps, by operation, size and ranks; all of them where there are no steps."""
    counts: Counter[tuple[str, int, int]] = Counter()
    for group in analysis.matching.groups:
        chosen = group.in_steps if analysis.steps else slice(None)
        counts.update((OPERATIONS[operation], size, len(group.ranks)) for operation, size in
                      zip(group.operation[chosen].tolist(), sizes_of(analysis, group)[chosen].tolist(), strict=True))
    return counts


def _slower(analysis: Analysis, against: Analysis) -> list[_Slower]:
    """The sizes that lost enough, among those seen often enough in both runs."""
    before = {(row.operation, row.size_bytes, row.ranks): row for row in message_sizes(against)}
    rows, inside = message_sizes(analysis), _in_steps(analysis)
    total = sum(row.count * row.transfer_seconds for row in rows)
    found = []
    for row in rows:
        old = before.get((row.operation, row.size_bytes, row.ranks))
        if old is None or row.size_bytes is None or not old.transfer_seconds or min(row.count, old.count) < _ENOUGH:
            continue
        each = row.transfer_seconds - old.transfer_seconds
        if each >= _SLOWER * old.transfer_seconds and row.count * each >= _WORTH * total:
            found.append(_Slower(row, old, row.count * each,
                                 inside[row.operation, row.size_bytes, row.ranks] * each))
    return found


def _cost(analysis: Analysis, lost: float) -> float:
    """Part of the window that so many seconds are, at most what communication holds up: what is hidden costs nothing.

    Of the rank that loses most.
    """
    exposed = exposed_shares(analysis)
    return max((min(lost * 1e9 / (lane.in_window.span_ns or lane.window.host.total), exposed[lane.rank or 0])
                for lane in analysis.lanes if (lane.rank or 0) in exposed), default=0.0)


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    """Told of the size that lost most time, inside steps where there are any; the cost is that of all such sizes."""
    found = _slower(analysis, against) if against is not None else []
    if not found:
        return []
    worst = max(found, key=lambda one: (one.lost_in_steps, one.lost))
    row, old, change = worst.row, worst.old, worst.change
    fewer = row.channels is not None and old.channels is not None and row.channels < old.channels
    return [Diagnosis(
        "transfer_change", CRITICAL if change >= _MUCH_SLOWER else WARNING,
        {"operation": row.operation, "message_bytes": row.size_bytes, "transfer_seconds": row.transfer_seconds,
         "transfer_seconds_before": old.transfer_seconds, "change": change, "sizes_slower": len(found),
         "channels": row.channels, "channels_before": old.channels,
         SHARE: _cost(analysis, sum(one.lost_in_steps for one in found))},
        f"{row.operation} of {format_size(row.size_bytes or 0)} takes {format_seconds(row.transfer_seconds)} where it "
        f"took {format_seconds(old.transfer_seconds)} ({change:+.0%}), waiting left out"
        + (f"; it uses {row.channels} channels instead of {old.channels}" if fewer else ""),
        "compare NCCL's version, NCCL_* variables and the links between the GPUs of the two runs",
        confidence=MEDIUM)]


RULE = Rule("transfer_change", "messages of the same size move slower than in the run compared with",
            "transfer per operation and size, matched across ranks, so that late ranks do not count; it costs what "
            "they lose inside steps, at most what communication holds up",
            _check, needs=(Need.BEFORE, Need.RANKS, Need.SIZES, Need.DEVICE, Need.DURATIONS))
