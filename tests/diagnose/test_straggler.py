"""Who the others wait for, how often and why, on traces made up for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from regress.diagnose import diagnose
from regress.record import Diagnosis
from regress.trace.read import read_traces
from tests.trace.made import Export, kineto, two_ranks


def _found(made: Export, folder: Path) -> Diagnosis | None:
    everything = diagnose(read_traces([made.write(folder / "t.sqlite")]))
    return next((one for cause in everything for one in (cause, *cause.consequences) if one.rule == "straggler"), None)


def _slow_rank(made: Export) -> None:
    """Rank 1 computes three times as long in each step."""
    for rank, pid, begin in made.steps(25):
        made.kernel(pid, begin, begin + (1 + 2 * rank) * 1_000_000, device=rank)
        made.all_reduce(pid, begin + (1 + 2 * rank) * 1_000_000 + 10_000, begin + 4_000_000, device=rank)


def _stalled_rank(made: Export) -> None:
    """Rank 1's host sleeps 3 ms before it launches the collective."""
    for rank, pid, begin in made.steps(25):
        made.kernel(pid, begin, begin + 1_000_000, device=rank)
        made.all_reduce(pid, begin + 1_010_000 + rank * 3_000_000, begin + 4_200_000, device=rank)


def _late_loader(made: Export) -> None:
    """Both ranks' hosts launch kernels of 30 µs 20 µs apart; rank 1's waits 4 ms for its data before each step."""
    for rank, pid, begin in made.steps(25):
        for k in range(40):
            at = begin + rank * 4_000_000 + k * 50_000
            made.kernel(pid, at + 20_000, at + 50_000, device=rank, launch=at + 10_000)
        made.all_reduce(pid, begin + rank * 4_000_000 + 2_000_000, begin + 6_200_000, device=rank)


@pytest.mark.parametrize(("make", "cause"), [
    (_slow_rank, "compute 200% longer"), (_stalled_rank, "runs dry for"), (_late_loader, "runs dry for 7.8 ms at")])
def test_a_straggler_has_a_reason(make: Callable[[Export], None], cause: str, tmp_path: Path) -> None:
    made = Export()
    make(made)
    found = _found(made, tmp_path)
    assert found is not None
    assert (found.severity, found.evidence["rank"], found.evidence["last"]) == ("critical", 1, 25)
    assert cause in found.cause


def test_who_is_late_to_the_first_of_many_collectives_is_late_in_every_step(tmp_path: Path) -> None:
    """Rank 1 waits 5 ms for its data before each step. To the seven other collectives all come within 2 µs, in turn."""
    made = Export()
    for rank, pid in enumerate((10, 11, 12)):
        made.gpu(rank, rank, pid)
        for step in range(12):
            begin = 1_000_000 + step * 20_000_000
            made.nvtx(pid, begin - 10_000, begin + 19_000_000, "step")
            made.kernel(pid, begin + 5_000_000 * (rank == 1), begin + 5_000_000 * (rank == 1) + 1_000, device=rank)
            for k in range(8):
                at = begin + 5_010_000 + k * 500_000
                came = begin + 10_000 if k == 0 and rank != 1 else at + (rank + k + 1) % 3 * 1_000
                made.all_reduce(pid, came, at + 102_000, device=rank)
    found = _found(made, tmp_path)
    assert found is not None
    assert (found.severity, found.evidence["rank"], found.evidence["pattern"]) == ("critical", 1, "constant")
    assert (found.evidence["late_steps"], found.evidence["steps"]) == (12, 12)
    assert (found.evidence["last"], found.evidence["collectives"]) == (36, 96)
    assert "most waiting is for it in 12 of 12 steps" in found.cause
    assert "runs dry for" in found.cause


