"""The environment of a run: what must match for a comparison, and what is reported when it differs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from regress.measure import host, software
from regress.measure.devices import Devices
from regress.measure.links import link_class, read_matrix, topology_class
from regress.measure.ranks import RankPlan, visible_indices
from regress.measure.variables import allowed_variables, conf_files, conf_variables
from regress.record import Environment, Scalar


def collect(plan: RankPlan, devices: Devices | None, *, profiler_mode: str = "none", gpu_sharing: str | None = None,
            node_count: int = 1, reported: Mapping[str, Scalar] | None = None,
            environment: Mapping[str, str] | None = None) -> Environment:
    """Everything the design lists, for the ranks of this plan.

    profiler_mode: whether gated figures are measured under a profiler, and which. gpu_sharing: how ranks on one GPU
    share it ("mps", "time-sliced"), None where they do not. reported: facts known to others (nsys_version,
    what a rank saw of NCCL); they win. environment: os.environ.
    """
    variables = os.environ if environment is None else environment
    must: dict[str, Scalar] = {"device": plan.device, "backend": plan.backend, "shared_gpu": plan.shared_gpu,
                               "node_count": node_count, "profiler_mode": profiler_mode}
    facts: dict[str, Scalar] = _software_facts() | _host_facts(variables)
    if plan.device == "cuda" and devices is not None:
        gpus = rank_gpus(plan, devices, variables)
        must |= _gpu_identity(devices, gpus) | {"gpu_sharing": gpu_sharing}
        if plan.multi_rank_gpu:
            must["multi_rank_gpu"] = True
        facts |= {"driver_version": devices.driver, "driver_cuda_version": devices.cuda_version}
    else:
        must |= {"cpu_model": host.cpu_model(), "cpu_cores_allowed": host.allowed_cores()}
    facts |= allowed_variables(variables) | conf_variables(conf_files(variables)) | dict(reported or {})
    return Environment(must, facts)


def rank_gpus(plan: RankPlan, devices: Devices, environment: Mapping[str, str]) -> tuple[int, ...]:
    """NVML indices of the GPUs that the ranks use; empty on the CPU."""
    if plan.device != "cuda":
        return ()
    visible = visible_indices(devices, environment)
    return visible[:1] if plan.shared_gpu else visible[:plan.world_size]


def _gpu_identity(devices: Devices, gpus: Sequence[int]) -> dict[str, Scalar]:
    models = sorted({devices.name(gpu) or "unknown" for gpu in gpus})
    partitioned = {devices.read(gpu).mig for gpu in gpus}
    return {
        "gpu_model": " + ".join(models), "gpu_count": len(gpus),
        "gpu_partitioning": "mig" if True in partitioned else "none" if False in partitioned else None,
        "link_class": link_class(devices, gpus),
        "topology_class": topology_class(devices, gpus, read_matrix() if len(gpus) > 1 else None)}


def _software_facts() -> dict[str, Scalar]:
    torch = software.package_folder("torch")
    return {"python_version": software.python_version(), "torch_version": software.torch_version(torch),
            "torch_cuda_version": software.torch_cuda_version(torch), "nccl_version": software.nccl_version()}


def _host_facts(variables: Mapping[str, str]) -> dict[str, Scalar]:
    return {"host": host.host_name(), "kernel": host.kernel(), "cpu_model": host.cpu_model(),
            "cpu_cores_allowed": host.allowed_cores(), "cpu_limit_cores": host.cpu_limit_cores(),
            "memory_limit_bytes": host.memory_limit_bytes(),
            "image": host.image(variables)}


def describe_devices(plan: RankPlan, environment: Environment) -> str:
    """The header line: "2 ranks on 2x NVIDIA H200 (NVLink 4.0 x18), nccl 2.28.9, torch 2.13.0, driver 580.159"."""
    must, seen = environment.must_match, environment.reported
    if plan.device == "cuda":
        link = f" ({must['link_class']})" if must.get("link_class") else ""
        place = f"{must.get('gpu_count')}x {must.get('gpu_model')}{link}"
        if plan.shared_gpu:
            place += f", shared by the ranks ({must.get('gpu_sharing') or 'how is not known'})"
    else:
        place = f"{must.get('cpu_cores_allowed')} cores of {must.get('cpu_model')}"
    nccl = f" {seen['nccl_version']}" if plan.backend == "nccl" and seen.get("nccl_version") else ""
    parts = [f"{plan.world_size} ranks on {place}", f"{plan.backend}{nccl}",
             f"torch {seen.get('torch_version') or 'of unknown version'}"]
    if plan.device == "cuda":
        parts.append(f"driver {seen.get('driver_version') or 'of unknown version'}")
    return ", ".join(parts)
