"""Joining the communicator, and everything that ranks must do together outside the measured collectives.

Barriers, decisions and agreement use barriers and broadcasts of a gloo group of their own: nothing here enters the
measured communicator, its trace, or a wrapper somebody put around the collective that is measured.
"""

from __future__ import annotations

import datetime
import os
import socket
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regress.errors import EnvironmentUnfitError, MeasurementError, UsageError
from regress.record import LaunchSpec, TimingMode

from .operation import RankContext

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

WORKLOAD_SEED = 20_240_229
"""Seed of every model and data set: a launch must repeat the work of the one before."""
PEER_PATIENCE_SECONDS = 20.0
"""How long a rank whose case failed waits for the others before it takes the communicator for lost."""
_LONG = datetime.timedelta(hours=12)  # a rank that is well leaves hangs to the launcher's deadline


@dataclass(frozen=True, slots=True)
class Place:
    """This process's place in the launch, as torchrun's environment says."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


def place_from(environment: MutableMapping[str, str]) -> Place:
    """The place torchrun gave this process. Raises UsageError where torchrun did not start it."""
    try:
        rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local_rank = int(environment["LOCAL_RANK"])
    except (KeyError, ValueError) as error:
        raise UsageError(f"no place in a launch: {error}", where="environment of the rank process",
                         accepted="RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them",
                         next_step="start it with torchrun") from error
    return Place(rank, local_rank, world_size, int(environment.get("LOCAL_WORLD_SIZE", str(world_size))))


def set_variables(spec: LaunchSpec, place: Place, environment: MutableMapping[str, str]) -> None:
    """Sets what NCCL and gloo read when the communicator is made; a choice the user made stays, except the host id.

    On one host gloo would otherwise resolve the host's name, which fails or takes seconds on many machines.
    Ranks that share a GPU must look like nodes of their own, or NCCL refuses the second rank on one device, unless
    the user has told a recent one to allow it.
    """
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback and place.local_world_size == place.world_size:
        environment.setdefault("GLOO_SOCKET_IFNAME", loopback)
    if spec.shared_gpu and not spec.multi_rank_gpu:
        environment["NCCL_HOSTID"] = f"comm-regress-{place.rank}"
        if loopback:
            environment.setdefault("NCCL_SOCKET_IFNAME", loopback)


def join(spec: LaunchSpec, place: Place) -> tuple[RankContext, float]:
    """Makes the communicator; returns the context and the seconds for making it and its first collective.

    All ranks are waited for and the device is woken before the clock starts, so that starting Python, importing
    torch and creating a CUDA context are not in it. The first collective is a broadcast, so that a wrapper around a
    measured collective does not see it.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if spec.backend not in ("nccl", "gloo"):
        raise UsageError(f"backend {spec.backend!r}", where="launch file", accepted="nccl or gloo")
    if not dist.is_available() or (spec.backend == "nccl" and not dist.is_nccl_available()):
        raise EnvironmentUnfitError(f"this torch ({torch.__version__}) has no {spec.backend}",
                                    where=torch.__file__, accepted=f"a torch built with distributed and {spec.backend}")
    torch.set_num_threads(spec.threads_per_rank)
    torch.set_num_interop_threads(spec.threads_per_rank)
    device = _device(spec, place)
    token = torch.ones(1, device=device)
    store = next(rendezvous("env://", place.rank, place.world_size))[0]
    store.set(f"comm_regress/here/{place.rank}", "1")
    store.wait([f"comm_regress/here/{rank}" for rank in range(place.world_size)])
    began = time.perf_counter()
    dist.init_process_group(spec.backend, store=PrefixStore("comm_regress/group", store), rank=place.rank,
                            world_size=place.world_size, device_id=device if device.type == "cuda" else None)
    dist.broadcast(token, src=0)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    init_seconds = time.perf_counter() - began
    control: ProcessGroup = dist.new_group(backend="gloo", group_desc="comm-regress control")
    aligner = None
    if device.type == "cuda" and spec.tracer == "none" and any(c.timing is TimingMode.ISOLATED for c in spec.cases):
        aligner = dist.new_group(backend="nccl", group_desc="comm-regress aligner")
    context = RankContext(place.rank, place.local_rank, place.world_size, device, WORKLOAD_SEED, control, aligner)
    return context, init_seconds


def _device(spec: LaunchSpec, place: Place) -> torch.device:
    import torch

    if spec.backend == "gloo":
        return torch.device("cpu")
    index = 0 if spec.shared_gpu else place.local_rank
    if index >= torch.cuda.device_count():
        raise EnvironmentUnfitError(f"rank {place.rank} needs GPU {index}, torch sees {torch.cuda.device_count()}",
                                    where=f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '(unset)')}",
                                    accepted="one GPU for each rank of a node, or one GPU shared by all")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def leave() -> None:
    """Takes the communicator down."""
    import torch.distributed as dist

    dist.destroy_process_group()


def barrier(context: RankContext) -> None:
    """Until every rank is here."""
    import torch.distributed as dist

    dist.barrier(group=context.control)


def decide(context: RankContext, *values: float) -> tuple[float, ...]:
    """What rank 0 passed, on every rank."""
    import torch
    import torch.distributed as dist

    chosen = torch.tensor(values, dtype=torch.float64)
    dist.broadcast(chosen, src=0, group=context.control)
    return tuple(chosen.tolist())


def failed_ranks(context: RankContext, failed: bool, where: str) -> tuple[int, ...]:
    """The ranks that passed `failed`, the same answer on every rank.

    A rank that failed may have left the others inside a collective that it will never join. Raises MeasurementError
    when they do not come within PEER_PATIENCE_SECONDS, or are gone.
    """
    import torch
    import torch.distributed as dist

    patience = datetime.timedelta(seconds=PEER_PATIENCE_SECONDS) if failed else _LONG
    try:
        dist.monitored_barrier(context.control, timeout=patience)
        flags = [torch.tensor([int(failed)]) for _ in range(context.world_size)]
        for rank, flag in enumerate(flags):
            dist.broadcast(flag, src=rank, group=context.control)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise MeasurementError(f"the other ranks are out of reach ({reason})", where=where,
                               next_step="look at the rank that ended first") from error
    return tuple(rank for rank, flag in enumerate(flags) if flag.item())
