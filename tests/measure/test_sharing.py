from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regress.measure.sharing import SLICE_SECONDS, GpuSharing, sharing_from_durations

MIB = 1 << 20
# Lower quartile and median of two ranks on one H200 under the multi-process service: 0.04 and 0.05 ms at 4 KiB, 4.4 ms
# at 16 MiB. Time-sliced, kernels last 2.4 and 4.5 ms for the smallest messages, 8.6 ms within 0.4 % for 16 MiB, 7.6 to
# 18.2 ms for the buckets of a training step.
SLICED_BUCKETS = [0.00766, 0.01816, 0.01793, 0.01769] * 10


def around(value: float, spread: float, count: int = 40) -> list[float]:
    source = random.Random(1)  # noqa: S311
    return [value * source.uniform(1 - spread, 1 + spread) for _ in range(count)]


@pytest.mark.parametrize(("seconds", "sharing"), [
    ({4096: around(0.00005, 0.3), 16 * MIB: around(0.0044, 0.1)}, GpuSharing.MPS),
    ({4096: around(0.0024, 0.05), 16 * MIB: around(0.0086, 0.004)}, GpuSharing.TIME_SLICED),
    ({16 * MIB: around(0.0086, 0.004)}, None),  # one level proves nothing: any duration is a multiple of something
    ({16 * MIB: around(0.0044, 0.1)}, None),
    ({25 * MIB: around(2 * SLICE_SECONDS, 0.01) + around(4 * SLICE_SECONDS, 0.005)}, GpuSharing.TIME_SLICED),
    ({25 * MIB: around(0.005, 0.6, 400)}, None),
    ({4096: [0.00005] * 3}, None),
    ({4096: around(0.0014, 0.05)}, None),
    ({}, None),
])
def test_small_messages_tell_turns_from_side_by_side(seconds: dict[int, list[float]],
                                                     sharing: GpuSharing | None) -> None:
    assert sharing_from_durations(seconds) is sharing


def test_buckets_of_a_sliced_training_step_do_not_decide_because_compute_lies_between() -> None:
    assert sharing_from_durations({25 * MIB: SLICED_BUCKETS}) is None


@given(st.lists(st.floats(min_value=1e-6, max_value=0.0008), min_size=10, max_size=60))
def test_what_ends_well_within_a_turn_was_not_sliced(seconds: list[float]) -> None:
    assert sharing_from_durations({4096: seconds}) is GpuSharing.MPS


@given(st.lists(st.floats(min_value=2e-6, max_value=5e-5), min_size=0, max_size=60))
def test_faster_than_any_turn_is_never_sliced(seconds: list[float]) -> None:
    assert sharing_from_durations({25 * MIB: seconds}) is None
