"""One training step of a kept trace as a picture: what each rank's GPU did, and who arrived last at each collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regress.errors import RegressError
from regress.publish.html import CollectiveSkew, RankStrip, TraceView
from regress.record import Run
from regress.trace.intervals import Intervals, covers, union
from regress.trace.kept import kept_traces
from regress.trace.read import read_timeline
from regress.trace.timeline import Int64, Timeline
from regress.trace.window import lanes_of, steps_of

TRACE_SUFFIXES = (".sqlite", ".json", ".gz")


@dataclass(frozen=True, slots=True, eq=False)
class _Lane:
    """One rank's kernels in the step, in nanoseconds on a clock all files share."""

    rank: int
    compute: Intervals
    communication: Intervals
    comm_start: Int64
    comm_end: Int64
    comm_name: tuple[str, ...]


def _lane(timeline: Timeline, process: int, rows: Int64, step: int, number: int) -> _Lane | None:
    """The kernels that were launched inside the step's range; None where the process had no such step."""
    kernels = timeline.kernels
    starts, ends = steps_of(timeline, process)
    if step >= len(starts):
        return None
    span = Intervals(starts[step:step + 1], ends[step:step + 1])
    chosen = rows[covers(span, kernels.launch[rows])]
    offset = timeline.began_ns or 0
    start, end, comm = kernels.start[chosen] + offset, kernels.end[chosen] + offset, kernels.is_comm[chosen]
    rank = timeline.processes[process].rank
    names = tuple(timeline.names[name] for name in kernels.name[chosen][comm])
    return _Lane(number if rank is None else rank, union(start[~comm], end[~comm]), union(start[comm], end[comm]),
                 start[comm], end[comm], names)


def step_picture(paths: Sequence[Path], title: str, step: int | None = None) -> TraceView | None:
    """The picture of one step (the middle one where None); None where the trace holds no step with kernels.

    Raises TraceInputError for files that cannot be read.
    """
    timelines = [read_timeline(path) for path in paths]
    counts = [len(steps_of(t, p)[0]) for t in timelines for p in range(len(t.processes))]
    steps = max(counts, default=0)
    if not steps:
        return None
    chosen = steps // 2 if step is None else step
    lanes: list[_Lane] = []
    for timeline in timelines:
        for (process, _device), rows in lanes_of(timeline):
            lane = _lane(timeline, process, rows, chosen, len(lanes))
            if lane is not None and len(lane.compute) + len(lane.communication):
                lanes.append(lane)
    if not lanes:
        return None
    lanes.sort(key=lambda lane: lane.rank)
    zero = min(int(part.start[0]) for lane in lanes for part in (lane.compute, lane.communication) if len(part))
    strips = tuple(RankStrip(lane.rank, _seconds(lane.compute, zero), _seconds(lane.communication, zero))
                   for lane in lanes)
    return TraceView(f"{title}, step {chosen + 1} of {steps} traced", strips, _skews(lanes))


def _seconds(intervals: Intervals, zero: int) -> tuple[tuple[float, float], ...]:
    return tuple((float(start - zero) / 1e9, float(end - zero) / 1e9)
                 for start, end in zip(intervals.start, intervals.end, strict=True))


def _skews(lanes: Sequence[_Lane]) -> tuple[CollectiveSkew, ...]:
    """The k-th collective of the step over ranks; none where ranks ran different numbers of them."""
    if len({len(lane.comm_start) for lane in lanes}) != 1:
        return ()
    starts = np.stack([lane.comm_start for lane in lanes])
    durations = np.stack([lane.comm_end for lane in lanes]) - starts
    return tuple(CollectiveSkew(lanes[0].comm_name[k], float(np.ptp(starts[:, k])) / 1e9,
                                float(durations[:, k].min()) / 1e9, lanes[int(starts[:, k].argmax())].rank)
                 for k in range(starts.shape[1]))


def latest_picture(runs: Sequence[Run]) -> TraceView | None:
    """The picture of the newest traced launch with a step that is still there; `runs` newest first."""
    for run in runs:
        for files in kept_traces(Path(run.artifacts["trace"])) if "trace" in run.artifacts else ():
            paths = [path for path in files if path.suffix in TRACE_SUFFIXES]
            try:
                view = step_picture(paths, f"run {run.run_id}") if paths else None
            except RegressError:
                continue  # a trace that cannot be read is told by `regress explain`; the report goes on without it
            if view is not None:
                return TraceView(view.title, view.strips, view.collectives, run.diagnoses)
    return None
