"""Waits are for the rank that made the last one late, on meshes of two by two GPUs: by hand, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from regress.trace.analysis import Analysis
from regress.trace.blame import passed_on
from regress.trace.budget import step_budgets
from regress.trace.read import read_traces
from regress.trace.waits import waiting_by_step
from tests.trace.made import Export

US = 1000
ROWS, COLUMNS, ALL = ((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 1, 2, 3),)
STEPS = 3
Phase = tuple[tuple[float, float, float, float], tuple[tuple[int, ...], ...]]


def _mesh(phases: Sequence[Phase], folder: Path) -> Analysis:
    """Four ranks. A phase: the milliseconds that each rank computes, and who then meets whom, for 100 µs.

    All begin each step together.
    """
    made, begin = Export(), 1_000_000
    names = {group: number for number, group in enumerate((*ROWS, *COLUMNS, *ALL, (1, 2)), 1)}
    for rank in range(4):
        made.gpu(rank, rank, 10 + rank)
    for _ in range(STEPS):
        at = [begin] * 4
        for work, groups in phases:
            for rank in range(4):
                made.kernel(10 + rank, at[rank], at[rank] + round(work[rank] * 1e6) + 10 * US, device=rank)
                at[rank] += round(work[rank] * 1e6) + 10 * US
            for group in groups:
                end = max(at[rank] for rank in group) + 100 * US
                for rank in group:
                    made.all_reduce(10 + rank, at[rank], end, device=rank, communicator=names[group])
                    at[rank] = end
        for rank in range(4):
            made.nvtx(10 + rank, begin - 10 * US, at[rank], "step")
        begin = max(at) + 1_000_000
    return read_traces([made.write(folder / "t.sqlite")])


def _waited(analysis: Analysis) -> list[dict[int, float]]:
    """For each rank the milliseconds a step that it waits, by the rank it waits for."""
    return [{rank: round(seconds * 1e3, 3) for rank, seconds in budget.waiting_for.items()}
            for budget in step_budgets(analysis)]


@pytest.mark.parametrize(("phases", "waited"), [
    pytest.param([((0, 4, 0, 0), ROWS), ((0, 0, 0, 0), COLUMNS)], [{1: 4}, {}, {1: 4}, {1: 4}], id="passed-on"),
    pytest.param([((0, 4, 0, 0), ROWS), ((1, 0, 0, 0), COLUMNS)], [{1: 4}, {}, {0: 1, 1: 4}, {1: 4}],
                 id="but-not-the-lateness-of-its-own"),
    pytest.param([((0, 4, 3, 0), ROWS), ((0, 0, 0, 0), COLUMNS)], [{1: 4}, {}, {1: 1}, {1: 1, 2: 3}],
                 id="no-more-than-the-lateness"),
    pytest.param([((0, 4, 0, 0), ROWS), ((0, 0, 0, 0), ALL), ((2, 0, 0, 0), COLUMNS)],
                 [{1: 4}, {}, {0: 2, 1: 4}, {1: 4}], id="not-past-a-collective-of-both"),
    pytest.param([((0, 4, 0, 0), ROWS), ((0, 0, 0, 0), ((0, 2),)), ((0, 0, 0, 0), ((2, 3),))],
                 [{1: 4}, {}, {1: 4}, {1: 4, 2: 0.1}], id="and-on-but-for-a-transfer-more"),
    pytest.param([((1, 0, 0, 0), ROWS)] * 4 + [((0, 0, 0, 0), COLUMNS)], [{}, {0: 4}, {0: 4}, {0: 4}],
                 id="from-many-waits"),
    pytest.param([((0, 0, 4, 0), COLUMNS), ((0, 2, 0, 0), ROWS), ((0, 0, 0, 0), ALL)], [{2: 4}, {2: 2}, {}, {2: 4}],
                 id="whichever-is-last"),
    pytest.param([((0, 4, 0, 0), ROWS), ((0, 0, 0, 0), ROWS)], [{1: 4}, {}, {}, {}], id="nothing-to-pass-on")])
def test_a_wait_is_for_whom_the_last_rank_waited_for(phases: list[Phase], waited: list[dict[int, float]],
                                                     tmp_path: Path) -> None:
    analysis = _mesh(phases, tmp_path)
    assert _waited(analysis) == waited
    for budget, lane in zip(step_budgets(analysis), analysis.lanes, strict=True):
        assert budget.step == pytest.approx(lane.in_window.span_ns / STEPS / 1e9, rel=1e-12)
    by_step = {rank: (ns / 1e6).round(3).tolist() for rank, ns in waiting_by_step(analysis).items()}
    assert by_step == {rank: [sum(one.get(rank, 0) for one in waited)] * STEPS
                       for rank in sorted({rank for one in waited for rank in one})}


def test_what_both_waited_for_before_is_not_what_made_one_late(tmp_path: Path) -> None:
    """Rank 3 makes 1 late by 2 ms, and 2 too; then 0 makes 1 late by 4 ms more, for which 2 waits when they meet."""
    analysis = _mesh([((0, 0, 0, 2), COLUMNS), ((0, 0, 0, 0), ((2, 3),)), ((6, 0, 0, 0), ((0, 1),)),
                      ((0, 0, 0, 0), ((1, 2),))], tmp_path)
    assert _waited(analysis) == [{}, {0: 4, 3: 2}, {0: 4, 3: 2}, {}]


def test_one_communicator_has_nothing_to_pass_on(tmp_path: Path) -> None:
    assert passed_on(_mesh([((0, 4, 0, 0), ALL)], tmp_path)) == (None,)
