"""Collectives on the host in the steps of a job that has GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.diagnose import CRITICAL, SHARE, WARNING, Need, Rule, follows
from regress.record import Diagnosis
from regress.units import format_seconds

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_COSTLY = 0.05
_LEAST_PER_STEP = 0.5


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    """The rank that loses most to a CPU backend inside its steps."""
    worst = None
    for lane in analysis.device_lanes:
        beside, steps = lane.host_collectives, lane.window.steps
        if beside is None or not steps or beside.in_steps < _LEAST_PER_STEP * steps:
            continue
        share = min(beside.in_steps_ns / lane.in_window.span_ns, 1.0)
        if worst is None or share > worst[0]:
            worst = share, lane, beside
    if worst is None:
        return []
    share, lane, beside = worst
    per_step = beside.in_steps / lane.window.steps
    return [Diagnosis(
        "mixed_backends", CRITICAL if share >= _COSTLY else WARNING,
        {"rank": lane.rank, "host_collectives_per_step": per_step,
         "host_seconds_per_step": beside.in_steps_ns / lane.window.steps / 1e9, SHARE: share},
        f"rank {lane.rank} makes {per_step:.0f} collectives on the host in every step, beside its GPU's: "
        f"{format_seconds(beside.in_steps_ns / lane.window.steps / 1e9)} of the step, through CPU memory and sockets",
        "keep tensors of the step on the GPU and its collectives in the NCCL group; leave the gloo group to barriers "
        "and metadata outside the steps")]


RULE = Rule("mixed_backends", "a CPU backend's collectives run inside the steps of GPU ranks",
            "gloo moves data through host memory and blocks the host; torch.profiler names its collectives (gloo:...)",
            _check, needs=(Need.STEPS, Need.DEVICE, Need.HOST_BACKEND),
            explains=follows("launch_gaps", "host_sync", same_rank=True))
