"""Reads what torch's C++ writes as pickle without unpickling: plain containers, texts and numbers, and nothing else.

Python's own unpickler runs whatever a file names. Here the standard library's disassembler only lists the file's
instructions, and the few that build plain data are carried out; at the first other one the file is refused. So there
is nothing in it that could be run.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

_MADE: dict[str, Callable[[], Any]] = {"NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
                                       "EMPTY_DICT": dict, "EMPTY_LIST": list}
_VALUES = frozenset(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"))
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


def read_plain(content: bytes) -> Any:
    """The object in the file. ValueError for a damaged file and for anything that is no plain data.

    A container that is used at two places is None at the second: a small file cannot unfold into a large object, nor
    hold itself.
    """
    machine = _Machine()
    for code, argument, at in pickletools.genops(content):
        if code.name == "STOP":
            return machine.end()
        try:
            machine.step(code.name, argument)
        except (IndexError, KeyError, TypeError) as error:
            raise ValueError(f"damaged at byte {at}: {code.name}") from error
    raise ValueError("it does not end")


class _Machine:
    """The stack and the memo of one file."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def end(self) -> Any:
        if len(self.stack) != 1 or self.stack[0] is _MARK:
            raise ValueError("damaged at its end")
        return self.stack[0]

    def step(self, name: str, argument: Any) -> None:
        """One instruction."""
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _MADE:
            stack.append(_MADE[name]())
        elif name in _VALUES:
            stack.append(argument)
        elif name in _TUPLES:
            self._tuple(_TUPLES[name])
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = self._since_mark() if name == "APPENDS" else [self._pop()]
            _of(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._since_mark() if name == "SETITEMS" else [self._pop(), self._pop()][::-1]
            self._set(items)
        elif name in ("BINPUT", "LONG_BINPUT"):
            value = stack[-1]
            self.memo[argument] = value if not isinstance(value, dict | list | tuple) else None
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        else:
            raise ValueError(f"{name} is no plain data")

    def _pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise IndexError
        return value

    def _tuple(self, length: int) -> None:
        items = [self._pop() for _ in range(length)]
        self.stack.append(tuple(reversed(items)))

    def _since_mark(self) -> list[Any]:
        items = []
        while (value := self.stack.pop()) is not _MARK:
            items.append(value)
        items.reverse()
        return items

    def _set(self, items: list[Any]) -> None:
        target = _of(self.stack[-1], dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int):
                raise TypeError
            target[key] = value


def _of(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value
