"""Small pieces are judged by the gradients they reduce, not by all that a step communicates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from regress.diagnose import COST, diagnose
from regress.record import Diagnosis
from regress.trace.read import read_traces
from tests.trace.made import Export, payload

MIB, US = 1 << 20, 1000
Call = tuple[str, int]


def _stepped(calls: Sequence[Call], ranks: int, steps: int = 3) -> Export:
    """Steps that make these (operation, bytes per call as NCCL counts them), with nothing beside them."""
    made = Export()
    for rank in range(ranks):
        pid = 10 + rank
        made.gpu(rank, rank, pid)
        for step in range(steps):
            begin = 1_000_000 + step * 100_000_000
            made.nvtx(pid, begin - 10 * US, begin + 99_000 * US, "step")
            made.kernel(pid, begin, begin + 100 * US, device=rank)
            for k, (operation, size) in enumerate(calls):
                start = begin + (200 + 200 * k) * US
                made.kernel(pid, start, start + 150 * US, f"ncclDevKernel_{operation}_RING_LL", device=rank, stream=17)
                made.nvtx(pid, start - 3000, start - 500, f"nccl{operation}", registered=True, blob=payload(9, size))
    return made


def _found(calls: Sequence[Call], ranks: int, folder: Path) -> Diagnosis | None:
    analysis = read_traces([_stepped(calls, ranks).write(folder / "t.sqlite")])
    everything = [one for found in diagnose(analysis) for one in (found, *found.consequences)]
    return next((one for one in everything if one.rule == "small_collectives"), None)


def test_healthy_fsdp_is_none(tmp_path: Path) -> None:
    """64 blocks of 50 MiB: gathered forward and backward, their gradients scattered. A call has one rank's eighth."""
    eighth = 50 * MIB // 8
    calls = [("AllGather", eighth)] * 128 + [("ReduceScatter", eighth)] * 64
    assert _found(calls, 8, tmp_path) is None


