"""What a launch is to the rest of the gate: the Launcher protocol and the LaunchResult.

`regress.measure.torchrun` starts real ranks; `regress.measure.replay` plays recorded launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from regress.measure.progress import RankState
from regress.record import Case, LaunchSpec, Progress, RankResult


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """What one launch left behind.

    results: for each case in the order of the spec, for each rank its result, None where the rank left none.
    wall_seconds: start to end of the launcher's work; rank_wall_seconds: the longest rank process.
    error: why the launch as a whole failed (a rank died or hung), None when every rank ended well. The results of
        cases that were finished before are still there.
    states: how far each rank came. logs: stdout and stderr files of the ranks.
    command_exit: exit status of the wrapping command where the launch had one.
    folder: where the ranks' files are (trace files of a traced launch too).
    evidence: of a launch that hung, the files to keep: dumps of the flight recorder, stdout and stderr of the ranks.
    """

    index: int
    role: str
    seed: int
    started_at: str
    cases: tuple[Case, ...]
    results: tuple[tuple[RankResult | None, ...], ...]
    wall_seconds: float
    rank_wall_seconds: float
    error: str | None = None
    states: tuple[RankState, ...] = ()
    logs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    command_exit: int | None = None
    folder: str = ""
    evidence: tuple[str, ...] = ()


class Launcher(Protocol):
    """Starts all rank processes of one launch, waits, and hands back what they left."""

    def launch(self, spec: LaunchSpec, *, index: int, role: str, deadline_seconds: float,
               case_deadline_seconds: float | None = None,
               on_progress: Callable[[Progress], None] | None = None,
               environment: Mapping[str, str | None] | None = None,
               command_prefix: tuple[str, ...] = ()) -> LaunchResult:
        """One launch.

        deadline_seconds: for the whole launch. case_deadline_seconds: longest time without progress of any rank
            once the first has begun a case. On either every process of the launch is ended.
        on_progress: called with each line of rank 0, in this thread.
        environment: variables for the ranks, None to unset one. command_prefix: a command (a tracer) to run it under.
        """
        ...
