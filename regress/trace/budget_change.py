"""What changed in the time of a step, part by part, so that the parts add up to the change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from regress.trace.budget import StepBudget

HOURS_PER_DAY = 24
_SMALL = 0.02
"""Parts below this share of what moved in all are put together as "the rest"."""
_ALIKE = 0.95
"""Ranks whose step changed by this much of the largest change tell the same story."""


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """One rank's step before and now. on_host: a CPU backend's, which shows collectives only."""

    before: StepBudget
    now: StepBudget
    on_host: bool = False

    @property
    def rank(self) -> int:
        """Whose step it is."""
        return self.now.rank

    @property
    def change(self) -> float:
        """Seconds that a mean step takes longer."""
        return self.now.step - self.before.step

    @property
    def waiting(self) -> float:
        """Seconds of waiting that were added."""
        return self.now.waiting - self.before.waiting

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """(what, seconds gained) of every part of a budget; they add up to `change`."""
        now, before = self.now, self.before
        others = sorted({*now.waiting_for, *before.waiting_for})
        return (("outside collectives" if self.on_host else "computing", now.compute - before.compute),
                ("transfer", now.transfer - before.transfer),
                *((f"waiting for rank {rank}", now.waiting_for.get(rank, 0.0) - before.waiting_for.get(rank, 0.0))
                  for rank in others),
                *(() if self.on_host else (("late launches", now.host - before.host),
                                           ("idle", now.idle - before.idle))))

    @property
    def sentence(self) -> str:
        """"step +3.20 ms: +2.90 waiting for rank 1, +0.30 transfer": largest part first, and the figures add up."""
        moved = sum(abs(seconds) for _, seconds in self.parts)
        ordered = sorted(self.parts, key=lambda part: -abs(part[1]))
        named = [part for part in ordered if abs(part[1]) >= _SMALL * moved and part[1]]
        rest = [part for part in ordered if part not in named and part[1]]
        if len(rest) == 1:
            named, rest = [*named, *rest], []
        shown = [*named, *([("the rest", math.fsum(seconds for _, seconds in rest))] if rest else [])]
        unit, scale = ("s", 1.0) if moved >= 1 else ("ms", 1e3) if moved >= 1e-3 else ("µs", 1e6)
        digits = max(0, 2 - math.floor(math.log10(moved * scale))) if moved else 2
        total, figures = rounded([seconds * scale for _, seconds in shown], digits)
        said = ", ".join(f"{figure:+.{digits}f} {name}" for (name, _), figure in zip(shown, figures, strict=True)
                         if figure)
        return f"step {total:+.{digits}f} {unit}" + (f": {said}" if said else "")


def money_per_day(before_seconds: float, now_seconds: float, gpus: int, cost_per_gpu_hour: float) -> float:
    """What the same steps cost more per day (less, where negative), on GPUs that work all day.

    That many GPUs cost gpus x 24 x cost a day, and the same work takes now/before times as long.
    """
    return gpus * HOURS_PER_DAY * cost_per_gpu_hour * (now_seconds / before_seconds - 1)


def rounded(values: Sequence[float], digits: int) -> tuple[float, list[float]]:
    """The sum and the values, each rounded so that the rounded values add up to the rounded sum (largest remainder)."""
    scale = 10.0 ** digits
    total = round(math.fsum(values) * scale)
    floors = [math.floor(value * scale) for value in values]
    by_remainder = sorted(range(len(values)), key=lambda i: floors[i] - values[i] * scale)
    for i in by_remainder[:total - sum(floors)]:
        floors[i] += 1
    return total / scale, [floor / scale for floor in floors]


def budget_changes(now: Sequence[StepBudget], before: Sequence[StepBudget], on_host: bool) -> tuple[BudgetChange, ...]:
    """The change on every rank that both runs have; the rank that tells most first.

    That is the one whose step grew (or shrank) most, and of ranks alike in that the one whose waiting changed most: in
    step with each other they all lose the same, and the rank that waits says for whom.
    """
    earlier = {budget.rank: budget for budget in before}
    changes = [BudgetChange(earlier[budget.rank], budget, on_host) for budget in now if budget.rank in earlier]
    most = max((abs(one.change) for one in changes), default=0.0)
    return tuple(sorted(changes, key=lambda one: (abs(one.change) < _ALIKE * most, -abs(one.waiting), one.rank)))
