"""Which ranks this machine gets: how many, on what device, through which backend."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from regress.errors import EnvironmentUnfitError, UsageError
from regress.measure.devices import Devices, open_devices
from regress.measure.host import allowed_cores
from regress.measure.software import nccl_version, package_folder

DEVICES = ("auto", "cuda", "cpu")
CPU_RANKS = 2
MULTI_RANK_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The ranks of every launch. device: "cuda" or "cpu". shared_gpu: two ranks on the one GPU there is.

    multi_rank_gpu: NCCL itself is told to let them share it; otherwise each poses as a host of its own, and they talk
    over sockets.
    """

    world_size: int
    device: str
    backend: str
    shared_gpu: bool
    threads_per_rank: int
    multi_rank_gpu: bool = False


def plan_ranks(device: str = "auto", world_size: int | None = None, *, devices: Devices | None = None,
               environment: Mapping[str, str] | None = None) -> RankPlan:
    """One rank per visible GPU; two ranks sharing it where there is one; else two ranks on the CPU.

    world_size: as wished, None for the default. devices: opened through NVML when None. environment: os.environ.
    Raises UsageError for an unknown device or a world size below 1, EnvironmentUnfitError where the machine has not
    what was asked for or torch is missing.
    """
    if device not in DEVICES:
        raise UsageError(f"device {device!r}", where="--comm-regress-device", accepted=", ".join(DEVICES))
    if world_size is not None and world_size < 1:
        raise UsageError(f"{world_size} ranks", accepted="at least 1")
    require_torch()
    variables = os.environ if environment is None else environment
    gpus = 0 if device == "cpu" else visible_gpus(devices, variables)
    if device == "cuda" and gpus == 0:
        raise EnvironmentUnfitError("no usable NVIDIA GPU", where="--comm-regress-device cuda",
                                    accepted="a GPU that the driver lists and CUDA_VISIBLE_DEVICES does not hide",
                                    next_step="run `nvidia-smi`, or measure on the CPU: --comm-regress-device cpu")
    return _cpu_plan(world_size) if gpus == 0 else _gpu_plan(gpus, world_size, variables)


def _gpu_plan(gpus: int, world_size: int | None, variables: Mapping[str, str]) -> RankPlan:
    limit = 2 if gpus == 1 else gpus
    ranks = limit if world_size is None else world_size
    if ranks > limit:
        raise EnvironmentUnfitError(
            f"{ranks} ranks on {gpus} visible GPU{'s' if gpus > 1 else ''}",
            accepted=f"at most {limit}: {'two ranks may share the only GPU' if gpus == 1 else 'one rank for each GPU'}",
            next_step="lower the world size, or make more GPUs visible (CUDA_VISIBLE_DEVICES)")
    shared = gpus == 1 and ranks > 1
    return RankPlan(ranks, "cuda", "nccl", shared, max(1, allowed_cores() // ranks),
                    shared and allows_multi_rank_gpu(nccl_version(), variables))


def allows_multi_rank_gpu(nccl: str | None, environment: Mapping[str, str]) -> bool:
    """Whether this NCCL lets two ranks share a GPU by itself, and the user asks for it.

    Since NCCL 2.30, whose user guide (NCCL_MULTI_RANK_GPU_ENABLE) calls it experimental and warns of hangs: hence only
    where the user sets it. nccl: its version, None where it is not known.
    """
    numbers = re.match(r"(\d+)\.(\d+)", nccl or "")
    recent = numbers is not None and (int(numbers[1]), int(numbers[2])) >= (2, 30)
    return recent and environment.get(MULTI_RANK_VARIABLE, "").strip() == "1"


def _cpu_plan(world_size: int | None) -> RankPlan:
    cores = allowed_cores()
    ranks = CPU_RANKS if world_size is None else world_size
    limit = max(CPU_RANKS, cores)
    if ranks > limit:
        raise EnvironmentUnfitError(f"{ranks} ranks on {cores} CPU cores", accepted=f"at most {limit}",
                                    next_step="lower the world size: ranks that share a core measure the scheduler")
    return RankPlan(ranks, "cpu", "gloo", False, max(1, cores // ranks))


def visible_gpus(devices: Devices | None, environment: Mapping[str, str]) -> int:
    """GPUs that CUDA would see: NVML's, less those that CUDA_VISIBLE_DEVICES hides. Loads no CUDA."""
    opened = devices if devices is not None else open_devices()
    return 0 if opened is None else len(visible_indices(opened, environment))


def visible_indices(devices: Devices, environment: Mapping[str, str]) -> tuple[int, ...]:
    """NVML indices of the GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order.

    As CUDA reads it (CUDA C++ Programming Guide, "CUDA environment variables"): indices or the beginnings of UUIDs,
    and everything from the first entry that names no device on is invisible. NVML orders by PCI bus, which is CUDA's
    order for GPUs of one model.
    """
    text = environment.get("CUDA_VISIBLE_DEVICES")
    everything = tuple(range(devices.count))
    if text is None:
        return everything
    visible: list[int] = []
    for entry in (part.strip() for part in text.split(",")):
        if entry.isdecimal():
            matches = [index for index in everything if index == int(entry)]
        else:
            matches = [index for index in everything if entry and (devices.uuid(index) or "").startswith(entry)]
        if len(matches) != 1 or matches[0] in visible:
            break
        visible.append(matches[0])
    return tuple(visible)


def require_torch() -> None:
    """EnvironmentUnfitError where the ranks could not import torch.distributed; loads nothing of torch."""
    accepted, next_step = "PyTorch 2.3 or newer with distributed", "install it: pip install torch"
    folder = package_folder("torch")
    if folder is None:
        raise EnvironmentUnfitError("PyTorch is not installed", accepted=accepted, next_step=next_step)
    if not (folder / "distributed" / "distributed_c10d.py").is_file():
        raise EnvironmentUnfitError("this PyTorch has no torch.distributed", accepted=accepted,
                                    next_step="install an official build: pip install --force-reinstall torch")
