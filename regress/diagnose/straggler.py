"""One rank that the others wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from regress.diagnose import CRITICAL, SHARE, WARNING, Rule
from regress.record import Diagnosis
from regress.trace.messages import arrivals

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis
    from regress.trace.lane import Lane

_SHARE_OF_WAITING = 0.6
_LEAST_WAITING = 0.05
_ENOUGH = 20
_LONG_GAP_NS = 1_000_000
_EXPLAINS = 0.5
"""Part of the waiting that a cause must account for before it is named."""


def waiting_for(analysis: Analysis) -> dict[int, float]:
    """Seconds that the other ranks, on average, waited for each rank: a collective's waiting goes to who came last."""
    blamed = dict.fromkeys((lane.rank or 0 for lane in analysis.lanes), 0.0)
    for group in analysis.matching.groups:
        others = len(group.ranks) - 1
        waited = (group.end - group.start - group.transfer_ns[:, None]).sum(axis=1) / others
        for column, rank in enumerate(group.ranks):
            blamed[rank] += float(waited[group.last == column].sum()) / 1e9
    return blamed


def _reason(analysis: Analysis, late: Lane, waiting_ns: float) -> tuple[str, str, bool]:
    """Why the rank is late, what to try, and whether that explains the waiting and is a fault of this rank alone."""
    others = [lane for lane in analysis.device_lanes if lane.rank != late.rank]
    if late.on_host or not others:
        return "its host is slower or has more to do", "look at what else runs on its cores", False
    compute = float(np.median([lane.in_window.compute_ns for lane in others]))
    if late.in_window.compute_ns - compute > _EXPLAINS * waiting_ns:
        return (f"its kernels compute {late.in_window.compute_ns / max(compute, 1) - 1:.0%} longer than on the others",
                "balance the work between ranks, and compare clocks and throttling of that GPU", True)
    mean_gap = late.gaps.late_ns / max(late.gaps.late, 1)
    usual = float(np.median([lane.gaps.late_ns for lane in others]))
    if mean_gap >= _LONG_GAP_NS and late.gaps.late_ns - usual > _EXPLAINS * waiting_ns:
        return (f"its device runs dry for {mean_gap / 1e6:.1f} ms at a time because the host does something else",
                "look at that rank's data loading, logging, checkpoints and sleeps", True)
    return ("its host launches kernels more slowly",
            "pin ranks to their own cores near their GPU, and compile the step or capture it in a CUDA graph", False)


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    blamed = waiting_for(analysis)
    total = sum(blamed.values())
    if not total:
        return []
    culprit = max(blamed, key=lambda rank: blamed[rank])
    late = next(lane for lane in analysis.lanes if lane.rank == culprit)
    span = (late.in_window.span_ns or late.window.end - late.window.start) / 1e9
    share, cost = blamed[culprit] / total, blamed[culprit] / span
    if share < _SHARE_OF_WAITING or cost < _LEAST_WAITING:
        return []
    arrival = next(one for one in arrivals(analysis) if one.rank == culprit)
    if arrival.last <= arrival.collectives / 2:
        return []
    reason, suggestion, alone = _reason(analysis, late, blamed[culprit] * 1e9)
    sure = alone and analysis.steps is not None and arrival.collectives >= _ENOUGH
    return [Diagnosis(
        "straggler", CRITICAL if sure else WARNING,
        {"rank": culprit, "last": arrival.last, "collectives": arrival.collectives, "share_of_waiting": share,
         "waiting_seconds": blamed[culprit], "late_seconds_mean": arrival.late_seconds, SHARE: min(cost, 1.0)},
        f"the others wait for rank {culprit}: it came last in {arrival.last} of {arrival.collectives} collectives, and "
        f"{share:.0%} of all waiting is for it; {reason}", suggestion)]


RULE = Rule("straggler", "most of the waiting in collectives is for one rank",
            "a rank's waiting is its kernel's duration beyond the shortest rank's; judged by waiting and not by who is "
            "last, as one rank is always last on a GPU that is sliced in time", _check)
