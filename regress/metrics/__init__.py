"""The shelf of metrics: values in (rank results, or a timeline), one number out, with its unit and direction.

A metric is one `Metric` value in a file beside this one. Its `name` may hold `{workload}`: one declaration then
serves every collective (`{workload}_seconds` is `allreduce_seconds` in an allreduce case).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from regress.record import Case, Measurement, RankResult, TimingMode
from regress.units import Better, Unit

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis


@dataclass(frozen=True, slots=True)
class Reading:
    """A metric's value from a trace: folded over ranks by the worst rank in the metric's direction.

    by_rank: the same per rank, where it exists per rank. samples: one value a collective, where there is one for each.
    detail: figures that the value is made of, by name, in base units. None instead of a Reading means "not measured".
    """

    value: float
    by_rank: dict[int, float] = field(default_factory=dict)
    samples: tuple[float, ...] = ()
    detail: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """One named number.

    summary: its definition in one sentence; source: where the formula comes from.
    collective: applies to collectives (True), to training steps (False) or to both (None).
    from_ranks: the measurement from all ranks of one case in one launch, ordered by rank, or None.
    from_trace: the reading from a run's traces, or None when this trace cannot give it.
    gated: judged by default when measured.
    """

    name: str
    unit: Unit
    better: Better
    summary: str
    source: str
    collective: bool | None = None
    from_ranks: Callable[[Metric, Case, tuple[RankResult, ...]], Measurement | None] | None = None
    from_trace: Callable[[Analysis], Reading | None] | None = None
    gated: bool = False

    def name_for(self, workload: str) -> str:
        """The metric's name in cases of that workload."""
        return self.name.format(workload=workload)


def slowest_rank(results: Sequence[RankResult], mode: TimingMode) -> tuple[float, ...]:
    """Seconds of each iteration in that timing mode on its slowest rank; empty when any rank has none.

    Ranks that measured different numbers of iterations cannot be matched one to one: only the common head counts.
    """
    series = [result.seconds.get(mode.value, ()) for result in results]
    return tuple(max(values) for values in zip(*series, strict=False)) if series else ()


def worst(by_rank: dict[int, float], better: Better) -> float:
    """The value of the worst rank in the metric's direction; `by_rank` is not empty."""
    return max(by_rank.values()) if better is Better.LOWER else min(by_rank.values())
