"""torch, driver, CUDA and NCCL, whether their versions fit each other, and Nsight Systems."""

from __future__ import annotations

import re
from collections.abc import Iterator

from regress.doctor.facts import Facts, Finding, Level

_AREA = "software"
_SIZES_LOST = "exports hold no message sizes"


def check_software(facts: Facts) -> Iterator[Finding]:
    """torch first: without it nothing can be measured."""
    yield from _torch(facts)
    if facts.on_gpus:
        yield from _cuda(facts)
        yield from _nccl(facts)
    if facts.variables:
        listed = ", ".join(f"{name}={value}" for name, value in facts.variables)
        yield Finding(_AREA, "variables", Level.OK, f"steer what is measured, and are recorded: {listed}")


def _torch(facts: Facts) -> Iterator[Finding]:
    torch = facts.torch
    if torch.error is not None:
        yield Finding(_AREA, "torch", Level.BLOCKS, torch.error, "pip install torch, for this Python")
        return
    if not torch.distributed:
        yield Finding(_AREA, "torch", Level.BLOCKS, f"torch {torch.version} was built without torch.distributed",
                      "install an official build: pip install --force-reinstall torch")
        return
    build = "CPU build" if torch.cuda_build is None else f"built for CUDA {torch.cuda_build}"
    backends = ", ".join(name for name, there in (("gloo", torch.gloo), ("NCCL", torch.nccl)) if there)
    yield Finding(_AREA, "torch", Level.OK, f"{torch.version}, {build}, backends {backends or 'none'}")
    # Decisions of the ranks travel through a gloo group beside NCCL, so both devices need it.
    if not torch.gloo:
        yield Finding(_AREA, "gloo", Level.BLOCKS, "this torch has no gloo backend", "install an official build")
    if facts.on_gpus and not torch.nccl:
        yield Finding(_AREA, "NCCL", Level.BLOCKS, "this torch has no NCCL backend",
                      "install a CUDA build of torch (pytorch.org, \"Get started\"), or measure on the CPU: "
                      "--device cpu")


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (12, 4) of "12.4", (2, 27, 5) of "2.27.5+cuda12"."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[+a-z]", version, maxsplit=1)[0]))


def _cuda(facts: Facts) -> Iterator[Finding]:
    """A driver runs programs of its own CUDA's major version, and of older ones.

    CUDA compatibility guide, "Minor Version Compatibility": within a major version a newer toolkit runs too, less
    what needs the newer driver (PTX that it must compile).
    """
    built, known = facts.torch.cuda_build, facts.driver.cuda
    if built is None or facts.torch.error is not None:
        return
    if known is not None and numbers(built)[:1] > numbers(known)[:1]:
        yield Finding(_AREA, "driver", Level.BLOCKS,
                      f"driver {facts.driver.version} supports CUDA up to {known}; torch is built for CUDA {built}",
                      f"install a newer driver, or a torch built for CUDA {numbers(known)[0]}")
    elif facts.torch.cuda_works is False:
        yield Finding(_AREA, "driver", Level.BLOCKS,
                      f"torch cannot use CUDA here although driver {facts.driver.version} lists GPUs",
                      "run `python -c 'import torch; torch.cuda.init()'`: its message says why; a container needs "
                      "`--gpus all` with NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    elif known is not None and numbers(built) > numbers(known):
        yield Finding(_AREA, "driver", Level.WARN,
                      f"driver {facts.driver.version} knows CUDA {known}; torch is built for the newer CUDA {built}",
                      "works within one major version, but code that the driver must compile does not: update the "
                      "driver")
    else:
        yield Finding(_AREA, "driver", Level.OK,
                      f"{facts.driver.version or 'unknown'}, CUDA up to {known or 'unknown'}")
    seen = facts.torch.cuda_devices
    if seen is not None and facts.torch.cuda_works and seen != len(facts.visible):
        yield Finding(_AREA, "devices of torch", Level.BLOCKS,
                      f"torch sees {seen} GPUs, the driver lists {len(facts.visible)} for it",
                      "compare `nvidia-smi -L` with CUDA_VISIBLE_DEVICES; a GPU may have fallen off the bus")


def _nccl(facts: Facts) -> Iterator[Finding]:
    torch = facts.torch
    if torch.error is not None or not torch.nccl:
        return
    shown = torch.nccl_loaded or torch.nccl_installed or "of unknown version"
    if torch.nccl_wanted and torch.nccl_installed and torch.nccl_wanted != torch.nccl_installed:
        yield Finding(_AREA, "NCCL", Level.WARN,
                      f"pip has NCCL {torch.nccl_installed}, this torch was released with {torch.nccl_wanted}",
                      "fine where it is meant (every run records it); else reinstall torch")
    elif torch.nccl_loaded and torch.nccl_installed and (
            numbers(torch.nccl_loaded)[:3] != numbers(torch.nccl_installed)[:3]):
        yield Finding(_AREA, "NCCL", Level.WARN,
                      f"torch loads NCCL {torch.nccl_loaded}, pip has {torch.nccl_installed}",
                      "look for another libnccl.so.2 in LD_PRELOAD and LD_LIBRARY_PATH")
    else:
        yield Finding(_AREA, "NCCL", Level.OK, shown)


def check_tracing(facts: Facts) -> Iterator[Finding]:
    """Nsight Systems explains a run on GPUs; without it torch.profiler does, which has no counters."""
    nsys = facts.nsys
    if nsys.error is not None:
        yield Finding("tracing", "nsys", Level.BLOCKS, nsys.error, "unset REGRESS_NSYS, or name an nsys that runs")
        return
    if not facts.on_gpus:
        found = f"nsys {nsys.version} at {nsys.path} is there; " if nsys.path else ""
        yield Finding("tracing", "tracer", Level.OK, f"{found}torch.profiler explains runs on the CPU")
        return
    if nsys.path is None:
        yield Finding("tracing", "nsys", Level.WARN,
                      "not on PATH, in NVIDIA's folders under /opt/nvidia or /usr/local/cuda*, or in REGRESS_NSYS: "
                      "torch.profiler explains runs, without GPU counters",
                      "install the package nsight-systems-cli, or set REGRESS_NSYS to the binary")
        return
    if nsys.importer_obstacle:
        yield Finding("tracing", "nsys", Level.WARN, f"{nsys.version} at {nsys.path}: {nsys.importer_obstacle}",
                      "install the libraries it lacks, or the whole package nsight-systems (not only its target part)")
        return
    yield Finding("tracing", "nsys", Level.OK, f"{nsys.version} at {nsys.path}")
    if not nsys.payloads:
        yield Finding("tracing", "nsys exports", Level.WARN, f"nsys {nsys.version}: {_SIZES_LOST}",
                      "install nsys 2025.3 or newer")
    if nsys.gpu_metrics_obstacle:
        seen, _, fix = nsys.gpu_metrics_obstacle.partition(": load it")
        yield Finding("tracing", "GPU counters", Level.WARN, seen,
                      (f"load it{fix} (a container: --cap-add=SYS_ADMIN)" if fix else "see docs/nsys.md")
                      + "; runs are traced without them")
    if nsys.nvtx_warning is not None:
        seen, _, fix = nsys.nvtx_warning.partition(": ")
        yield Finding("tracing", "nvtx", Level.WARN, seen, fix)
