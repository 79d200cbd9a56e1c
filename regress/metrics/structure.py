"""How a step communicates: how often, and in how big pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.metrics import Metric, Reading, worst
from regress.units import Better, Unit

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis


def _per_step(analysis: Analysis) -> Reading | None:
    if not analysis.steps:
        return None
    by_rank = {lane.rank or 0: float(lane.collectives.in_steps.sum()) / lane.window.steps for lane in analysis.lanes}
    return Reading(worst(by_rank, Better.LOWER), by_rank)


def _message_bytes(analysis: Analysis) -> Reading | None:
    """Over the collectives of the steps where there are any, else over all; None where a size is unknown."""
    by_rank: dict[int, float] = {}
    for lane in analysis.lanes:
        table = lane.collectives
        chosen = table.size_bytes[table.in_steps] if analysis.steps else table.size_bytes
        if len(chosen) == 0 or (chosen < 0).any():
            return None
        by_rank[lane.rank or 0] = float(chosen.mean())
    return Reading(worst(by_rank, Better.HIGHER), by_rank)


COLLECTIVES = Metric("collectives_per_step", Unit.COUNT, Better.LOWER,
                     "communication kernels (collectives, on a CPU backend) launched inside a step range, per step",
                     "kernels joined to their launch calls by process and correlation id",
                     collective=False, from_trace=_per_step, gated=True)
MESSAGE_BYTES = Metric("message_bytes_mean", Unit.BYTES, Better.HIGHER,
                       "mean bytes per collective as NCCL counts them per call (a rank's contribution to an allgather)",
                       "payload of NCCL's NVTX ranges, or torch.profiler's collective metadata",
                       from_trace=_message_bytes)
