"""The sum of a buffer over all ranks, in every rank's buffer: what data-parallel training does with gradients."""

from __future__ import annotations

from regress.record import Case

from . import NoOptions, Workload
from .operation import COLLECTIVE_MODES, Check, Operation, RankContext
from .verify import compare_sum, dtype_named, fill


def bus_factor(world_size: int) -> float:
    """2(n-1)/n: each element is sent and received twice but for the own part (nccl-tests, doc/PERFORMANCE.md)."""
    return 2 * (world_size - 1) / world_size


def message_bytes(wished_bytes: int, _world_size: int, element_bytes: int) -> int:
    """S, the bytes in each rank's buffer: whole elements (nccl-tests, src/all_reduce.cu)."""
    return max(1, wished_bytes // element_bytes) * element_bytes


def prepare(context: RankContext, case: Case, _options: NoOptions) -> Operation:
    """A buffer of the case's size on this rank, summed in place.

    While it is timed the buffer holds zeros, the only values that stay what they are however often they are summed.
    """
    import torch
    import torch.distributed

    dtype = dtype_named(case.dtype)
    size_bytes = message_bytes(case.message_size_bytes or 0, case.world_size, dtype.itemsize)
    buffer = torch.zeros(size_bytes // dtype.itemsize, dtype=dtype, device=context.device)

    def run() -> None:
        torch.distributed.all_reduce(buffer)

    def verify() -> Check:
        fill(buffer, case.dtype, context.rank, context.world_size)
        run()
        check = compare_sum(buffer, case.dtype, context.world_size)
        buffer.zero_()
        return check

    return Operation(run, verify, f"allreduce/{size_bytes}", COLLECTIVE_MODES, work_bytes=size_bytes)


WORKLOAD = Workload(
    name="allreduce", summary="sum of a buffer over all ranks, in place (torch.distributed.all_reduce)",
    collective=True, prepare=prepare, bus_factor=bus_factor, message_bytes=message_bytes)
