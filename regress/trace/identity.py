"""Which rank each lane is: from our mark, torch.profiler's distributedInfo, NCCL's payload, else from order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from regress.errors import TraceInputError
from regress.trace.lane import Lane
from regress.trace.timeline import IdentitySource
from regress.units import counted

_ONE_RUN_NS = 60_000_000_000
"""Ranks of one run are captured together; clocks of two machines may differ, but not by a minute."""


def assign_ranks(lanes: Sequence[Lane]) -> tuple[tuple[Lane, ...], tuple[str, ...]]:
    """The lanes in order of rank, each with its final rank, and what had to be assumed.

    Raises TraceInputError for files that cannot be of one run: a rank twice, two world sizes, more ranks than the
    world has, captures at different times.
    """
    lanes, warnings = _without_strays(lanes)
    lanes = _without_groups(lanes)
    _refuse_mixed(lanes)
    worlds = sorted({lane.world_size for lane in lanes if lane.world_size is not None})
    world = worlds[0] if worlds else None
    named = [lane for lane in lanes if lane.rank is not None]
    other = [lane for lane in lanes if lane.rank is None]
    if _several_devices(named):
        warnings.append("a process drives several GPUs: each counts as a rank, in order of devices and processes")
        named, other = [], list(lanes)
    if world is not None and named and len(named) == world and other:
        warnings.append(f"{len(other)} processes with kernels are no rank of the run and were left out: "
                        f"pid {', '.join(str(lane.pid) for lane in other)}")
        other = []
    taken = {lane.rank for lane in named}
    free = (rank for rank in range(len(lanes) + len(taken)) if rank not in taken)
    ordered = [*named, *(replace(lane, rank=next(free), source=IdentitySource.ORDER) for lane in other)]
    if other and len(ordered) > 1:
        warnings.append("the trace does not say which rank a process is: ranks are by order of files, devices and "
                        "processes")
    return tuple(sorted(ordered, key=lambda lane: lane.rank or 0)), tuple(warnings)


def _without_strays(lanes: Sequence[Lane]) -> tuple[Sequence[Lane], list[str]]:
    """The lanes without those of a process that communicates on another GPU only, and a warning for each left out.

    Mostly a few kernels on GPU 0 from before the process chose its own (`.cuda()` before `set_device`). A process that
    communicates nowhere keeps its lanes: it may be a rank that was not captured.
    """
    communicating = {(lane.file, lane.key): lane for lane in lanes if len(lane.collectives)}
    kept: list[Lane] = []
    warnings: list[str] = []
    for lane in lanes:
        real = communicating.get((lane.file, lane.key))
        if real is None or len(lane.collectives):
            kept.append(lane)
            continue
        who = f"pid {lane.pid}" if lane.rank is None else f"rank {lane.rank}"
        warnings.append(f"{who} communicates on GPU {real.device} and ran {counted(lane.kernels, 'kernel')} on GPU "
                        f"{lane.device} too (before set_device?): what runs there is left out")
    return kept, warnings


def _without_groups(lanes: Sequence[Lane]) -> Sequence[Lane]:
    """The lanes, unnamed where NCCL named them by communicators that are groups of the run's ranks and not all of them.

    NCCL's name for a process is its rank in the largest communicator that it made inside the capture. Where the world's
    was made before, those are groups (tensor or data parallel): ranks come twice, sizes differ, or more processes
    communicate than the communicator has. Two runs look alike, but nothing holds their processes together.
    """
    named = [lane for lane in lanes if lane.source is IdentitySource.NCCL_INIT]
    if not named or not _beyond_one_world(lanes) or _same_twice(named) or not _one_job(lanes):
        return lanes
    return [replace(lane, rank=None, world_size=None, source=IdentitySource.ORDER)
            if lane.source is IdentitySource.NCCL_INIT else lane for lane in lanes]


def _beyond_one_world(lanes: Sequence[Lane]) -> bool:
    """Whether the ranks and world sizes that lanes are named by cannot all be of one world."""
    owners = {(lane.rank, lane.file, lane.key) for lane in lanes if lane.rank is not None}
    worlds = {lane.world_size for lane in lanes if lane.world_size is not None}
    communicating = sum(len(lane.collectives) > 0 for lane in lanes)
    return len({rank for rank, *_ in owners}) < len(owners) or len(worlds) > 1 or communicating > min(worlds)


def _same_twice(named: Sequence[Lane]) -> bool:
    """Whether two processes are the same rank of the same communicator: one trace under two names."""
    owners = {(lane.communicator, lane.rank, lane.file, lane.key) for lane in named if lane.communicator}
    return len({owner[:2] for owner in owners}) < len(owners)


def _one_job(lanes: Sequence[Lane]) -> bool:
    """Whether the lanes hang together: by communicators they share, or by running side by side in one capture."""
    used = [{lane.communicator, *np.unique(lane.collectives.communicator).tolist()} - {0} for lane in lanes]

    def together(a: int, b: int) -> bool:
        at_once = lanes[a].window.start <= lanes[b].window.end and lanes[b].window.start <= lanes[a].window.end
        return bool(used[a] & used[b]) or (lanes[a].file == lanes[b].file and at_once)

    reached, waiting = [0], list(range(1, len(lanes)))
    for lane in reached:  # grows while it is walked
        near = [together(lane, other) for other in waiting]
        reached += [other for other, found in zip(waiting, near, strict=True) if found]
        waiting = [other for other, found in zip(waiting, near, strict=True) if not found]
    return not waiting


def _several_devices(named: Sequence[Lane]) -> bool:
    """Whether one process owns several lanes, so that its rank cannot tell them apart."""
    owners = [(lane.file, lane.key) for lane in named]
    return len(set(owners)) < len(owners)


def _refuse_mixed(lanes: Sequence[Lane]) -> None:
    seen: dict[int, Lane] = {}
    for lane in lanes:
        if lane.rank is None:
            continue
        twin = seen.setdefault(lane.rank, lane)
        if (twin.file, twin.key) != (lane.file, lane.key):
            raise TraceInputError(f"rank {lane.rank} is in it and also in {twin.file}", where=lane.file,
                                  accepted="one file for each rank of one run")
    worlds = {lane.world_size: lane for lane in lanes if lane.world_size is not None}
    if len(worlds) > 1:
        small, large = sorted(worlds)[0], sorted(worlds)[-1]
        raise TraceInputError(f"of a run with {large} ranks, while {worlds[small].file} is of one with {small}",
                              where=worlds[large].file, accepted="files of one run")
    world = next(iter(worlds), None)
    if world is not None and any(lane.rank is not None and lane.rank >= world for lane in lanes):
        worst = max(lanes, key=lambda lane: -1 if lane.rank is None else lane.rank)
        raise TraceInputError(f"rank {worst.rank} of a run with {world} ranks", where=worst.file,
                              accepted=f"ranks 0 to {world - 1}")
    dated = [lane for lane in lanes if lane.offset_ns]
    dated = dated if len(dated) == len(lanes) else []
    if dated:
        last = max(dated, key=lambda lane: lane.offset_ns + lane.window.start)
        first = min(dated, key=lambda lane: lane.offset_ns + lane.window.end)
        apart = last.offset_ns + last.window.start - first.offset_ns - first.window.end
        if apart > _ONE_RUN_NS:
            raise TraceInputError(f"captured {apart / 1e9:.0f} s after {first.file}", where=last.file,
                                  accepted="files of one run")
