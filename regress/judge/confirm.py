"""What to measure next: only what is in doubt, only as long as it can still be decided within the budget.

Screening is cheap: a few launches of all cases. What it leaves in doubt is measured again in batches of five, head
and base next to each other in random order where there is a base, else head alone, and judged after each batch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from regress.judge.statistics import FRESH_LOOKS, PAIRED_LOOKS
from regress.judge.verdict import Judgement, Suspect
from regress.record import Case
from regress.units import format_seconds

BATCH = 5
"""Launches (or pairs) from one look to the next."""

FEWEST = 3
"""Launches (or pairs) below which nothing can be decided."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What may still be spent. seconds_left: None where there is no bound.

    launch_seconds: what one launch of the doubtful cases is expected to take, wall clock.
    """

    seconds_left: float | None
    launch_seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The next launches: each runs all of `cases`; `roles` in the order to launch ("head", "base").

    session: the number to record on these launches. traced: some of the doubt is in a metric of traced launches, so
    one more traced launch of head belongs to the plan. reason: for the progress line.
    """

    cases: tuple[Case, ...]
    roles: tuple[str, ...]
    session: int
    traced: bool
    reason: str


def fitting(wish: int, budget: Budget, *, has_base: bool, traced: bool = False) -> int:
    """How many of the wished launches (pairs where there is a base) end within the budget.

    traced: one more launch, under a tracer, belongs to them.
    """
    cost = budget.launch_seconds * (2 if has_base else 1)
    if budget.seconds_left is None or cost <= 0:
        return wish
    left = budget.seconds_left - (budget.launch_seconds if traced else 0.0)
    return max(0, min(wish, int(left / cost)))


def doubtful(judgement: Judgement, *, has_base: bool) -> tuple[Suspect, ...]:
    """The suspects that more launches can settle.

    Against an interleaved base, all: also a case in which a relevant loss merely cannot be excluded yet. Without one,
    those that look worse: what keeps the others open is the spread between runs, and fresh launches of head, all of one
    session, do not narrow it.
    """
    return tuple(suspect for suspect in judgement.suspects if has_base or suspect.worse)


def next_measurement(judgement: Judgement, fresh_launches: int, budget: Budget, *, has_base: bool, seed: int
                     ) -> Plan | None:
    """The next batch, or None when nothing is in doubt, the last look is reached, or not even one pair fits.

    fresh_launches: head launches made since the suspicion arose. A batch leads to the next look (`PAIRED_LOOKS`,
    `FRESH_LOOKS`); where the budget ends before, it is cut to what fits, and at least three pairs are needed.
    """
    looks = PAIRED_LOOKS if has_base else FRESH_LOOKS
    target = next((look for look in looks if fresh_launches < look), None)
    suspects = doubtful(judgement, has_base=has_base)
    if not suspects or target is None:
        return None
    traced = any(suspect.traced for suspect in suspects)
    count = fitting(target - fresh_launches, budget, has_base=has_base, traced=traced)
    if count < 1 or fresh_launches + count < FEWEST:
        return None
    cost = budget.launch_seconds * (2 if has_base else 1)
    cases = tuple(suspect.case for suspect in suspects)
    roles = block_order(count, seed + fresh_launches) if has_base else ("head",) * count
    what = f"{len(cases)} case{'s' if len(cases) != 1 else ''} in doubt"
    how = f"{count} pairs of base and head, interleaved" if has_base else f"{count} fresh launches"
    return Plan(cases, roles, fresh_launches // BATCH + 1, traced,
                f"{what}: {how}, about {format_seconds(cost * count)}")


def block_order(pairs: int, seed: int) -> tuple[str, ...]:
    """Head and base once in each block of two, which first by a coin from `seed`.

    A fixed order would turn a machine's slow drift into a difference between head and base.
    """
    coin = random.Random(seed)  # noqa: S311 - an order to be repeated, not a secret
    return tuple(role for _ in range(pairs)
                 for role in (("head", "base") if coin.random() < 0.5 else ("base", "head")))


def unaffordable(judgement: Judgement, budget: Budget, *, has_base: bool) -> str | None:
    """Why doubt remains though launches could remove it, for the warnings; None when the budget was not the reason."""
    cost = budget.launch_seconds * (2 if has_base else 1)
    suspects = doubtful(judgement, has_base=has_base)
    traced = any(suspect.traced for suspect in suspects)
    if not suspects or fitting(FEWEST, budget, has_base=has_base, traced=traced) == FEWEST:
        return None
    names = ", ".join(suspect.case.id for suspect in suspects)
    wishes = [suspect.needed_launches for suspect in suspects if suspect.needed_launches is not None]
    text = f"the time budget ended before {names} could be decided"
    if wishes:
        text += f"; about {max(wishes)} launches a side ({format_seconds(max(wishes) * cost)}) would decide"
    return text
