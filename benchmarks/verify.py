"""Values for a collective that have one right answer, on every rank and in every dtype, and the comparison with it.

Element i of rank r is an integer from 1 to m, (7i + 13r) mod m + 1. m is small enough for the sum over all ranks to be
exact in the dtype, whatever the order of adding; it is odd where it can be, so that a block shifted by a power of two
is seen; and no value is 0, so that a rank left out is seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.errors import EnvironmentUnfitError

from .operation import Check

if TYPE_CHECKING:
    import torch

_LARGEST_PERIOD = 61
_EXACT_INTEGERS = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "float64": 2**53, "int32": 2**31 - 1,
                   "int64": 2**63 - 1}
"""Largest n such that all integers up to n are exact: 2 to the bits of the significand (IEEE 754; bfloat16 has 8)."""


def dtype_named(name: str) -> torch.dtype:
    """The torch dtype of a case. Raises EnvironmentUnfitError for one that results cannot be verified in."""
    import torch

    if name not in _EXACT_INTEGERS:
        raise EnvironmentUnfitError(f"dtype {name!r}", accepted=", ".join(_EXACT_INTEGERS))
    found: torch.dtype = getattr(torch, name)
    return found


def period(dtype: str, world_size: int) -> int:
    """m of the pattern. Raises EnvironmentUnfitError when even ones would not add up exactly over so many ranks."""
    limit = _EXACT_INTEGERS[dtype]
    if world_size > limit:
        raise EnvironmentUnfitError(f"{world_size} ranks cannot be added exactly in {dtype}",
                                    accepted=f"at most {limit} ranks in {dtype}", next_step="use float32")
    longest = min(_LARGEST_PERIOD, limit // world_size)
    return longest - 1 if longest % 2 == 0 and longest > 2 else longest


def _values(rank: int, length: int) -> list[int]:
    return [(7 * i + 13 * rank) % length + 1 for i in range(length)]


def _tiled(values: list[int], like: torch.Tensor) -> torch.Tensor:
    import torch

    table = torch.tensor(values, dtype=like.dtype, device=like.device)
    return table.repeat(-(-like.numel() // len(values)))[:like.numel()]


def fill(tensor: torch.Tensor, dtype: str, rank: int, world_size: int) -> None:
    """Writes the values of `rank` into a flat tensor."""
    tensor.copy_(_tiled(_values(rank, period(dtype, world_size)), tensor))


def compare_sum(tensor: torch.Tensor, dtype: str, world_size: int) -> Check:
    """Compares a flat tensor with the sum of what `fill` gave all ranks."""
    length = period(dtype, world_size)
    each = [_values(rank, length) for rank in range(world_size)]
    return _compare(tensor, _tiled([sum(column) for column in zip(*each, strict=True)], tensor), 0)


def compare_gathered(tensor: torch.Tensor, dtype: str, world_size: int) -> Check:
    """Compares a flat tensor with what `fill` gave rank 0, 1, ... one after the other, in equal parts."""
    length = period(dtype, world_size)
    checked = wrong = 0
    problem: str | None = None
    for rank, part in enumerate(tensor.chunk(world_size)):
        check = _compare(part, _tiled(_values(rank, length), part), checked)
        checked, wrong, problem = checked + check.checked, wrong + check.wrong, problem or check.problem
    return Check(checked, wrong, problem)


def _compare(seen: torch.Tensor, right: torch.Tensor, offset: int) -> Check:
    differs = seen != right  # true for NaN too
    wrong = int(differs.sum().item())
    if not wrong:
        return Check(seen.numel())
    first = int(differs.nonzero()[0].item())
    return Check(seen.numel(), wrong, f"element {offset + first} is {seen[first].item():g}, "
                                      f"right is {right[first].item():g}")
