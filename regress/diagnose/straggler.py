"""One rank that the others wait for, or ranks that are late in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from regress.diagnose import CRITICAL, HIGH, MEDIUM, SHARE, WARNING, Need, Rule, mostly_waits
from regress.record import Diagnosis
from regress.trace.budget import step_budgets
from regress.trace.late import LEAST_IN_TURN, Late, late_rank, span_seconds, waiting_for
from regress.trace.messages import arrivals

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis
    from regress.trace.lane import Lane

_ENOUGH, _ENOUGH_STEPS = 20, 10
"""So many collectives or steps tell habit from chance; half as many steps do where there are collectives enough."""
_EXPLAINS = 0.5
"""Part of the waiting that a cause must account for before it is named."""


def _reason(analysis: Analysis, late: Lane, waiting_ns: float) -> tuple[str, str, bool]:
    """Why the rank is late, what to try, and whether that explains the waiting and is a fault of this rank alone."""
    others = [lane for lane in analysis.device_lanes if lane.rank != late.rank]
    if late.on_host or not others:
        return _reason_on_host(analysis, late, waiting_ns)
    compute = float(np.median([lane.in_window.compute_ns for lane in others]))
    if late.in_window.compute_ns - compute > _EXPLAINS * waiting_ns:
        return (f"its kernels compute {late.in_window.compute_ns / max(compute, 1) - 1:.0%} longer than on the others",
                "balance the work between ranks, and compare clocks and throttling of that GPU", True)
    copying = _copied_ns(late) - float(np.median([_copied_ns(lane) for lane in others]))
    if copying > _EXPLAINS * waiting_ns:
        return (f"it copies {copying / 1e6 / late.window.steps:.1f} ms a step longer than the others",
                "look at that rank's copies: pinned memory, and data that only it moves", True)
    dry = late.gaps.long_ns - float(np.median([lane.gaps.long_ns for lane in others]))
    if dry > _EXPLAINS * waiting_ns:
        each = late.gaps.long_ns / late.gaps.long / 1e6
        return (f"its device runs dry for {each:.1f} ms at a time because the host does something else",
                "look at that rank's data loading, logging, checkpoints and sleeps", True)
    return ("its host launches kernels more slowly",
            "pin ranks to their own cores near their GPU, and compile the step or capture it in a CUDA graph", False)


def _copied_ns(lane: Lane) -> int:
    return sum(copy.in_window_ns for copy in lane.copies)


def _reason_on_host(analysis: Analysis, late: Lane, waiting_ns: float) -> tuple[str, str, bool]:
    """A CPU backend shows only how long a rank is outside of collectives."""
    outside = {budget.rank: budget.compute for budget in step_budgets(analysis)}
    mine = outside.pop(late.rank or 0, 0.0)
    longer = mine - float(np.median(list(outside.values()))) if outside else 0.0
    if longer * 1e9 * late.window.steps > _EXPLAINS * waiting_ns:
        return (f"outside of collectives it takes {longer * 1e3:.1f} ms a step longer than the others",
                "look at that rank's work, data loading, logging and sleeps, and at what else runs on its cores", True)
    return "its host is slower or has more to do", "look at what else runs on its cores", False


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    late = late_rank(analysis)
    return _in_turn(analysis) if late is None else [_one(analysis, late)]


def _one(analysis: Analysis, late: Late) -> Diagnosis:
    lane = next(lane for lane in analysis.lanes if lane.rank == late.rank)
    arrival = next(one for one in arrivals(analysis) if one.rank == late.rank)
    waited = late.cost * span_seconds(lane)
    reason, suggestion, alone = _reason(analysis, lane, waited * 1e9)
    enough = late.steps >= _ENOUGH_STEPS or (arrival.collectives >= _ENOUGH and 2 * late.steps >= _ENOUGH_STEPS)
    matched = "" if late.steps == analysis.steps else " with matched collectives"
    usual = late.pattern == "constant" or (late.pattern == "mostly" and not lane.on_host)
    return Diagnosis(
        "straggler", CRITICAL if alone and enough and usual else WARNING,
        {"rank": late.rank, "late_steps": late.late_steps, "steps": late.steps, "last": arrival.last,
         "collectives": arrival.collectives, "share_of_waiting": late.share, "pattern": late.pattern,
         "waiting_seconds": waited, "late_seconds_mean": arrival.late_seconds, SHARE: min(late.cost, 1.0)},
        f"the others wait for rank {late.rank}: most waiting is for it in {late.late_steps} of {late.steps} "
        f"step{'s' if late.steps > 1 else ''}{matched}, and {late.share:.0%} of all; {reason}", suggestion,
        confidence=HIGH if alone else MEDIUM)


def _in_turn(analysis: Analysis) -> list[Diagnosis]:
    blamed = waiting_for(analysis)
    most = sorted(blamed, key=lambda rank: -blamed[rank])[:3]
    cost = sum(blamed.values()) / span_seconds(next(lane for lane in analysis.lanes if (lane.rank or 0) == most[0]))
    if cost < LEAST_IN_TURN:
        return []
    return [Diagnosis(
        "straggler", WARNING, {"rank": None, "pattern": "alternating", "waiting_seconds": sum(blamed.values()),
                               **{f"waiting_for_rank_{rank}_seconds": blamed[rank] for rank in most},
                               SHARE: min(cost, 1.0)},
        f"ranks wait for each other in turn, mostly for ranks {', '.join(map(str, most))}: {cost:.0%} of the step, and "
        "no one rank is behind it",
        "look for work that differs from step to step (sequence lengths, data loading) and for a host that its ranks "
        "share with others", confidence=MEDIUM)]


def _explains(cause: Diagnosis, other: Diagnosis) -> bool:
    """What a late rank does to itself, and the waiting of all others: in barriers only for a rank that has a name."""
    if other.rule == "exposed_comm":
        return mostly_waits(other)
    if other.rule == "barriers":
        share = other.evidence.get("waiting_share_of_barriers")
        return isinstance(share, float) and share > 0.5 and cause.evidence.get("rank") is not None
    return other.rule in ("launch_gaps", "host_sync") and other.evidence.get("rank") == cause.evidence.get("rank")


RULE = Rule("straggler", "most of the waiting in collectives is for one rank, or ranks are late in turn",
            "a rank waits while its kernel runs longer than the shortest rank's and nothing runs beside it, for the "
            "last rank or for whom that one had waited in another communicator; judged by waiting and not by who is "
            "last, as one rank is always last on a GPU that is sliced in time, and by how many steps it is late in, as "
            "one stall can be most of a trace's waiting. From 5 % of the step on for one rank, 10 % for several, and "
            "for one that is late in half of the steps or fewer",
            _check, needs=(Need.STEPS, Need.RANKS), explains=_explains)
