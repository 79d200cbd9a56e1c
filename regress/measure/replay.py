"""Recorded launches: one small file, and a launcher that plays it instead of starting ranks."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from regress.errors import MeasurementError, RecordError
from regress.measure.launch import LaunchResult
from regress.record import Case, LaunchSpec, Progress, RankResult


@dataclass(frozen=True, slots=True)
class Recording:
    """Launches of one machine as a file keeps them. about: where they come from."""

    about: str
    launches: tuple[LaunchResult, ...]


def write_recording(path: Path, about: str, launches: Sequence[LaunchResult]) -> None:
    """Writes launches to `path`, compressed when it ends in .gz; folders and log paths of this machine left out."""
    cleaned = tuple(replace(launch, logs=(), folder="") for launch in launches)
    data = msgspec.json.encode(Recording(about, cleaned))
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read_recording(path: Path) -> Recording:
    """What `write_recording` wrote; RecordError when the file is cut or foreign."""
    try:
        data = path.read_bytes()
        return msgspec.json.decode(gzip.decompress(data) if path.suffix == ".gz" else data, type=Recording)
    except (msgspec.DecodeError, UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise RecordError(str(error), where=str(path), accepted="a recording of launches") from error


@dataclass(slots=True)
class ReplayLauncher:
    """Plays recorded launches: the n-th launch of a role gets the n-th recorded one of that role.

    A role without recordings of its own ("base", "traced") plays those of "head". When they run out they begin anew
    if `repeat`, else MeasurementError. Results are put into the order of the spec's cases; a case that was not
    recorded has no results.
    """

    launches: Sequence[LaunchResult]
    repeat: bool = True
    _played: dict[str, int] = field(default_factory=dict, init=False)

    @staticmethod
    def from_files(paths: Iterable[Path], repeat: bool = True) -> ReplayLauncher:
        """A launcher for recordings, or for the recordings (*.json, *.json.gz) in a folder."""
        files = [file for path in paths
                 for file in (sorted(path.glob("*.json*")) if path.is_dir() else [path])]
        return ReplayLauncher([launch for file in files for launch in read_recording(file).launches], repeat)

    def launch(self, spec: LaunchSpec, *, index: int, role: str,
               deadline_seconds: float,  # noqa: ARG002  the protocol's, and nothing here takes time or runs a process
               case_deadline_seconds: float | None = None,  # noqa: ARG002
               on_progress: Callable[[Progress], None] | None = None,
               environment: Mapping[str, str | None] | None = None,  # noqa: ARG002
               command_prefix: tuple[str, ...] = ()) -> LaunchResult:  # noqa: ARG002
        """The next recorded launch of this role as if it had just been run for `spec` (see `Launcher`)."""
        recorded = self._next(role)
        by_case = dict(zip(recorded.cases, recorded.results, strict=True))
        results = tuple(_played(case, by_case) for case in spec.cases)
        if on_progress is not None:
            for case in spec.cases:
                on_progress(Progress(0.0, case.id, "replay", done=True))
        return replace(recorded, index=index, role=role, seed=spec.seed, cases=spec.cases, results=results,
                       folder=spec.results_dir)

    def _next(self, role: str) -> LaunchResult:
        known = [launch for launch in self.launches if launch.role == role]
        known = known or [launch for launch in self.launches if launch.role == "head"]
        turn = self._played.get(role, 0)
        self._played[role] = turn + 1
        if not known or (turn >= len(known) and not self.repeat):
            raise MeasurementError(f"no recorded launch is left for role {role!r} after {turn}",
                                   where="replay", accepted=f"at most {len(known)} launches")
        return known[turn % len(known)]


def _played(case: Case, by_case: Mapping[Case, tuple[RankResult | None, ...]]) -> tuple[RankResult | None, ...]:
    return by_case.get(case, (None,) * case.world_size)
