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
