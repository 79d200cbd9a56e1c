"""The shelf of detectors: each looks at one series and has one opinion.

A detector is one `Detector` value in a file beside this one. The fields of its options become keys of a metric's
policy in thresholds.yaml, so they are unique over all detectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from regress.record import Case, Finding, Measurement
from regress.units import Better, Unit


@dataclass(frozen=True, slots=True)
class RunValues:
    """One metric of one case in one earlier run: its launches in order."""

    run_id: str
    commit: str | None
    started_at: str
    launches: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """All that a detector may see of one metric of one case.

    now: this run's head launches. base: launches of the base reference, interleaved with head in one session;
    empty unless a suspicion was confirmed against one. window: matching earlier main-branch runs, oldest first.
    anchor: the last accepted run, None where none was accepted.
    """

    case: Case
    metric: str
    unit: Unit
    better: Better
    now: tuple[Measurement, ...]
    window: tuple[RunValues, ...] = ()
    base: tuple[Measurement, ...] = ()
    anchor: RunValues | None = None


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
