"""Where the change of a step's time went."""

from __future__ import annotations

from regress.diagnose import INFO, Circumstances, Need, Rule
from regress.record import Diagnosis, Scalar
from regress.trace.budget import step_budgets
from regress.trace.budget_change import budget_changes, money_per_day
from regress.units import format_change

_LEAST = 0.01


def _examine(seen: Circumstances, against: Circumstances | None) -> list[Diagnosis]:
    if against is None:
        return []
    host = all(lane.on_host for lane in seen.analysis.lanes)
    changes = budget_changes(step_budgets(seen.analysis), step_budgets(against.analysis), host)
    if not changes or not changes[0].before.step or abs(changes[0].change) < _LEAST * changes[0].before.step:
        return []
    told = changes[0]
    evidence: dict[str, Scalar] = {
        "rank": told.rank, "step_seconds": told.now.step, "step_seconds_before": told.before.step,
        **{f"{name.replace(' ', '_')}_seconds": seconds for name, seconds in told.parts}}
    ratio = told.now.step / told.before.step
    money = ""
    if seen.cost_per_gpu_hour is not None and not host:
        daily = money_per_day(told.before.step, told.now.step, seen.analysis.devices, seen.cost_per_gpu_hour)
        evidence["cost_per_day"] = daily
        money = f"; {daily:+.2f} a day for the same work"
    return [Diagnosis(
        "step_change", INFO, evidence, f"rank {told.rank}: {told.sentence} ({format_change(ratio - 1)}{money})",
        "start with the largest part")]


RULE = Rule("step_change", "a step takes longer or shorter, and where that went",
            "a step's time is the sum of computing, exposed transfer, waiting, late launches and idle; so is its "
            "change. Figures of traced launches", examine=_examine, needs=(Need.STEPS, Need.BEFORE))
