"""Training steps of gloo on the CPU, each with one fault planted; run inside rank processes, by name.

`planted_steps:small_buckets` is what a case's option `step` says. See benchmarks/user_step.py for the contract.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from benchmarks.user_step import StepContext

WIDTH, LAYERS, BATCH, LATE_SECONDS = 256, 12, 16, 0.03


def _nothing() -> None:
    """Planted where nothing is."""


def _step(context: StepContext, *, bucket_cap_mb: float | None = None, before_backward: Callable[[], None] = _nothing,
          after: Callable[[], None] = _nothing, micro_batches: int = 1, no_sync: bool = True) -> Callable[[], object]:
    torch.manual_seed(context.seed)
    layers = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
    model = (DistributedDataParallel(layers) if bucket_cap_mb is None
             else DistributedDataParallel(layers, bucket_cap_mb=bucket_cap_mb))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(context.rank))

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.zeros(())
        for number in range(micro_batches):
            reduces = number == micro_batches - 1 or not no_sync
            with contextlib.nullcontext() if reduces else model.no_sync():
                loss = model(batch).square().mean()
                before_backward()
                torch.autograd.backward(loss)
        optimizer.step()
        after()
        return loss.detach()

    return run


def good(context: StepContext) -> Callable[[], object]:
    """Nothing planted: two buckets."""
    return _step(context)


def small_buckets(context: StepContext) -> Callable[[], object]:
    """A bucket for every layer."""
    return _step(context, bucket_cap_mb=0.1)


def extra_barrier(context: StepContext) -> Callable[[], object]:
    """A barrier after every step, to which ranks come late in turn."""
    turn = [context.rank]

    def meet() -> None:
        turn[0] += 1
        time.sleep(LATE_SECONDS / 2 * (turn[0] % 2))
        dist.barrier()

    return _step(context, after=meet)


def late_rank(context: StepContext) -> Callable[[], object]:
    """Rank 1 sleeps before backward."""
    return _step(context, before_backward=lambda: time.sleep(LATE_SECONDS) if context.rank == 1 else None)


def accum_sync(context: StepContext) -> Callable[[], object]:
    """Four micro-batches, gradients reduced in each."""
    return _step(context, micro_batches=4, no_sync=False)
