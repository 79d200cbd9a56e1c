"""The time of a step is the sum of its parts, and so is its change: arithmetic on the sample pairs and made traces."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regress.trace.budget import StepBudget, exposed_shares, step_budgets
from regress.trace.budget_change import BudgetChange, budget_changes, money_per_day, rounded
from regress.trace.read import read_traces
from tests.trace.made import Export
from tests.trace.samples import kineto_8_ranks, sample

STEPPED = ("mps/good", "mps/accum_no_sync", "mps/accum_sync", "mps/pageable", "mps/small_buckets", "mps/sync_loop",
           "nvlink/good", "nvlink/small_buckets", "sliced/good", "sliced/straggler")
PAIRS = (("nvlink/good", "nvlink/small_buckets"), ("mps/good", "mps/pageable"), ("mps/good", "mps/sync_loop"),
         ("mps/good", "mps/small_buckets"), ("mps/accum_no_sync", "mps/accum_sync"),
         ("sliced/good", "sliced/straggler"))


def _summed(budget: StepBudget) -> float:
    return budget.compute + budget.transfer + budget.waiting + budget.host + budget.idle


@pytest.mark.parametrize("name", STEPPED)
def test_the_parts_are_the_window(name: str) -> None:
    analysis = read_traces([sample(name)])
    for budget, lane in zip(step_budgets(analysis), analysis.lanes, strict=True):
        assert _summed(budget) == pytest.approx(lane.in_window.span_ns / lane.window.steps / 1e9, rel=1e-12)
        assert min(budget.compute, budget.transfer, budget.host, budget.idle, *budget.waiting_for.values(), 0) >= 0
        assert budget.compute * lane.window.steps * 1e9 == pytest.approx(lane.in_window.compute_ns, abs=1)
        alone = (budget.transfer + budget.waiting) * lane.window.steps * 1e9
        assert alone == pytest.approx(lane.in_window.exposed_ns, abs=1)
        assert lane.rank not in budget.waiting_for


def test_the_parts_are_the_window_of_each_of_eight_files() -> None:
    """One file a rank, each with a clock of its own."""
    analysis = read_traces(kineto_8_ranks())
    budgets = step_budgets(analysis)
    assert [_summed(one) for one in budgets] == pytest.approx([
        lane.in_window.span_ns / lane.window.steps / 1e9 for lane in analysis.lanes])
    assert max(budgets[1].waiting_for, key=lambda rank: budgets[1].waiting_for[rank]) == 7


@pytest.mark.parametrize(("before", "now"), PAIRS)
def test_the_change_is_the_sum_of_its_parts(before: str, now: str) -> None:
    here, there = (step_budgets(read_traces([sample(name)])) for name in (now, before))
    changes = budget_changes(here, there, on_host=False)
    assert len(changes) == 2
    for change in changes:
        assert math.fsum(seconds for _, seconds in change.parts) == pytest.approx(change.change, abs=1e-12)
        total, *parts = map(float, re.findall(r"[+-]\d+(?:\.\d+)?", change.sentence))
        assert math.fsum(parts) == pytest.approx(total, abs=1e-9), change.sentence


def test_the_straggler_pair_says_whom_they_wait_for() -> None:
    now, before = (step_budgets(read_traces([sample(f"sliced/{name}")])) for name in ("straggler", "good"))
    told = budget_changes(now, before, on_host=False)[0]
    assert told.rank == 0
    assert told.sentence.startswith("step +16.1 ms: +12.5 waiting for rank 1, ")
    assert 10e-3 < told.waiting < 14e-3


def _waiting_pair(late_ns: int) -> Export:
    """Two ranks, five steps of 100 µs compute and a 200 µs all-reduce; rank 1 comes late."""
    made = Export()
    for rank, pid, begin in made.steps(5, every=5_000_000, length=4_000_000):
        made.kernel(pid, begin, begin + 100_000, device=rank)
        made.all_reduce(pid, begin + 110_000 + rank * late_ns, begin + 310_000 + late_ns, device=rank)
    return made


def test_waiting_is_what_was_planted(tmp_path: Path) -> None:
    analysis = read_traces([_waiting_pair(700_000).write(tmp_path / "t.sqlite")])
    first, second = step_budgets(analysis)
    assert first.waiting_for == {1: pytest.approx(700e-6)}
    assert first.transfer == pytest.approx(200e-6)
    assert second.waiting == 0
    assert second.transfer == pytest.approx(200e-6)
    assert exposed_shares(analysis)[0] > exposed_shares(analysis)[1]


def test_transfer_under_compute_is_no_part_of_communication(tmp_path: Path) -> None:
    made = _waiting_pair(0)
    for rank, pid in enumerate((10, 11)):
        for step in range(5):
            begin = 1_000_000 + step * 5_000_000
            made.kernel(pid, begin + 110_000, begin + 260_000, device=rank)
    for budget in step_budgets(read_traces([made.write(tmp_path / "t.sqlite")])):
        assert budget.transfer == pytest.approx(50e-6)
        assert budget.compute == pytest.approx(250e-6)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8), st.integers(0, 3))
def test_rounded_figures_add_up(values: list[float], digits: int) -> None:
    total, figures = rounded(values, digits)
    scale = 10 ** digits
    assert round(sum(figures) * scale) == round(total * scale)
    assert abs(total - math.fsum(values)) <= 0.5 / scale + 1e-9
    assert all(abs(figure - value) <= 1 / scale + 1e-9 for figure, value in zip(figures, values, strict=True))


def test_small_parts_are_the_rest_and_nothing_is_a_sentence_too() -> None:
    before = StepBudget(0, 1, 10e-3, 1e-3, {1: 1e-3}, 1e-3, 1e-3)
    now = StepBudget(0, 1, 13e-3, 1.01e-3, {1: 1e-3}, 1e-3, 1.01e-3)
    assert BudgetChange(before, now).sentence == "step +3.02 ms: +3.00 computing, +0.02 the rest"
    assert BudgetChange(before, before).sentence == "step +0.00 µs"
    assert BudgetChange(before, now, on_host=True).parts[0][0] == "outside collectives"


def test_money_is_the_share_of_all_gpus_of_a_day() -> None:
    assert money_per_day(0.1, 0.11, 8, 2.5) == pytest.approx(8 * 24 * 2.5 * 0.1)
    assert money_per_day(0.1, 0.1, 8, 2.5) == 0
