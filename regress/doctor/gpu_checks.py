"""GPUs, their health, their links and who else is on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from regress.doctor.facts import Facts, Finding, GpuFacts, Level
from regress.measure.devices import GpuReading
from regress.measure.fitness import assess
from regress.measure.health import GpuSamples, gpu_facts
from regress.units import format_size

_AREA = "gpu"
_LEVELS = {"warn": (Level.WARN, False), "inconclusive": (Level.WARN, True), "invalid": (Level.BLOCKS, False)}


def check_gpus(facts: Facts) -> Iterator[Finding]:
    """Which GPUs there are, then each visible one's state."""
    yield _devices(facts)
    if not facts.on_gpus:
        return
    for gpu in facts.visible:
        yield from _modes(facts, gpu)
        yield from _state(gpu)
    if facts.visible:
        yield _links(facts)
        yield from _sharing(facts)


def _devices(facts: Facts) -> Finding:
    if facts.gpus:
        names = sorted({gpu.name or "unknown" for gpu in facts.gpus})
        listed = f"{len(facts.gpus)}x {' + '.join(names)}"
        hidden = len(facts.gpus) - len(facts.visible)
        if not facts.visible:
            return Finding(_AREA, "devices", _needed(facts), f"{listed}, all hidden by CUDA_VISIBLE_DEVICES",
                           "unset CUDA_VISIBLE_DEVICES, or name GPUs that are there")
        return Finding(_AREA, "devices", Level.OK, listed + (f", {hidden} of them hidden" if hidden else ""))
    if facts.driver.present and not facts.driver.nvml:
        return Finding(_AREA, "devices", Level.BLOCKS, "an NVIDIA driver is loaded, but NVML does not answer",
                       "run `nvidia-smi`: driver and its libraries must be of one version; a container needs "
                       "`--gpus all` and NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    if facts.driver.present:
        return Finding(_AREA, "devices", _needed(facts), "the driver lists no GPU",
                       "run `nvidia-smi -L`; a container needs `--gpus all`")
    if facts.wish == "cuda":
        return Finding(_AREA, "devices", Level.BLOCKS, "no NVIDIA driver",
                       "install the driver; start a container with `--gpus all`; or measure on the CPU: --device cpu")
    return Finding(_AREA, "devices", Level.OK, "no NVIDIA GPU: the gate measures gloo on the CPU")


def _needed(facts: Facts) -> Level:
    return Level.BLOCKS if facts.wish == "cuda" else Level.WARN


def _modes(facts: Facts, gpu: GpuFacts) -> Iterator[Finding]:
    """What an administrator has set."""
    now, name = gpu.reading, f"gpu{gpu.index}"
    shared_without_service = facts.plan is not None and facts.plan.shared_gpu and not _service(facts)
    if now.compute_mode == "prohibited":
        yield Finding(_AREA, f"{name} mode", Level.BLOCKS, "compute mode is prohibited: no process may use this GPU",
                      f"nvidia-smi -i {gpu.index} -c DEFAULT, on the host")
    elif now.compute_mode is not None and now.compute_mode.startswith("exclusive") and shared_without_service:
        yield Finding(_AREA, f"{name} mode", Level.BLOCKS,
                      f"compute mode is {now.compute_mode}, and two ranks must share this GPU",
                      f"nvidia-smi -i {gpu.index} -c DEFAULT, or install the multi-process service")
    if now.mig:
        yield Finding(_AREA, f"{name} MIG", Level.WARN,
                      "partitioned (MIG): a run compares with runs of such a GPU only",
                      f"nvidia-smi -i {gpu.index} -mig 0, on the host, to measure the whole GPU")
    if now.persistence is False:
        yield Finding(_AREA, f"{name} persistence", Level.WARN,
                      "persistence mode is off: each launch may initialise the driver anew",
                      "nvidia-smi -pm 1, on the host (a container may show it as off although it is on)")


def _state(gpu: GpuFacts) -> Iterator[Finding]:
    """What the gate's own rules make of this GPU now, before anything runs on it."""
    name, now = f"gpu{gpu.index}", gpu.reading
    # An idle link trains down to save power, and the compute mode has a line of its own.
    quiet = replace(now, compute_mode=None, pcie_generation=None)
    found = assess({f"{name}.{fact}": value for fact, value in gpu_facts(quiet, GpuSamples(), quiet).items()})
    for verdict, text in found:
        seen, _, fix = text.removeprefix(f"{name}: ").partition("; ")
        level, doubtful = _LEVELS[verdict]
        yield Finding(_AREA, name, level, seen, fix or "take this GPU out of service until `nvidia-smi -q` is clean",
                      doubtful)
    if not found and gpu.name is None and now == GpuReading():
        yield Finding(_AREA, name, Level.WARN, "the driver lists it and tells nothing about it",
                      f"run `nvidia-smi -q -i {gpu.index}`: it says why; where the GPU fell off the bus, reset it or "
                      "reboot the host", doubtful=True)
    elif not found:
        yield Finding(_AREA, name, Level.OK, _portrait(gpu))


def _portrait(gpu: GpuFacts) -> str:
    now = gpu.reading
    parts = [gpu.name or "unknown"]
    if now.memory_total is not None and now.memory_used is not None:
        parts.append(f"{format_size(now.memory_total - now.memory_used)} of {format_size(now.memory_total)} free")
    if now.sm_clock_max is not None:
        parts.append(f"SM clock up to {now.sm_clock_max} MHz")
    if now.power_limit is not None:
        parts.append(f"power limit {now.power_limit:g} W")
    if now.temperature is not None:
        parts.append(f"{now.temperature} °C")
    if now.pids is not None:
        parts.append("no other process seen" if not now.pids else f"{len(now.pids)} other processes")
    return ", ".join(parts)


def _links(facts: Facts) -> Finding:
    link, path = facts.links.link_class, facts.links.topology_class
    if len(facts.visible) == 1:
        return Finding(_AREA, "links", Level.OK, f"{link or 'unknown'}; one GPU, so nothing crosses a link")
    if link is None or path is None:
        return Finding(_AREA, "links", Level.WARN, "how the GPUs are joined cannot be read",
                       "make `nvidia-smi topo -m` work here: runs of unknown links are compared with each other only")
    if link == "mixed":
        return Finding(_AREA, "links", Level.WARN, f"the GPUs have different links; paths {path}",
                       "measure GPUs of one kind: CUDA_VISIBLE_DEVICES")
    return Finding(_AREA, "links", Level.OK, f"{link}, paths {path}")


def _service(facts: Facts) -> bool:
    return facts.mps.program is not None or facts.mps.foreign is not None


def _sharing(facts: Facts) -> Iterator[Finding]:
    """One GPU is shared by two ranks, and only the multi-process service makes that fit to be timed."""
    if facts.plan is None or not facts.plan.shared_gpu:
        return
    if facts.mps.foreign is not None:
        yield Finding(_AREA, "multi-process service", Level.WARN,
                      f"another user's daemon at {facts.mps.foreign} is used and left running",
                      "end it (echo quit | nvidia-cuda-mps-control) so that the gate runs one of its own")
    elif facts.mps.program is not None:
        yield Finding(_AREA, "multi-process service", Level.OK,
                      f"{facts.mps.program}: two ranks share the one GPU side by side, and talk "
                      + ("as this NCCL lets them" if facts.plan.multi_rank_gpu else "over sockets"))
    else:
        yield Finding(_AREA, "multi-process service", Level.BLOCKS,
                      "nvidia-cuda-mps-control is not installed: the GPU time-slices between the two ranks, and no "
                      "duration can be trusted", "install it (it comes with the driver), or use two GPUs")
