"""What a caller may add to a report beside the runs: the trace of one step, and limits."""

from __future__ import annotations

from dataclasses import dataclass

from regress.record import Diagnosis

Interval = tuple[float, float]
"""Start and end in seconds since the step began."""


@dataclass(frozen=True, slots=True)
class RankStrip:
    """What one rank's GPU did in the step: intervals of compute and of communication kernels, ascending."""

    rank: int
    compute: tuple[Interval, ...]
    communication: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class CollectiveSkew:
    """The k-th collective of the step, matched over ranks.

    skew_seconds: last start minus first start. transfer_seconds: the shortest rank's duration. last_rank: the rank
    that arrived last, for which the others waited.
    """

    name: str
    skew_seconds: float
    transfer_seconds: float
    last_rank: int


@dataclass(frozen=True, slots=True)
class TraceView:
    """One step of a traced run: a picture of overlap and of who waits for whom.

    title: what was traced (case, step). findings: as `regress explain` gives them, worst first.
    """

    title: str
    strips: tuple[RankStrip, ...]
    collectives: tuple[CollectiveSkew, ...] = ()
    findings: tuple[Diagnosis, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """The absolute floor and ceiling of a metric in its base unit, None where the thresholds set none."""

    minimum: float | None = None
    maximum: float | None = None
