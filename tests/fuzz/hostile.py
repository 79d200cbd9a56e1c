"""Bytes that nobody meant: a good file with some of it changed, cut, repeated or torn out."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hypothesis import strategies as st

PATIENCE_SECONDS = 60
ODD_JSON = ("null", "-1", "0", "1e999", "NaN", "18446744073709551616", '""', '"\\ud800"', "[]", "{}", "true", "1.5",
            '"9" ', "-9223372036854775809", "[[[[]]]]")
"""Values that a reader does not expect in most places."""


@st.composite
def damaged(draw: st.DrawFn, good: bytes, most_edits: int = 8) -> bytes:
    """The good bytes after a few edits."""
    content = bytearray(good)
    for _ in range(draw(st.integers(1, most_edits))):
        at = draw(st.integers(0, max(len(content) - 1, 0)))
        length = draw(st.sampled_from((1, 2, 4, 8, 64)))
        kind = draw(st.sampled_from(("replace", "insert", "delete", "repeat", "cut")))
        if kind == "replace":
            content[at:at + length] = draw(st.binary(min_size=length, max_size=length))
        elif kind == "insert":
            content[at:at] = draw(st.binary(max_size=length))
        elif kind == "delete":
            del content[at:at + length]
        elif kind == "repeat":
            content[at:at] = content[at:at + length] * draw(st.integers(1, 20))
        elif draw(st.booleans()):
            del content[at:]
    return bytes(content)


@contextmanager
def bounded() -> Iterator[None]:
    """Ends what hangs: no example takes a second, so a minute is no matter of how busy the machine is."""
    def late(_signal: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"not done after {PATIENCE_SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
