"""Launches that nobody makes: what ranks would leave, slower or wrong for the faults that this launcher believes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from regress.measure.launch import LaunchResult
from regress.record import Case, LaunchSpec, Progress, RankResult
from regress.selftest.trials import FAULT_VARIABLE

STEP = 0.02


@dataclass(slots=True)
class PlayedLauncher:
    """slower: by fault, by what factor. wrong: faults whose results are wrong. asked: the fault of each launch."""

    slower: Mapping[str, float] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    asked: list[str | None] = field(default_factory=list)

    def launch(self, spec: LaunchSpec, *, index: int, role: str, deadline_seconds: float,  # noqa: ARG002
               case_deadline_seconds: float | None = None,  # noqa: ARG002
               on_progress: Callable[[Progress], None] | None = None,  # noqa: ARG002
               environment: Mapping[str, str | None] | None = None,
               command_prefix: tuple[str, ...] = ()) -> LaunchResult:  # noqa: ARG002
        fault = (environment or {}).get(FAULT_VARIABLE)
        self.asked.append(fault)
        results = tuple(tuple(self._result(case, rank, index, fault or "") for rank in range(case.world_size))
                        for case in spec.cases)
        return LaunchResult(index, role, spec.seed, "2026-01-01T00:00:00+00:00", spec.cases, results, 1.0, 1.0)

    def _result(self, case: Case, rank: int, index: int, fault: str) -> RankResult:
        seconds = STEP * self.slower.get(fault, 1.0) * (1 + 0.004 * (index % 3))
        found = RankResult(rank, case.world_size, case, {case.timing.value: (seconds,) * 20}, checked_elements=10,
                           work_bytes=case.message_size_bytes, bus_factor=1.0, samples_per_step=8)
        return replace(found, wrong_elements=1) if fault in self.wrong else found


class Silent:
    def message(self, text: str) -> None: ...
    def case_started(self, text: str) -> None: ...
    def progress(self, text: str) -> None: ...
