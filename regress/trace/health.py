"""Is the trace itself to be trusted? Checked before any metric, each answer a warning or the end.

Tracers fail silently: they lose kernels, miss ranks, stop early. What a trace shows to be missing is said here, and a
trace that cannot support a metric raises TraceUnfitError instead of giving zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from regress.errors import TraceUnfitError
from regress.trace.collectives import Matching
from regress.trace.lane import Lane
from regress.units import counted

_SLICED_END_SKEW_NS = 500_000
"""Ranks side by side on one GPU end a collective within 80 µs (MPS, measured); time-sliced ones 2 ms apart."""
_SLICED_SHARE = 0.25
_END_SKEW_NS = 200_000
_OVERHEAD_SHARE = 0.01
_LEFT_OUT_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Health:
    """What is wrong with a trace that can still be read.

    time_sliced: ranks took turns on one GPU, so durations are multiples of a slice and only structure means anything.
    missing_ranks: ranks of the world that no file shows.
    """

    warnings: tuple[str, ...] = ()
    time_sliced: bool = False
    missing_ranks: tuple[int, ...] = ()


def check(lanes: Sequence[Lane], matching: Matching) -> Health:
    """The health of a run's lanes, already in order of rank. Raises TraceUnfitError where they support no metric."""
    _refuse_silent_ranks(lanes)
    missing = _missing(lanes)
    sliced = _time_sliced(lanes, matching)
    warnings = [*_lost_events(lanes), *_left_out(lanes)]
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        warnings.append(f"{len(missing)} of {lanes[0].world_size} ranks have no trace (rank {shown}): who is waited "
                        "for is known only among the others")
    if sliced:
        warnings.append("ranks share a GPU that slices its time between them: durations are multiples of a slice, only "
                        "counts and order mean anything (run the CUDA multi-process service to measure)")
    elif matching.count and len({lane.clock for lane in lanes}) == 1:
        skew = float(np.median(matching.column("end_skew_ns")))
        if skew > _END_SKEW_NS and not any(lane.on_host for lane in lanes):
            warnings.append(f"ranks leave a collective {skew / 1e3:.0f} µs apart (median): their clocks may differ, "
                            "so skew and span are doubtful")
    return Health(tuple(warnings), sliced, missing)


def require_collectives(lanes: Iterable[Lane], planned: int) -> None:
    """Raise TraceUnfitError where a rank shows fewer collectives than the workload is known to have run."""
    for lane in lanes:
        if len(lane.collectives) < planned:
            raise TraceUnfitError(f"rank {lane.rank} shows {len(lane.collectives)} collectives of {planned} planned",
                                  where=lane.file, next_step="profile again; the capture lost events or ended early")


def _refuse_silent_ranks(lanes: Sequence[Lane]) -> None:
    """Several ranks must all communicate: one without a collective was not captured, or is no rank."""
    lost = [lane for lane in lanes if lane.on_host]
    if 0 < len(lost) < len(lanes):
        raise TraceUnfitError(f"pid {lost[0].pid} ran collectives but shows no kernel, while other ranks have kernels",
                              where=lost[0].file, next_step="profile again; the capture lost that rank's GPU events")
    if len(lanes) < 2:
        return
    silent = [lane for lane in lanes if len(lane.collectives) == 0]
    if len(silent) == len(lanes):
        raise TraceUnfitError(f"no communication kernel although {len(lanes)} ranks have kernels", where=lanes[0].file,
                              accepted="kernels named nccl*Kernel*, or those of a custom pattern",
                              next_step="capture steps that communicate")
    if silent:
        raise TraceUnfitError(f"rank {silent[0].rank} has kernels but no collective, while others have",
                              where=silent[0].file, next_step="profile again with all ranks inside the capture window")


def _missing(lanes: Sequence[Lane]) -> tuple[int, ...]:
    world = next((lane.world_size for lane in lanes if lane.world_size is not None), None)
    if world is None:
        return ()
    return tuple(sorted(set(range(world)) - {lane.rank for lane in lanes if lane.rank is not None}))


def _time_sliced(lanes: Sequence[Lane], matching: Matching) -> bool:
    """Whether ranks on one GPU take turns: they then leave the same collective about a slice apart.

    Ranks that run side by side leave together, whoever came late, so the skew of ends tells them apart.
    """
    shared = len({lane.gpu for lane in lanes}) < len(lanes)
    if not shared or not matching.count or any(lane.on_host for lane in lanes):
        return False
    far = matching.column("end_skew_ns") > _SLICED_END_SKEW_NS
    return float(np.count_nonzero(far)) / len(far) > _SLICED_SHARE


def _lost_events(lanes: Sequence[Lane]) -> list[str]:
    """What each file shows to be lost, summed over its lanes once."""
    said = []
    for file, lost in {lane.file: lane.lost for lane in lanes}.items():
        kernels = sum(lane.kernels for lane in lanes if lane.file == file)
        if lost.kernels_without_launch:
            said.append(f"{file}: {lost.kernels_without_launch} of {counted(kernels, 'kernel')} without a launch call "
                        "in the trace: the capture began after them, or lost calls")
        if lost.launches_without_kernel:
            said.append(f"{file}: {counted(lost.launches_without_kernel, 'launch call')} without a kernel in the "
                        "trace: the capture ended before them, or lost kernels")
        if lost.negative_kernels:
            said.append(f"{file}: {counted(lost.negative_kernels, 'kernel')} ending before the start, left out")
        if lost.zero_length_kernels:
            said.append(f"{file}: {counted(lost.zero_length_kernels, 'kernel')} without a duration")
        if lost.clipped_ranges:
            said.append(f"{file}: {counted(lost.clipped_ranges, 'range')} still open when the capture ended, left out")
        if lost.graph_launches_hidden:
            said.append(f"{file}: {lost.graph_launches_hidden} CUDA graph launches were traced as a whole, their "
                        "kernels are missing (profile with --cuda-graph-trace=node)")
        said += [f"{file}: {text}" for text in lost.diagnostics]
    for lane in lanes:
        span = lane.in_window.span_ns
        if span and lane.gaps.profiler_ns > _OVERHEAD_SHARE * span:
            held = lane.gaps.profiler_ns / 1e6
            said.append(f"rank {lane.rank}: the profiler itself held the process for {held:.1f} ms of the window of "
                        f"{span / 1e6:.1f} ms; taken out of the launch gaps")
    return said


def _left_out(lanes: Sequence[Lane]) -> Iterator[str]:
    """The lane with the most time between blocks of its steps, where that is worth a word."""
    worst = max(lanes, key=lambda lane: lane.window.left_out_ns)
    if worst.window.left_out_ns > _LEFT_OUT_SHARE * worst.window.spans.total:
        yield (f"rank {worst.rank}: steps come in {len(worst.window.spans)} blocks, far apart: the "
               f"{worst.window.left_out_ns / 1e6:.1f} ms between them are no part of a step and were left out")
