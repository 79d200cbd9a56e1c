"""Communication that holds up the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.diagnose import MEDIUM, SHARE, WARNING, Need, Rule
from regress.metrics.overlap import EXPOSED, OVERLAP
from regress.record import Diagnosis
from regress.trace.budget import step_budgets

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_LEAST = 0.20


def unavoidable_seconds(analysis: Analysis) -> float | None:
    """Transfer of the last collective of a step, on average: it is ready only when backward is over.

    Of the communicator with most collectives in steps; None where steps differ in number of collectives.
    """
    steps = analysis.steps
    busiest = max(analysis.matching.groups, key=lambda group: int(group.in_steps.sum()), default=None)
    if steps is None or busiest is None:
        return None
    inside = busiest.transfer_ns[busiest.in_steps]
    per_step = len(inside) // steps
    if per_step == 0 or len(inside) % steps:
        return None
    return float(inside[per_step - 1::per_step].mean()) / 1e9


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    exposed, overlap = (metric.from_trace(analysis) if metric.from_trace else None for metric in (EXPOSED, OVERLAP))
    if exposed is None or overlap is None or exposed.value < _LEAST:
        return []
    rank = max(exposed.by_rank, key=lambda r: exposed.by_rank[r])
    budget = next(budget for budget in step_budgets(analysis) if budget.rank == rank)
    alone = budget.waiting + budget.transfer
    waited = budget.waiting / alone if alone else 0.0
    last = unavoidable_seconds(analysis)
    least = None if last is None or not budget.step else last / budget.step
    mostly_waiting = waited > 0.5
    tail = "" if least is None or mostly_waiting or least < 0.01 else (
        f"; {least:.0%} of the step is the last collective's transfer, which nothing can hide")
    return [Diagnosis(
        "exposed_comm", WARNING,
        {"rank": rank, "exposed_comm_ratio": exposed.value, "overlap_ratio": overlap.by_rank.get(rank),
         "waiting_share_of_exposed": waited, "exposed_transfer_seconds_per_step": budget.transfer,
         "waiting_seconds_per_step": budget.waiting, "unavoidable_ratio": least, SHARE: exposed.value},
        f"on rank {rank} communication runs alone for {exposed.value:.0%} of the step; " + (
            f"{waited:.0%} of that is waiting for a late rank, not transfer" if mostly_waiting else
            "the messages take longer than the computation that could hide them") + tail,
        "find out why another rank is late (see skew_seconds by rank)" if mostly_waiting else
        "start communication earlier, send less (bf16 gradients, no_sync while accumulating), or use a faster link",
        confidence=MEDIUM)]


RULE = Rule("exposed_comm", "communication runs with no computation beside it for much of the step",
            "exposed communication is the part of the step that a faster network or earlier communication would win "
            "back; 20 % is more than the last bucket of a usual model, which cannot hide",
            _check, needs=(Need.STEPS, Need.DEVICE, Need.DURATIONS))
