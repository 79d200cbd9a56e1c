"""What ranks print about trouble in communication: warnings of torch.distributed, time-outs, lost connections.

Texts as torch 2.4 to 2.14 prints them (torch/csrc/distributed/c10d, torch/nn/parallel/distributed.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

GRAVE = re.compile(
    r"Watchdog caught collective operation timeout|operations have failed or timed out|heartbeat monitor timed out|"
    r"nccl(?:Remote|System|Internal|UnhandledCuda)Error|unhandled (?:system|cuda|remote process) error|"
    r"Collective.*timed out|Socket Timeout|Timed out (?:waiting|after)|desync", re.IGNORECASE)
"""Something that ended, or held up, a collective."""

WORTH_KNOWING = re.compile(
    r"devices used by this process are currently unknown|Guessing device ID based on global rank|"
    r"destroy_process_group\(\) was not called|Grad strides do not match bucket view strides|"
    r"find_unused_parameters=True was specified|Connection (?:reset|closed) by peer|"
    r"(?:connect|socket|send|recv)\w*.{0,60}\bretry(?:ing)?\b", re.IGNORECASE)
"""Something that costs time or hides a fault."""

_PREFIX = re.compile(r"^(?:\[rank\d+\]:?\s*|\[[WEI]\S*[^\]]*\]\s*|\d{4}-\d\d-\d\d[ T][\d:.,]+\s*)+")
_LONGEST = 300


def trouble(lines: Iterable[str]) -> tuple[str, ...]:
    """The lines that speak of trouble, without time stamps and rank prefixes, each text once."""
    found: dict[str, None] = {}
    for line in lines:
        if GRAVE.search(line) or WORTH_KNOWING.search(line):
            found.setdefault(_PREFIX.sub("", line.strip())[:_LONGEST])
    return tuple(found)
