"""A training step of a small transformer under DistributedDataParallel: collectives as training really issues them.

The first three steps are dropped: DDP rebuilds its buckets after the first, so that its overlap starts later.
Source: torch.nn.parallel.distributed, where the reducer starts with one bucket for all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regress.errors import UsageError
from regress.options import option
from regress.record import Case, TimingMode

from . import Workload
from .operation import Check, Operation, RankContext
from .user_step import StepContext, UserStep, load
from .verify import dtype_named

if TYPE_CHECKING:
    import torch
    from torch.nn.parallel import DistributedDataParallel

DISCARDED_STEPS = 3
_HOOKS = ("none", "fp16", "bf16", "powersgd")


@dataclass(frozen=True, slots=True)
class DdpStepOptions:
    """What a case of `ddp_step` can change."""

    bucket_cap_mb: float | None = option(None, help="DDP's gradient bucket size in MiB; without it DDP's own default: "
                                         "25 MiB after a first bucket of 1 MiB", minimum=0)
    gradient_as_bucket_view: bool = option(False, help="gradients are views of DDP's buckets: saves a copy")
    static_graph: bool = option(False, help="tells DDP that every step uses the same parameters")
    accumulation: int = option(1, help="micro-steps whose gradients add up before the optimizer runs", minimum=1)
    no_sync: bool = option(True, help="communicate in the last micro-step of an accumulation only")
    comm_hook: str = option("none", help="how gradients are compressed for communication", choices=_HOOKS)
    compile: bool = option(False, help="run the model through torch.compile")
    step: str = option("", help="a training step of your own as package.module:function; see docs for its contract")


@dataclass(frozen=True, slots=True)
class _Shape:
    """Size of the model and of one rank's batch."""

    width: int
    layers: int
    heads: int
    vocabulary: int
    sequence: int
    batch: int


# The CPU's shape gives 5 MB of gradients and some 20 ms a step on one core; the GPU's 220 MB in nine buckets, enough
# to overlap with backward, and few enough for two ranks that share a GPU through sockets.
_CPU_SHAPE = _Shape(width=128, layers=4, heads=4, vocabulary=1024, sequence=32, batch=4)
_GPU_SHAPE = _Shape(width=768, layers=6, heads=12, vocabulary=8192, sequence=128, batch=16)


def prepare(context: RankContext, case: Case, options: DdpStepOptions) -> Operation:
    """The model, its data and its optimizer on this rank, or the user's own step."""
    step = _user_step(context, case, options) if options.step else _own_step(context, case, options)
    last_loss: list[object] = [None]

    def run() -> None:
        last_loss[0] = step.run()

    def verify() -> Check:
        return _check(step.parameters() if step.parameters is not None else (), last_loss[0])

    warnings = () if step.parameters is not None else (
        f"{options.step} names no parameters: whether ranks agree after the last step is not checked",)
    return Operation(run, verify, "step", (TimingMode.STEP,), samples_per_step=step.samples_per_step,
                     discard=DISCARDED_STEPS, verify_first=False, warnings=warnings)


def _user_step(context: RankContext, case: Case, options: DdpStepOptions) -> UserStep:
    others = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)
              if field.name != "step"}
    return load(options.step, StepContext(context.rank, context.local_rank, context.world_size, context.device,
                                          dtype_named(case.dtype), context.seed, others))


def _own_step(context: RankContext, case: Case, options: DdpStepOptions) -> UserStep:
    import torch

    shape = _GPU_SHAPE if context.on_cuda else _CPU_SHAPE
    model = _ddp_model(context, case, options, shape)
    forward: Callable[[torch.Tensor], torch.Tensor] = torch.compile(model) if options.compile else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    tokens = _tokens(context, shape)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    micro_steps = options.accumulation

    def micro_step() -> torch.Tensor:
        scores = forward(inputs)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1).float(), targets.flatten()) / micro_steps
        torch.autograd.backward(loss)
        return loss.detach()

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        for _ in range(micro_steps - 1):
            with model.no_sync() if options.no_sync else contextlib.nullcontext():
                micro_step()
        loss = micro_step()
        optimizer.step()
        return loss

    return UserStep(run, shape.batch * micro_steps * context.world_size, model.parameters)


