"""The shelf of detectors: each looks at one series and has one opinion.

A detector is one `Detector` value in a file beside this one. The fields of its options become keys of a metric's
policy in thresholds.yaml, so they are unique over all detectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from regress.options import option
from regress.record import Case, Finding, Measurement
from regress.units import Better, Unit

ALPHA = 0.002
"""How often an unchanged build may be called changed, over all its series: once in 1,000 slower, as often faster."""


@dataclass(frozen=True, slots=True)
class SeriesOptions:
    """What every series has, whichever detectors look at it: what its verdicts do to the build."""

    severity: str = option("fail", choices=("fail", "warn", "inform"),
                           help="what a regression does: fail the build, warn, or only be listed")
    inconclusive: str = option("amber", choices=("amber", "fail"),
                               help="what an inconclusive verdict does: amber passes, fail ends with status 10")
    inconclusive_limit: int = option(10, minimum=0,
                                     help="inconclusive that many runs in a row ends with status 10; 0: never")
    no_baseline: str = option("pass", choices=("pass", "fail"),
                              help="what a first run does: pass, or fail to end with status 10")
    retired: bool = option(False, help="the metric is gone on purpose: its absence is not invalid")


@dataclass(frozen=True, slots=True)
class RunValues:
    """One metric of one case in one earlier run: its launches in order.

    statistic: the statistic of a launch that run was judged on; None where it was not judged.
    """

    run_id: str
    commit: str | None
    started_at: str
    launches: tuple[Measurement, ...]
    statistic: str | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """All that a detector may see of one metric of one case.

    now: this run's head launches; once a suspicion was re-measured, the fresh launches only. base: launches of the
    base reference, interleaved with head in one session and in the same order (pair i is now[i], base[i]); empty
    unless a suspicion was confirmed against one. window: matching earlier main-branch runs, oldest first.
    anchor: the last accepted run, or the first of this environment where none was accepted; None where there is none.
    confirmed: `now` was measured after a suspicion arose, so it is evidence of its own.
    """

    case: Case
    metric: str
    unit: Unit
    better: Better
    now: tuple[Measurement, ...]
    window: tuple[RunValues, ...] = ()
    base: tuple[Measurement, ...] = ()
    anchor: RunValues | None = None
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class Detector:
    """One way to look at a series.

    options: frozen dataclass of options (`regress.options.option`). judge: returns None where the policy gives it
    nothing to do (a limit detector without a limit).
    """

    name: str
    summary: str
    options: type
    judge: Callable[[Series, Any], Finding | None]
