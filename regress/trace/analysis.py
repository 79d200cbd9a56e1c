"""All that one run's traces say, put together: what metrics and rules of diagnosis look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from regress.errors import TraceInputError, TraceUnfitError
from regress.trace.collectives import Matching, match
from regress.trace.health import Health, check
from regress.trace.identity import assign_ranks
from regress.trace.lane import Lane
from regress.trace.timeline import IdentitySource, Tracer
from regress.trace.window import WindowSource


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """One run (or one case of it) as its traces show it.

    lanes: one a rank, in order of rank. matching: collectives matched across ranks. within: the host range the analysis
    is restricted to, None for the whole capture.
    """

    tracer: Tracer
    versions: tuple[str, ...]
    lanes: tuple[Lane, ...]
    matching: Matching
    health: Health
    warnings: tuple[str, ...] = ()
    within: str | None = None

    @property
    def devices(self) -> int:
        """Physical GPUs in the traces; 0 for a run on the CPU."""
        return len({lane.gpu for lane in self.lanes if not lane.on_host})

    @property
    def steps(self) -> int | None:
        """Training steps every rank entered, None where no step range is in the trace."""
        return min((lane.window.steps for lane in self.lanes), default=0) or None

    @property
    def window_source(self) -> WindowSource:
        """What ratios are taken over: step ranges where every rank has them, else the kernels' span."""
        stepped = all(lane.window.source is WindowSource.STEPS for lane in self.lanes)
        return WindowSource.STEPS if stepped else WindowSource.KERNELS

    @property
    def identity(self) -> IdentitySource:
        """How ranks were found, by the least trustworthy of them."""
        order = list(IdentitySource)
        return max((lane.source for lane in self.lanes), key=order.index)

    @property
    def device_lanes(self) -> tuple[Lane, ...]:
        """Lanes with a device to measure."""
        return tuple(lane for lane in self.lanes if not lane.on_host)


def assemble(lanes: Sequence[Lane], tracers: Mapping[str, tuple[Tracer, str]], *, within: str | None = None,
             warnings: Sequence[str] = ()) -> Analysis:
    """Put the lanes of all files of a run together.

    tracers: which tracer, and which version of it, wrote each file.
    Raises TraceInputError for files that do not belong together and TraceUnfitError where nothing can be trusted.
    """
    if not lanes:
        raise TraceUnfitError("no rank is left in the trace", where=", ".join(tracers),
                              accepted=f"kernels inside the range {within!r}" if within else "kernels of a rank")
    if len({tracer for tracer, _ in tracers.values()}) > 1:
        each = {tracer.value: file for file, (tracer, _) in tracers.items()}
        raise TraceInputError(f"{', '.join(f'{file} ({name})' for name, file in each.items())}: different tracers",
                              accepted="files of one tracer, as figures of two cannot be put together")
    ranked, assumed = assign_ranks(_closed_alike(lanes))
    matching = match(ranked)
    health = check(ranked, matching)
    tracer = next(iter(tracers.values()))[0]
    versions = tuple(sorted({version for _, version in tracers.values()}))
    said = (*warnings, *assumed, *matching.warnings, *health.warnings)
    return Analysis(tracer, versions, ranked, matching, health, tuple(dict.fromkeys(said)), within)


def _closed_alike(lanes: Sequence[Lane]) -> Sequence[Lane]:
    """The lanes, with their closing collectives where every rank went on to these at once.

    Where one did something else first (wrote a checkpoint), the others' wait for it is no part of their steps.
    """
    closings = {lane.window.closings for lane in lanes if lane.window.steps and len(lane.collectives)}
    return lanes if len(closings) < 2 else [lane.unclosed or lane for lane in lanes]