def _ddp_model(context: RankContext, case: Case, options: DdpStepOptions, shape: _Shape) -> DistributedDataParallel:
    from torch.nn.parallel import DistributedDataParallel

    if options.comm_hook not in _HOOKS:
        raise UsageError(f"comm_hook {options.comm_hook!r}", where=case.id, accepted=", ".join(_HOOKS))
    if options.accumulation < 1:
        raise UsageError(f"accumulation {options.accumulation}", where=case.id, accepted="at least 1")
    model = _transformer(context, case, shape)
    make = functools.partial(
        DistributedDataParallel, model, device_ids=[context.device.index] if context.on_cuda else None,
        static_graph=options.static_graph, gradient_as_bucket_view=options.gradient_as_bucket_view)
    cap_mb = _one_bucket(case) if options.comm_hook == "powersgd" and not context.on_cuda else options.bucket_cap_mb
    # Passing 25 is not the same as the default, which begins with a bucket of 1 MiB.
    ddp = make() if cap_mb is None else make(bucket_cap_mb=cap_mb)
    _register_hook(ddp, options.comm_hook)
    return ddp


def _one_bucket(case: Case) -> float:
    """The bucket size for PowerSGD on gloo, larger than the model.

    PowerSGD chains collectives in callbacks. NCCL runs those in order; gloo runs them on its own threads, so that with
    two buckets the ranks' collectives pair up wrongly: one rank aborts or all hang (seen with torch 2.13).
    """
    if dict(case.options).get("bucket_cap_mb") is not None:
        raise UsageError("bucket_cap_mb with PowerSGD on gloo", where=case.id,
                         accepted="one bucket: gloo does not keep the order of PowerSGD's collectives",
                         next_step="leave bucket_cap_mb out, or use NCCL")
    return 1024.0


def _transformer(context: RankContext, case: Case, shape: _Shape) -> torch.nn.Module:
    """Embedding, pre-norm transformer layers without dropout, projection to the vocabulary; the same on all ranks."""
    import torch
    from torch import nn

    torch.manual_seed(context.seed)
    layers = [nn.TransformerEncoderLayer(shape.width, shape.heads, 4 * shape.width, dropout=0.0, batch_first=True,
                                         norm_first=True) for _ in range(shape.layers)]
    model = nn.Sequential(nn.Embedding(shape.vocabulary, shape.width), *layers,
                          nn.Linear(shape.width, shape.vocabulary))
    return model.to(device=context.device, dtype=dtype_named(case.dtype))


def _tokens(context: RankContext, shape: _Shape) -> torch.Tensor:
    """This rank's own fixed batch: drawn once on the CPU, so that no copy or random number is in a step."""
    import torch

    generator = torch.Generator().manual_seed(context.seed + context.rank)
    tokens = torch.randint(shape.vocabulary, (shape.batch, shape.sequence + 1), generator=generator)
    return tokens.to(context.device)


def _register_hook(ddp: DistributedDataParallel, name: str) -> None:
    if name == "none":
        return
    if name == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        # 2 is the earliest that error feedback and warm start allow (the default, 1000, would leave a short run
        # uncompressed); the discarded steps cover it, so every measured step compresses.
        state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    hook = default_hooks.fp16_compress_hook if name == "fp16" else default_hooks.bf16_compress_hook
    ddp.register_comm_hook(None, hook)


def _check(parameters: Iterable[torch.Tensor], loss: object) -> Check:
    """How many elements of the parameters on this rank differ from rank 0's, and whether the loss is finite."""
    import torch
    import torch.distributed

    checked = wrong = 0
    for parameter in parameters:
        own = parameter.detach()
        first = own.clone().contiguous()
        torch.distributed.broadcast(first, src=0)
        checked += own.numel()
        wrong += int((own != first).sum().item())
    problem = "parameters differ from those of rank 0 after the last step" if wrong else None
    if loss is not None and not math.isfinite(float(loss)):  # type: ignore[arg-type]  # a tensor or a number
        problem = f"the loss is {float(loss)} after the last step"  # type: ignore[arg-type]
    return Check(checked, wrong, problem)


WORKLOAD = Workload(
    name="ddp_step", summary="a training step of a small transformer under DistributedDataParallel",
    collective=False, prepare=prepare, options=DdpStepOptions)
