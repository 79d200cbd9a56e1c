"""Launches that were never made: rank results from a seeded generator, with the parts that a test is about."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from regress.measure.launch import LaunchResult
from regress.record import Case, RankResult, TimingMode

ALLREDUCE = Case("allreduce", "float32", 2, "cpu", TimingMode.ISOLATED, 1 << 20)
ALLGATHER = Case("allgather", "float32", 2, "cpu", TimingMode.ISOLATED, 1 << 20)
STEP = Case("ddp_step", "float32", 2, "cpu", TimingMode.STEP)
CASES = (ALLREDUCE, ALLGATHER, STEP)
ALONE = replace(ALLREDUCE, world_size=1, ranks_per_node=1)
THRESHOLDS = """\
schema: 1
cases:
  - {workload: allreduce, devices: [cpu], sizes: [1MiB]}
  - {workload: allgather, devices: [cpu], sizes: [1MiB]}
  - {workload: ddp_step, devices: [cpu]}
"""

_SECONDS = {ALONE: 100e-6, ALLREDUCE: 400e-6, ALLGATHER: 250e-6, STEP: 20e-3}
_ITERATIONS = 40
Change = Callable[[RankResult], RankResult | None]


def launches(seed: int, slower: Mapping[Case, float] | None = None, *, count: int = 12, spread: float = 0.01,
             change: Mapping[Case, Change] | None = None,
             cases: tuple[Case, ...] = CASES) -> list[LaunchResult]:
    """Launches of the cases. slower: factor on the durations of a case. spread: between launches, relative.

    change: turns each rank's result of a case into another one, or into none.
    """
    chance = random.Random(seed)  # noqa: S311 - made-up durations
    made = []
    for index in range(count):
        results = tuple(_ranks(case, (slower or {}).get(case, 1.0), chance, spread) for case in cases)
        changed = tuple(tuple(rank if case not in (change or {}) else (change or {})[case](rank) for rank in ranks)
                        for case, ranks in zip(cases, results, strict=True))
        made.append(LaunchResult(index, "head", index, "2026-01-01T00:00:00+00:00", cases, changed, 2.0, 1.9))
    return made


def _ranks(case: Case, factor: float, chance: random.Random, spread: float) -> tuple[RankResult, ...]:
    level = _SECONDS[case] * factor * math.exp(chance.gauss(0.0, spread))
    series = tuple(level * math.exp(chance.gauss(0.0, 0.02)) for _ in range(_ITERATIONS))
    collective = case.message_size_bytes is not None
    ranks = case.world_size
    bus = {"allreduce": 2 * (ranks - 1) / ranks, "allgather": (ranks - 1) / ranks}.get(case.workload)
    one = RankResult(0, ranks, case, {case.timing.value: series}, case.message_size_bytes, bus,
                     None if collective else 16, 0.01, 10, 1000)
    return tuple(replace(one, rank=rank) for rank in range(ranks))


def wrong_values(result: RankResult) -> RankResult:
    """Rank 1 computed three wrong elements."""
    return replace(result, wrong_elements=3) if result.rank == 1 else result


def lost_rank(result: RankResult) -> RankResult | None:
    """Rank 1 left nothing."""
    return None if result.rank == 1 else result


def failed(result: RankResult) -> RankResult:
    """Rank 1 met a value that is no number."""
    return replace(result, seconds={}, error="the loss is nan at step 3") if result.rank == 1 else result
