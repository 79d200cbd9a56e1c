"""Every rank's part put together in every rank's buffer: what sharded training does with parameters."""

from __future__ import annotations

import warnings

from regress.record import Case

from . import NoOptions, Workload
from .operation import COLLECTIVE_MODES, Check, Operation, RankContext
from .verify import compare_gathered, dtype_named, fill

_ALIGNMENT_BYTES = 16


def bus_factor(world_size: int) -> float:
    """(n-1)/n: each rank receives all parts but its own (nccl-tests, doc/PERFORMANCE.md)."""
    return (world_size - 1) / world_size


def message_bytes(wished_bytes: int, world_size: int, _element_bytes: int) -> int:
    """S, the total gathered bytes: rounded down so that each rank's part is a multiple of 16 bytes, at least one.

    Source: nccl-tests, src/all_gather.cu. An element of any dtype fits 16 bytes evenly.
    """
    return max(1, wished_bytes // (world_size * _ALIGNMENT_BYTES)) * _ALIGNMENT_BYTES * world_size


def prepare(context: RankContext, case: Case, _options: NoOptions) -> Operation:
    """A part on this rank, gathered out of place."""
    import torch
    import torch.distributed

    # Newer releases prefer another name for the same function, and would say so on every rank.
    warnings.filterwarnings("ignore", message=".*all_gather_into_tensor.* is deprecated", category=FutureWarning)
    dtype = dtype_named(case.dtype)
    size_bytes = message_bytes(case.message_size_bytes or 0, case.world_size, dtype.itemsize)
    gathered = torch.zeros(size_bytes // dtype.itemsize, dtype=dtype, device=context.device)
    part = torch.zeros(gathered.numel() // context.world_size, dtype=dtype, device=context.device)
    fill(part, case.dtype, context.rank, context.world_size)

    def run() -> None:
        torch.distributed.all_gather_into_tensor(gathered, part)

    def verify() -> Check:
        gathered.zero_()
        run()
        return compare_gathered(gathered, case.dtype, context.world_size)

    return Operation(run, verify, f"allgather/{size_bytes}", COLLECTIVE_MODES, work_bytes=size_bytes)


WORKLOAD = Workload(
    name="allgather", summary="every rank's part in every rank's buffer (torch.distributed.all_gather_into_tensor)",
    collective=True, prepare=prepare, bus_factor=bus_factor, message_bytes=message_bytes)
