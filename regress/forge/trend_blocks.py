"""A trend in one line of block characters: readable in any viewer, with nothing to load."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
MOST_POINTS = 30


def trend_blocks(values: Sequence[float]) -> str:
    """The last 30 values, oldest first, lowest to highest block; values that hardly differ (1 %) stay flat."""
    recent = [value for value in values if math.isfinite(value)][-MOST_POINTS:]
    if not recent:
        return ""
    low, high = min(recent), max(recent)
    # Noise stretched over the full height would look like a story.
    span = max(high - low, abs(high) * 0.01)
    if span == 0:
        return BLOCKS[0] * len(recent)
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int((value - low) / span * len(BLOCKS)))] for value in recent)