def test_one_long_stall_is_no_habit(tmp_path: Path) -> None:
    """Of a rank that is last in every other collective too, by microseconds."""
    made = Export()
    for rank, pid in enumerate((10, 11)):
        made.gpu(rank, rank, pid)
        for step in range(25):
            begin = 1_000_000 + step * 10_000_000 + (60_000_000 if step > 9 else 0)
            stall = 60_000_000 if step == 9 else 0
            made.nvtx(pid, begin - 10_000, begin + 9_000_000 + stall, "step")
            made.kernel(pid, begin, begin + 1_000_000, device=rank)
            made.all_reduce(pid, begin + 1_010_000 + rank * (5_000 + stall), begin + 1_200_000 + stall, device=rank)
    found = _found(made, tmp_path)
    assert found is not None
    assert (found.severity, found.evidence["rank"], found.evidence["pattern"]) == ("warning", 1, "seldom")
    assert (found.evidence["late_steps"], found.evidence["last"]) == (1, 25)
    assert "in 1 of 25 steps" in found.cause


def test_a_barrier_that_waits_for_a_late_rank_is_not_what_to_remove(tmp_path: Path) -> None:
    """Rank 1 comes 30 ms late to the barrier of each step of 42 ms; the barrier itself takes 1 ms, of both ranks."""
    def events(rank: int) -> list[dict[str, object]]:
        made: list[dict[str, object]] = []
        for step in range(12):
            begin = 1_000.0 + step * 42_000
            came = begin + 1_000 + rank * 30_000
            for name, start, end in ((f"ProfilerStep#{step}", begin, begin + 41_900),
                                     ("gloo:barrier", came, begin + 32_000),
                                     ("gloo:all_reduce", begin + 36_000, begin + 40_000)):
                args = {"Input Dims": [[1 << 18]], "Input type": ["float"]} if name == "gloo:all_reduce" else {}
                made.append({"ph": "X", "cat": "user_annotation", "name": name, "pid": 40 + rank, "tid": 1, "ts": start,
                             "dur": end - start, "args": args})
        return made

    found = diagnose(read_traces([kineto(tmp_path / f"{rank}.json", events(rank),
                                         distributedInfo={"rank": rank, "world_size": 2}) for rank in (0, 1)]))
    assert [(one.rule, one.severity) for one in found] == [("straggler", "critical")]
    barrier, = found[0].consequences
    assert (barrier.rule, barrier.severity) == ("barriers", "info")
    assert barrier.evidence["seconds_each"] == pytest.approx(1e-3)
    assert barrier.evidence["share_of_window"] == pytest.approx(1_000 / 41_900)
    assert barrier.evidence["waiting_share_of_barriers"] == pytest.approx(30 / 32)
    assert "1.00 ms of it beyond the waiting for rank 1" in barrier.cause


def test_in_a_mesh_only_the_slow_rank_is_waited_for(tmp_path: Path) -> None:
    """Rank 1 of two by two computes 4 ms longer: its tensor-parallel peer 0 comes late to the data-parallel one."""
    made = Export()
    for rank, pid in enumerate((10, 11, 12, 13)):
        made.gpu(rank, rank, pid)
        for step in range(25):
            begin = 1_000_000 + step * 10_000_000
            made.nvtx(pid, begin - 10_000, begin + 9_000_000, "step")
            own, met = 1_000_000 + 4_000_000 * (rank == 1), 1_000_000 + 4_000_000 * (rank < 2)
            made.kernel(pid, begin, begin + own, device=rank)
            made.all_reduce(pid, begin + own, begin + met + 100_000, device=rank, communicator=1 + rank // 2)
            made.all_reduce(pid, begin + met + 110_000, begin + 5_210_000, device=rank, communicator=3 + rank % 2)
    found = _found(made, tmp_path)
    assert found is not None
    assert (found.severity, found.evidence["rank"], found.evidence["late_steps"]) == ("critical", 1, 25)
    assert found.evidence["share_of_waiting"] == pytest.approx(1.0)
    assert found.evidence["waiting_seconds"] == pytest.approx(25 * 4e-3)
    assert "compute 400% longer" in found.cause


def test_ranks_that_arrive_together_have_no_straggler(tmp_path: Path) -> None:
    assert _found(two_ranks(collectives=30), tmp_path) is None
