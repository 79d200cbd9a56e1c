"""Reads everything that the checks look at: NVML, files of the kernel, torch in a process of its own, nsys, git."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from regress.catalog import open_shelves
from regress.config import Config, load_config
from regress.doctor.container import container_kind, orphans_are_reaped, stale_shared_memory
from regress.doctor.facts import (
    DriverFacts,
    Facts,
    GpuFacts,
    HostFacts,
    LinkFacts,
    MpsFacts,
    NsysFacts,
    ProjectFacts,
)
from regress.doctor.torch_probe import probe_torch
from regress.errors import ConfigError, EnvironmentUnfitError, HistoryError, MeasurementError
from regress.history.runs import RUNS
from regress.history.store import SERVER_SCHEMES, open_history
from regress.measure import host
from regress.measure.commit import find_main_branch, is_shallow, read_commit
from regress.measure.devices import Devices, open_devices
from regress.measure.health import cpu_facts, host_before
from regress.measure.links import link_class, read_matrix, topology_class
from regress.measure.lock import host_lock_path, who_holds
from regress.measure.mps import find_program, foreign_service
from regress.measure.ranks import RankPlan, plan_ranks, visible_indices
from regress.measure.variables import allowed_variables
from regress.record import Scalar
from regress.session import plan_cases
from regress.trace.nsys import find, nvtx_package_warning

_DRIVER = Path("/proc/driver/nvidia/version")
_SHM = Path("/dev/shm")  # noqa: S108  the kernel's shared memory, only looked at


@dataclass(frozen=True, slots=True)
class Question:
    """What to look at. config: a thresholds file, None for the packaged one. history: a folder or URL."""

    root: Path
    config: Path | None
    history: str
    device: str = "auto"


def collect_facts(question: Question, environment: Mapping[str, str] | None = None) -> Facts:
    """Everything, in a few seconds; most of them are torch being imported by a fresh process."""
    known = os.environ if environment is None else environment
    devices = open_devices()
    try:
        config, config_error = load_config(question.config, open_shelves().catalog()), None
    except ConfigError as error:
        config, config_error = None, error.text
    plan, plan_error = _plan(question.device, config)
    gpus = _gpus(devices, known)
    visible = [gpu.index for gpu in gpus if gpu.visible]
    return Facts(
        question.device, plan, plan_error, gpus,
        DriverFacts(_DRIVER.exists(), devices is not None, devices.driver if devices is not None else None,
                    devices.cuda_version if devices is not None else None),
        _links(devices, visible), _mps(known, plan), probe_torch(), _nsys(known), _host(known),
        _project(question, config, config_error, plan),
        tuple((name.removeprefix("variable."), value) for name, value in allowed_variables(known).items()))


def _plan(device: str, config: Config | None) -> tuple[RankPlan | None, str | None]:
    try:
        plan = plan_ranks(device)
        wished = config.device(plan.device).ranks if config is not None else None
        return plan if wished is None else plan_ranks(device, wished), None
    except EnvironmentUnfitError as error:
        return None, error.text


def _gpus(devices: Devices | None, environment: Mapping[str, str]) -> tuple[GpuFacts, ...]:
    if devices is None:
        return ()
    visible = visible_indices(devices, environment)
    return tuple(GpuFacts(index, devices.name(index), index in visible, devices.read(index))
                 for index in range(devices.count))


def _links(devices: Devices | None, gpus: list[int]) -> LinkFacts:
    if devices is None or not gpus:
        return LinkFacts()
    return LinkFacts(link_class(devices, gpus), topology_class(devices, gpus, read_matrix() if len(gpus) > 1 else None))


def _mps(environment: Mapping[str, str], plan: RankPlan | None) -> MpsFacts:
    if plan is None or not plan.shared_gpu:
        return MpsFacts()
    program = find_program(environment)
    foreign = foreign_service(environment, program)
    return MpsFacts(program, None if foreign is None else str(foreign))


def _nsys(environment: Mapping[str, str]) -> NsysFacts:
    try:
        nsys = find(environment)
    except EnvironmentUnfitError as error:
        return NsysFacts(error=error.seen)
    if nsys is None:
        return NsysFacts()
    try:
        warning = nvtx_package_warning(nsys.version, version("nvtx"))
    except PackageNotFoundError:
        warning = None
    return NsysFacts(None, str(nsys.path), nsys.version, nsys.importer.obstacle, nsys.gpu_metrics_obstacle,
                     nsys.payloads, warning)


def _host(environment: Mapping[str, str]) -> HostFacts:
    first = host.cpu_counters()
    busy = host_before()
    steal = cpu_facts(first, host.cpu_counters())["cpu.steal_ratio"]
    shm = shutil.disk_usage(_SHM) if _SHM.is_dir() else None
    stale, stale_bytes = stale_shared_memory(_SHM)
    container = container_kind(environment)
    return HostFacts(
        host.cpu_model(), host.allowed_cores(), host.cpu_limit_cores(), host.memory_limit_bytes(),
        _ratio(busy["cpu.busy_before_ratio"]), _ratio(busy["cpu.load_before_per_core"]), _ratio(steal),
        _ratio(busy["cpu.runnable_before_per_core"]), None if shm is None else shm.total,
        None if shm is None else shm.free, stale, stale_bytes,
        _soft_limit(resource.RLIMIT_MEMLOCK), _soft_limit(resource.RLIMIT_NOFILE), container,
        orphans_are_reaped() if container is not None else None)


def _ratio(value: Scalar) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _soft_limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _project(question: Question, config: Config | None, config_error: str | None,
             plan: RankPlan | None) -> ProjectFacts:
    main = config.gate.main_branch if config is not None else None
    commit = read_commit(question.root, main_branch=main)
    planned = plan_cases(config, plan) if config is not None and plan is not None else ()
    history_runs, problems, history_error = _history(question)
    lock_holder, lock_error = _lock()
    return ProjectFacts(
        shutil.which("git") is not None, commit.sha, commit.branch, main or find_main_branch(question.root),
        is_shallow(question.root), _source(question.config), config_error,
        sum(case.unfit is None for case in planned),
        tuple((case.case.id, case.unfit) for case in planned if case.unfit is not None),
        question.history.rpartition("@")[2], history_error, history_runs, problems, _disk_free(question.history),
        lock_error, lock_holder)


def _source(config: Path | None) -> str:
    return "the packaged thresholds" if config is None else str(config)


def _history(question: Question) -> tuple[int | None, tuple[str, ...], str | None]:
    """Runs in it, what cannot be read, why it cannot be opened. A folder that is not there is not made."""
    url = question.history
    if not url.startswith(SERVER_SCHEMES) and not Path(url, RUNS).is_dir():
        return None, (), _unwritable(Path(url))
    try:
        with open_history(url) as history:
            problems = tuple(f"{problem.location}: {problem.reason}" for problem in history.problems())
            return sum(1 for _ in history.runs()), problems, None
    except HistoryError as error:
        return None, (), error.text


def _unwritable(folder: Path) -> str | None:
    """Why the folder could not be made, None when it could."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        return f"{there} is a file, and the history needs a folder"
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written by this user"


def _disk_free(url: str) -> int | None:
    if url.startswith(SERVER_SCHEMES):
        return None
    folder = Path(url).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


def _lock() -> tuple[str | None, str | None]:
    try:
        return who_holds(host_lock_path()), None
    except MeasurementError as error:
        return None, error.text