def test_scattered_gradients_count_whole(tmp_path: Path) -> None:
    assert _found([("ReduceScatter", 50 * MIB // 8)] * 192, 8, tmp_path) is None


def test_gathered_parameters_are_no_gradients(tmp_path: Path) -> None:
    assert _found([("AllGather", 64 << 10)] * 60, 2, tmp_path) is None


def test_single_numbers_are_no_gradients(tmp_path: Path) -> None:
    assert _found([("AllReduce", 4)] * 60 + [("AllReduce", 25 * MIB)] * 2, 2, tmp_path) is None


def test_many_small_all_reduces_are_ddp_buckets(tmp_path: Path) -> None:
    found = _found([("AllReduce", MIB)] * 30 + [("AllGather", MIB)] * 10, 2, tmp_path)
    assert found is not None
    assert "bucket_cap_mb" in found.suggestion
    assert (found.evidence["collectives_per_step"], found.evidence["reductions_per_step"]) == (40, 30)
    assert (found.evidence["reduced_bytes_per_step"], found.evidence["needed_per_step"]) == (30 * MIB, 3)


def test_many_small_reduce_scatters_are_units_of_sharding(tmp_path: Path) -> None:
    found = _found([("AllGather", 128 << 10)] * 60 + [("ReduceScatter", 128 << 10)] * 60, 4, tmp_path)
    assert found is not None
    assert "auto_wrap_policy" in found.suggestion
    assert "DistributedDataParallel" not in found.suggestion
    assert found.evidence["reduced_bytes_per_step"] == 60 * (MIB // 2)
    assert "reduce 512KiB on average" in found.cause


def test_hybrid_sharding_is_told_of_its_units(tmp_path: Path) -> None:
    """Gradients are scattered inside a node, and what is left on a rank is all-reduced between nodes."""
    found = _found([("ReduceScatter", 64 << 10), ("AllReduce", 64 << 10)] * 40, 4, tmp_path)
    assert found is not None
    assert "auto_wrap_policy" in found.suggestion


def test_an_unknown_size_of_a_reduction_says_nothing(tmp_path: Path) -> None:
    made = _stepped([("AllReduce", MIB)] * 30, 2)
    made.kernel(10, 90_000_000, 90_100_000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=17)
    made.kernel(11, 90_000_000, 90_100_000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", device=1, stream=17)
    assert not [one for one in diagnose(read_traces([made.write(tmp_path / "t.sqlite")]))
                if one.rule == "small_collectives"]


def test_waiting_for_a_late_rank_is_not_what_pieces_cost(tmp_path: Path) -> None:
    """Rank 1 computes 80 ms and rank 0 40, with a piece of 0.1 ms after each sixteenth: nine move when rank 0 is done.

    Two pieces would do, and fourteen fewer save 1.4 ms of transfer; but what rank 0 computes beside costs nothing.
    """
    made = Export()
    for rank, pid in enumerate((10, 11)):
        made.gpu(rank, rank, pid)
        each = (2500 + 2500 * rank) * US
        for step in range(5):
            begin = MIB + step * 100_000 * US
            made.nvtx(pid, begin - 10 * US, begin + 99_000 * US, "step")
            for k in range(16):
                made.kernel(pid, begin + k * each, begin + (k + 1) * each, device=rank, launch=begin)
                end = begin + (5000 * (k + 1) + 100) * US
                made.all_reduce(pid, max(begin + (k + 1) * each, end - 5000 * US), end, size=256 << 10, device=rank)
    found = diagnose(read_traces([made.write(tmp_path / "t.sqlite")]))
    assert [one.rule for one in found if one.severity == "critical"] == ["straggler", "small_collectives"]
    assert found[1].evidence["saved_seconds_per_step_at_most"] == pytest.approx(14 * 100e-6)
    assert found[1].evidence[COST] == pytest.approx(9 * 100e-6)


def test_one_rank_alone_says_what_its_shortest_piece_takes(tmp_path: Path) -> None:
    """Nothing is matched, so 27 pieces fewer save what 27 calls of 150 µs take."""
    found = _found([("AllReduce", MIB)] * 30, 1, tmp_path)
    assert found is not None
    assert found.evidence[COST] == pytest.approx(27 * 150e-6)


def _layers(tensor_parallel: bool, buckets: int = 0) -> Export:
    """Steps of 32 layers of 300 µs, each followed by an all-reduce of 4 MiB that nothing is computed beside.

    Without tensor parallelism these are gradients of a backward that waits for each, after a forward of half its time.
    buckets: as many of 1 MiB of another communicator end the step.
    """
    made = Export()
    for rank, pid in enumerate((10, 11)):
        made.gpu(rank, rank, pid)
        at = 1_000_000
        for _ in range(3):
            begin = at
            if not tensor_parallel:
                made.kernel(pid, at, at + 4_800 * US, device=rank)
                at += 4_805 * US
            for _ in range(32):
                made.kernel(pid, at, at + 300 * US, device=rank)
                made.all_reduce(pid, at + 305 * US, at + 345 * US, size=4 * MIB, device=rank)
                at += 350 * US
            for _ in range(buckets):
                made.all_reduce(pid, at, at + 30 * US, size=MIB, communicator=8, device=rank)
                at += 35 * US
            made.nvtx(pid, begin - 4 * US, at - 4 * US, "step")
    return made


def _found_in(made: Export, folder: Path) -> Diagnosis | None:
    return next((one for one in diagnose(read_traces([made.write(folder / "t.sqlite")]))
                 if one.rule == "small_collectives"), None)


def test_activations_cannot_be_bucketed(tmp_path: Path) -> None:
    """Each is needed by the next layer, in forward as in backward."""
    assert _found_in(_layers(True), tmp_path) is None


def test_gradients_that_backward_waits_for_can(tmp_path: Path) -> None:
    found = _found_in(_layers(False), tmp_path)
    assert found is not None
    assert found.evidence["reductions_per_step"] == 32


def test_buckets_beside_tensor_parallelism_are_judged_alone(tmp_path: Path) -> None:
    """16 of 1 MiB, where two would do."""
    found = _found_in(_layers(True, buckets=16), tmp_path)
    assert found is not None
    assert (found.evidence["reductions_per_step"], found.evidence["needed_per_step"]) == (16, 2)
    assert found.evidence["message_bytes_max"] == MIB
    assert found.evidence["saved_seconds_per_step_at_most"] == pytest.approx(14 * 30e-6)
