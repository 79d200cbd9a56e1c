"""Recorded launches of a real GPU, played as if settings had made them faster or slower."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from regress.measure.launch import LaunchResult
from regress.measure.replay import ReplayLauncher, read_recording
from regress.record import Case, LaunchSpec, Progress, RankResult

RECORDING = Path(__file__).parents[1] / "data" / "measure" / "nccl_1gpu_mps.json.gz"


@dataclass(slots=True)
class Played:
    """A launcher: the recording's first launch, each time with noise of its own, and what settings do to it.

    factors: on durations, by a word of the setting such as "NCCL_PROTO=LL" or "bucket_cap_mb=50". broken: words of
    settings whose launches fail. made: the settings of all launches so far, in order.
    """

    factors: Mapping[str, float] = field(default_factory=dict)
    broken: frozenset[str] = frozenset()
    spread: float = 0.01
    made: list[str] = field(default_factory=list)
    _player: ReplayLauncher = field(default_factory=lambda: ReplayLauncher(read_recording(RECORDING).launches[:1]))
    _chance: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311 - made-up noise

    def launch(self, spec: LaunchSpec, *, index: int, role: str, deadline_seconds: float,
               case_deadline_seconds: float | None = None,  # noqa: ARG002 - the protocol's
               on_progress: Callable[[Progress], None] | None = None,  # noqa: ARG002
               environment: Mapping[str, str | None] | None = None,
               command_prefix: tuple[str, ...] = ()) -> LaunchResult:  # noqa: ARG002
        """The next recorded launch, changed."""
        words = [f"{name}={value}" for name, value in (environment or {}).items()]
        words += [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                  for case in spec.cases for name, value in case.options]
        self.made.append(" ".join(dict.fromkeys(words)))
        plain = {replace(case, options=()): case for case in spec.cases}
        played = self._player.launch(replace(spec, cases=tuple(plain)), index=index, role=role,
                                     deadline_seconds=deadline_seconds)
        factor = math.prod(self.factors.get(word, 1.0) for word in dict.fromkeys(words))
        factor *= math.exp(self._chance.gauss(0.0, self.spread))
        results = tuple(tuple(_changed(one, case, factor) for one in ranks)
                        for case, ranks in zip(plain.values(), played.results, strict=True))
        if any(word in self.broken for word in words):
            return replace(played, cases=spec.cases, results=tuple((None, None) for _ in results),
                           error="rank 0 failed: invalid usage\nmore lines")
        return replace(played, cases=spec.cases, results=results)


def _changed(result: RankResult | None, case: Case, factor: float) -> RankResult | None:
    if result is None:
        return None
    return replace(result, case=case, seconds={mode: tuple(value * factor for value in series)
                                               for mode, series in result.seconds.items()})
