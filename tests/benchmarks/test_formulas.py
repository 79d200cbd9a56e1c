"""Sizes and factors against nccl-tests' table (doc/PERFORMANCE.md, src/all_reduce.cu, src/all_gather.cu)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import benchmarks
from benchmarks import Workload
from regress.shelf import variants

SHELF = variants(benchmarks, Workload)


def test_the_shelf_holds_the_three_workloads() -> None:
    assert {name: workload.collective for name, workload in SHELF.items()} == {
        "allgather": True, "allreduce": True, "ddp_step": False}


@pytest.mark.parametrize(("workload", "ranks", "factor"), [
    ("allreduce", 1, 0.0), ("allreduce", 2, 1.0), ("allreduce", 4, 1.5), ("allreduce", 8, 1.75),
    ("allgather", 1, 0.0), ("allgather", 2, 0.5), ("allgather", 4, 0.75), ("allgather", 8, 0.875)])
def test_bus_factors(workload: str, ranks: int, factor: float) -> None:
    found = SHELF[workload].bus_factor
    assert found is not None
    assert found(ranks) == factor


@pytest.mark.parametrize(("workload", "wished", "ranks", "element", "real"), [
    ("allreduce", 4096, 2, 4, 4096), ("allreduce", 1002, 2, 4, 1000), ("allreduce", 1, 2, 4, 4),
    ("allgather", 4096, 2, 4, 4096), ("allgather", 1000, 2, 4, 992), ("allgather", 25 * 2**20, 3, 4, 26214384),
    ("allgather", 8, 4, 2, 64)])
def test_the_size_that_is_really_used(workload: str, wished: int, ranks: int, element: int, real: int) -> None:
    found = SHELF[workload].message_bytes
    assert found is not None
    assert found(wished, ranks, element) == real


@given(wished=st.integers(1, 2**34), ranks=st.integers(1, 4096), element=st.sampled_from([1, 2, 4, 8]))
def test_a_gathered_part_is_a_multiple_of_16_bytes(wished: int, ranks: int, element: int) -> None:
    found = SHELF["allgather"].message_bytes
    assert found is not None
    part, rest = divmod(found(wished, ranks, element), ranks)
    assert (rest, part % 16) == (0, 0)
    assert part == 16 or part * ranks <= wished < (part + 16) * ranks


def test_a_step_has_neither_size_nor_factor() -> None:
    assert (SHELF["ddp_step"].bus_factor, SHELF["ddp_step"].message_bytes) == (None, None)
