"""The shelf of workloads: what the gate runs inside rank processes.

A workload is one file beside this one that declares one `Workload`. Importing the shelf does not import torch:
a workload's `prepare` does, inside the rank process. The other files are the harness that runs there:

    harness       one launch in one rank: the cases in order, each result written as soon as it is there
    operation     what harness and workload hand each other
    communicator  joining the process group; barriers, decisions and agreement outside the measured communicator
    clock         warm-up, how many iterations, and the timed loops
    verify        values that have one right answer
    tracing       ranges, marks and the capture window for nsys and Kineto
    flight        PyTorch's flight recorder, written down when the launcher asks for it
    outbox        results and progress, as files
    user_step     the contract of a training step of the user's own
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regress.record import Case

if TYPE_CHECKING:
    from .operation import Operation, RankContext


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
    message_bytes: S (nccl-tests' size) really used for (wished bytes, world size, bytes of one element), after
        alignment; None for a step.
    bus_factor: busbw over algbw as a function of the world size (nccl-tests, doc/PERFORMANCE.md); None for a step.
    """

    name: str
    summary: str
    collective: bool
    prepare: Callable[[RankContext, Case, Any], Operation]
    options: type = NoOptions
    bus_factor: Callable[[int], float] | None = None
    message_bytes: Callable[[int, int, int], int] | None = None
