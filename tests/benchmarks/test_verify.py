from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.verify import compare_gathered, compare_sum, dtype_named, fill, period
from regress.errors import EnvironmentUnfitError

DTYPES = ["bfloat16", "float16", "float32", "float64", "int32", "int64"]


def filled(elements: int, dtype: str, rank: int, world_size: int) -> torch.Tensor:
    tensor = torch.empty(elements, dtype=dtype_named(dtype))
    fill(tensor, dtype, rank, world_size)
    return tensor


def summed(elements: int, dtype: str, world_size: int) -> torch.Tensor:
    total = filled(elements, dtype, 0, world_size)
    for rank in range(1, world_size):
        total += filled(elements, dtype, rank, world_size)
    return total


@given(dtype=st.sampled_from(DTYPES), world_size=st.integers(1, 16), elements=st.integers(1, 300))
def test_the_right_answer_is_right_in_every_dtype(dtype: str, world_size: int, elements: int) -> None:
    check = compare_sum(summed(elements, dtype, world_size), dtype, world_size)
    assert (check.checked, check.wrong, check.problem) == (elements, 0, None)
    parts = [filled(elements, dtype, rank, world_size) for rank in range(world_size)]
    check = compare_gathered(torch.cat(parts), dtype, world_size)
    assert (check.checked, check.wrong, check.problem) == (elements * world_size, 0, None)


@given(world_size=st.integers(1, 256), dtype=st.sampled_from(DTYPES))
def test_no_partial_sum_leaves_the_exact_integers(world_size: int, dtype: str) -> None:
    assert 1 <= period(dtype, world_size) * world_size <= {"bfloat16": 256, "float16": 2048}.get(dtype, 2**24)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_missing_rank_a_doubled_rank_and_no_call_at_all_are_seen_everywhere(dtype: str) -> None:
    right = summed(100, dtype, 4)
    own = filled(100, dtype, 2, 4)
    for wrong in (right - own, right + own, own):
        assert compare_sum(wrong, dtype, 4).wrong == 100


def test_swapped_parts_shifted_blocks_and_nan_are_seen() -> None:
    first, second = (filled(512, "bfloat16", rank, 2) for rank in range(2))
    assert compare_gathered(torch.cat([second, first]), "bfloat16", 2).wrong == 1024
    assert compare_sum(summed(512, "float32", 2).roll(64), "float32", 2).wrong > 500
    broken = summed(512, "float32", 2)
    broken[7] = float("nan")
    check = compare_sum(broken, "float32", 2)
    assert (check.wrong, check.problem) == (1, "element 7 is nan, right is 52")


def test_more_ranks_than_can_be_added_exactly() -> None:
    with pytest.raises(EnvironmentUnfitError) as caught:
        period("bfloat16", 257)
    assert caught.value.text == ("257 ranks cannot be added exactly in bfloat16; "
                                 "accepted: at most 256 ranks in bfloat16; use float32")


def test_a_dtype_without_exact_integers() -> None:
    with pytest.raises(EnvironmentUnfitError) as caught:
        dtype_named("float8_e4m3fn")
    assert caught.value.text == ("dtype 'float8_e4m3fn'; accepted: bfloat16, float16, float32, float64, int32, int64")
