"""Cores, load, limits, shared memory and the container around it all."""

from __future__ import annotations

from collections.abc import Iterator

from regress.doctor.facts import Facts, Finding, Level
from regress.measure.fitness import assess
from regress.units import format_size

_AREA = "host"
_SHM = "/dev/shm"  # noqa: S108  the name of a line
_SEGMENT_BYTES = 9_637_888
"""One shared-memory segment of NCCL, as its own error message names it ("shared memory segment, size 9637888")."""
_COMFORTABLE_SHM = 1 << 30
_RANK_MEMORY = 2 << 30
"""A rank with torch loaded and buffers for a 256 MiB allgather."""
_FEW_FILES = 1024
_LEVELS = {"warn": (Level.WARN, False), "inconclusive": (Level.WARN, True), "invalid": (Level.BLOCKS, False)}


def check_host(facts: Facts) -> Iterator[Finding]:
    """Processor, memory, limits."""
    yield from _cores(facts)
    yield from _load(facts)
    yield from _memory(facts)
    yield from _shared_memory(facts)
    yield from _limits(facts)
    yield from _container(facts)


def _ranks(facts: Facts) -> int:
    return facts.plan.world_size if facts.plan is not None else 2


def _cores(facts: Facts) -> Iterator[Finding]:
    host, ranks = facts.host, _ranks(facts)
    usable = min(host.cores, host.cpu_limit_cores if host.cpu_limit_cores is not None else host.cores)
    limit = "" if host.cpu_limit_cores is None else f", limited to {host.cpu_limit_cores:g} by the cgroup"
    seen = f"{host.cores} cores of {host.cpu_model or 'an unknown processor'}{limit}"
    if usable < ranks:
        yield Finding(_AREA, "cores", Level.WARN, f"{seen}, for {ranks} ranks: they take turns",
                      "give the container more cores (--cpus), or the job (--cpus-per-task); lower the ranks", True)
    else:
        yield Finding(_AREA, "cores", Level.OK, f"{seen}, for {ranks} ranks")


def _load(facts: Facts) -> Iterator[Finding]:
    host = facts.host
    found = assess({"cpu.busy_before_ratio": host.busy_ratio, "cpu.load_before_per_core": host.load_per_core,
                    "cpu.runnable_before_per_core": host.runnable_per_core, "cpu.steal_ratio": host.steal_ratio})
    for verdict, text in found:
        level, doubtful = _LEVELS[verdict]
        stolen = "hypervisor" in text
        yield Finding(_AREA, "load", level, text.removeprefix("cpu: ").replace(" before the first launch", ""),
                      "use a machine that is not shared, or pin the virtual cores" if stolen else
                      "end what else runs here (top), or measure later", doubtful)
    if not found:
        yield Finding(_AREA, "load", Level.OK, "unknown" if host.busy_ratio is None else
                      f"{host.busy_ratio:.0%} of the CPU busy")


def _memory(facts: Facts) -> Iterator[Finding]:
    limit, ranks = facts.host.memory_limit, _ranks(facts)
    if limit is not None and limit < ranks * _RANK_MEMORY:
        yield Finding(_AREA, "memory", Level.WARN, f"limited to {format_size(limit)} by the cgroup, for {ranks} ranks",
                      f"allow {format_size(ranks * _RANK_MEMORY)} (--memory), or measure smaller messages")


def _shared_memory(facts: Facts) -> Iterator[Finding]:
    """Ranks on GPUs without peer access talk through /dev/shm: a segment each way for every neighbour in a ring."""
    host = facts.host
    if host.stale_shm:
        yield Finding(_AREA, "left-overs in /dev/shm", Level.WARN,
                      f"{host.stale_shm} files of ended NCCL or torch processes, {format_size(host.stale_shm_bytes)}",
                      "rm /dev/shm/nccl-* /dev/shm/torch_* when nothing runs")
    if host.shm_total is None or host.shm_free is None:
        return
    seen = f"{format_size(host.shm_free)} of {format_size(host.shm_total)} free"
    fix = _more_shm(host.container)
    uses = facts.on_gpus and facts.plan is not None and not facts.plan.shared_gpu
    if uses and host.shm_free < 2 * _SEGMENT_BYTES * _ranks(facts):
        yield Finding(_AREA, _SHM, Level.BLOCKS, f"{seen}: too little for NCCL with {_ranks(facts)} ranks", fix)
    elif uses and host.shm_total < _COMFORTABLE_SHM:
        yield Finding(_AREA, _SHM, Level.WARN, f"{seen}: NCCL fails where it needs more", fix)
    else:
        yield Finding(_AREA, _SHM, Level.OK, seen)


def _more_shm(container: str | None) -> str:
    if container == "kubernetes":
        return "mount an emptyDir with `medium: Memory` at /dev/shm"
    if container is not None:
        return "start the container with --ipc=host or --shm-size=1g"
    return "mount -o remount,size=1g /dev/shm"


def _limits(facts: Facts) -> Iterator[Finding]:
    host = facts.host
    where = "docker run --ulimit" if host.container is not None else "in /etc/security/limits.conf:"
    if facts.on_gpus and host.memlock is not None and host.memlock < _COMFORTABLE_SHM:
        yield Finding(_AREA, "memlock", Level.WARN,
                      f"{format_size(host.memlock)} of memory may be locked: RDMA between nodes needs more",
                      f"{where} memlock=-1" if host.container else f"{where} `* - memlock unlimited`")
    if host.nofile is not None and host.nofile < _FEW_FILES:
        yield Finding(_AREA, "open files", Level.WARN, f"at most {host.nofile} open files in a process",
                      f"{where} nofile=65536" if host.container else "ulimit -n 65536")


def _container(facts: Facts) -> Iterator[Finding]:
    host = facts.host
    if host.container is None:
        return
    if host.reaps is False:
        yield Finding(_AREA, "container", Level.WARN,
                      f"{host.container}: process 1 does not reap orphans, so ended ranks stay as zombies",
                      "set shareProcessNamespace: true, or start tini first" if host.container == "kubernetes" else
                      "start the container with --init")
    else:
        yield Finding(_AREA, "container", Level.OK, host.container)
