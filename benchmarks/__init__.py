"""The shelf of workloads: what the gate runs inside rank processes.

A workload is one file beside this one that declares one `Workload`. Importing the shelf does not import torch:
a workload's `prepare` does, inside the rank process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regress.record import Case

if TYPE_CHECKING:
    from .harness import Operation, RankContext


@dataclass(frozen=True, slots=True)
class NoOptions:
    """A workload without options of its own."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing the gate can run.

    name: as in thresholds.yaml and in case ids. summary: one line for `--help` and the docs.
    collective: True where cases have a message size and a busbw; False for a training step.
    options: frozen dataclass whose fields, made by `regress.options.option`, are the keys accepted under `options:`.
    prepare: builds the operation on this rank; imports torch; called once per case and launch.
    message_bytes: S (nccl-tests' size) really used for a wished size and a world size, after alignment; None for a step.
    bus_factor: busbw over algbw as a function of the world size; None for a step.
    """

    name: str
    summary: str
    collective: bool
    prepare: Callable[[RankContext, Case, Any], Operation]
    options: type = NoOptions
    bus_factor: Callable[[int], float] | None = None
    message_bytes: Callable[[int, int, int], int] | None = None
