"""Where the window of the steps begins, breaks off and ends, in traces made up for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from regress.trace.budget import step_budgets
from regress.trace.read import read_timeline, read_traces
from regress.trace.timeline import CopyKind
from regress.trace.window import blocks
from tests.trace.made import Export

US, MS = 1_000, 1_000_000


def _steps(made: Export, begin: int, count: int = 5, idle: int = 10 * US) -> int:
    """Steps of 10 ms on two ranks, each idle on the device first, then 2 ms of all-reduce at its end; when they end."""
    for rank, pid in enumerate((10, 11)):
        made.gpu(rank, rank, pid)
        for step in range(count):
            start = begin + step * 10 * MS
            made.nvtx(pid, start, start + 10 * MS - US, "step")
            made.kernel(pid, start + idle, start + 8 * MS, device=rank, launch=start + idle - 5 * US)
            made.all_reduce(pid, start + 8 * MS, start + 10 * MS, device=rank)
    return begin + count * 10 * MS


def _read(made: Export, folder: Path) -> tuple[list[int], list[int], tuple[str, ...]]:
    """Of each rank the window and the communication alone in it, in ns; and what was said of the window."""
    analysis = read_traces([made.write(folder / "t.sqlite")])
    assert len(step_budgets(analysis)) == len(analysis.lanes)
    return ([lane.in_window.span_ns for lane in analysis.lanes], [lane.in_window.exposed_ns for lane in analysis.lanes],
            tuple(text for text in analysis.warnings if "block" in text))


def test_a_collective_long_after_the_steps_closes_nothing(tmp_path: Path) -> None:
    made = Export()
    end = _steps(made, MS)
    for rank, pid in enumerate((10, 11)):
        made.all_reduce(pid, end + 500 * MS, end + 500 * MS + 50 * US, device=rank, size=4)
    assert _read(made, tmp_path) == ([50 * MS - 10 * US] * 2, [10 * MS] * 2, ())


def test_a_rank_waits_in_the_barrier_that_closes_its_steps(tmp_path: Path) -> None:
    """Rank 1 finished 30 ms early: it enters the barrier at once, behind a fill, and its waiting counts."""
    made = Export()
    end = _steps(made, MS)
    for rank, pid in enumerate((10, 11)):
        entered = end + (300 * US if rank else 30 * MS)
        if not rank:
            made.nvtx(pid, end, end + 30 * MS - 300 * US, "step")
            made.kernel(pid, end + US, end + 30 * MS - 300 * US, device=rank)
        made.kernel(pid, entered - 100 * US, entered - 99 * US, "fill", device=rank)
        made.all_reduce(pid, entered, end + 31 * MS, device=rank, size=4)
    spans, alone, _ = _read(made, tmp_path)
    assert spans == [81 * MS - 10 * US] * 2
    assert alone == [11 * MS, 10 * MS + 30_700 * US]


def test_waiting_for_one_ranks_checkpoint_is_no_part_of_a_step(tmp_path: Path) -> None:
    """Rank 0 writes for 500 ms before the barrier that rank 1 entered at once."""
    made = Export()
    end = _steps(made, MS)
    for rank, pid in enumerate((10, 11)):
        made.all_reduce(pid, end + (100 * US if rank else 500 * MS), end + 501 * MS, device=rank, size=4)
    assert _read(made, tmp_path) == ([50 * MS - 10 * US] * 2, [10 * MS] * 2, ())


def test_a_host_that_ends_its_step_late_still_closes_it(tmp_path: Path) -> None:
    """The device ran dry 20 ms before the step range ended; the barrier follows the range at once."""
    made = Export()
    for rank, pid in enumerate((10, 11)):
        made.gpu(rank, rank, pid)
        made.nvtx(pid, 990 * US, 31 * MS, "step")
        made.kernel(pid, MS, 11 * MS, device=rank)
        made.all_reduce(pid, 31 * MS + 100 * US, 32 * MS, device=rank)
    assert _read(made, tmp_path)[:2] == ([31 * MS] * 2, [900 * US] * 2)


def test_what_lies_between_blocks_of_steps_is_no_step(tmp_path: Path) -> None:
    made = Export()
    middle = _steps(made, MS)
    for rank, pid in enumerate((10, 11)):
        for batch in range(50):
            begin = middle + batch * 10 * MS
            made.kernel(pid, begin + 100 * US, begin + 9 * MS, "validation", device=rank)
            made.copy(pid, begin, begin + 50 * US, 1 << 20, device=rank)
    _steps(made, middle + 500 * MS)
    spans, alone, said = _read(made, tmp_path)
    assert (spans, alone) == ([100 * MS - 20 * US] * 2, [20 * MS] * 2)
    assert said == ("rank 0: steps come in 2 blocks, far apart: the 500.0 ms between them are no part of a step and "
                    "were left out",)
    lane = read_traces([tmp_path / "t.sqlite"]).lanes[0]
    assert (lane.window.steps, [total.name for total in lane.kernel_totals]) == (10, ["gemm"])
    assert lane.gaps.late_ns == 8 * 10 * US
    copied, = lane.copies
    assert (copied.kind, copied.count, copied.in_window) == (CopyKind.HOST_TO_DEVICE, 50, 0)


def test_gpu_counters_are_averaged_over_the_blocks(tmp_path: Path) -> None:
    made = Export()
    _steps(made, _steps(made, MS) + 500 * MS)
    made.row("TARGET_INFO_GPU_METRICS", "typeId,metricId,metricName", 0, 1, "SMs Active")
    for time, value in ((20 * MS, 80), (300 * MS, 5), (400 * MS, 5), (580 * MS, 60)):
        made.row("GPU_METRICS", "timestamp,typeId,metricId,value", time, 0, 1, value)
    metric, = read_timeline(made.write(tmp_path / "t.sqlite")).gpu_metrics
    assert (metric.window_samples, metric.window_mean, metric.samples, metric.mean) == (2, 70, 4, 37.5)


@pytest.mark.parametrize(("gaps", "first"), [
    ([], [0]), ([500], [0]), ([0, 0, 500], [0, 3]), ([0, 0, 9], [0]), ([30, 40, 35, 50], [0]),
    ([0, 500, 0, 300], [0, 2, 4]), ([20, 20, 150, 20], [0]), ([20, 20, 250, 20], [0, 3])])
def test_blocks_lie_ten_usual_gaps_and_a_step_apart(gaps: list[int], first: list[int]) -> None:
    """Steps of 10."""
    start = np.cumsum([0, *(10 + gap for gap in gaps)])
    assert blocks(start, start + 10).tolist() == first


@pytest.mark.parametrize("count", [1, 2, 10])
def test_a_step_that_loads_its_data_first_is_whole_in_every_trace(count: int, tmp_path: Path) -> None:
    """6 ms of each step pass before its first kernel: the first step's count like the others'."""
    made = Export()
    _steps(made, MS, count, idle=6 * MS)
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    for budget in step_budgets(analysis):
        assert budget.step == pytest.approx(10e-3)
        assert budget.host == pytest.approx(6e-3)
        assert budget.compute == pytest.approx(2e-3)
    assert analysis.lanes[0].gaps.late == count


def test_a_device_that_is_busy_when_the_step_begins_adds_nothing_to_the_window(tmp_path: Path) -> None:
    made = Export()
    _steps(made, MS, 2, idle=6 * MS)
    for rank, pid in enumerate((10, 11)):
        made.kernel(pid, 500 * US, 7 * MS, "before", device=rank)
    assert _read(made, tmp_path)[0] == [14 * MS] * 2


def test_an_empty_queue_before_the_first_step_alone_is_no_part_of_the_steps(tmp_path: Path) -> None:
    """The second step's kernels were queued while the first's ran: its device never waits for data."""
    made = Export()
    for rank, pid in enumerate((10, 11)):
        made.gpu(rank, rank, pid)
        for step in range(2):
            made.nvtx(pid, MS + step * 2 * MS, 3 * MS + step * 2 * MS, "step")
        made.kernel(pid, 2 * MS, 8 * MS, device=rank, launch=1_900 * US)
        made.kernel(pid, 8 * MS, 14 * MS, device=rank, launch=3_900 * US)
        made.nvtx(pid, 20, 30, f"comm_regress.rank={rank}/2", kind=59)
        made.all_reduce(pid, 14 * MS, 15 * MS, device=rank)
    assert _read(made, tmp_path)[0] == [13 * MS] * 2
