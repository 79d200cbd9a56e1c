"""NCCL reduced to one channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.diagnose import SHARE, WARNING, Need, Rule, follows
from regress.metrics.overlap import EXPOSED
from regress.record import Diagnosis
from regress.trace.messages import message_sizes
from regress.units import format_size

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_BIG_BYTES = 1 << 20
"""From here NCCL splits a message over channels: the healthy samples use 2 (sockets) to 24 (NVLink)."""


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    big = [row for row in message_sizes(analysis) if row.size_bytes is not None and row.size_bytes >= _BIG_BYTES
           and row.channels is not None]
    if not big or max(row.channels or 0 for row in big) > 1:
        return []
    exposed = EXPOSED.from_trace(analysis) if EXPOSED.from_trace else None
    return [Diagnosis(
        "few_channels", WARNING,
        {"operation": big[0].operation, "message_bytes": big[0].size_bytes, "channels": 1,
         "transfer_seconds": big[0].transfer_seconds, SHARE: exposed.value if exposed else 0.0},
        f"NCCL moves messages of {format_size(big[0].size_bytes or 0)} over one channel, where it takes at least two",
        "unset NCCL_MAX_NCHANNELS and NCCL_MAX_CTAS, and look at the channels in the log of NCCL_DEBUG=INFO")]


RULE = Rule("few_channels", "large messages go over a single channel",
            "thread blocks of NCCL's kernels, one a channel; NCCL_MAX_NCHANNELS=1 costs 5 to 40 % from 1 MiB up "
            "(measured)", _check, needs=(Need.SIZES, Need.RANKS, Need.DEVICE),
            explains=follows("transfer_change", "slow_link", "exposed_comm"))
