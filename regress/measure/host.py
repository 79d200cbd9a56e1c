"""Facts about the host: processor, limits of the container, load. Each reader gives None where it cannot know."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")


def allowed_cores() -> int:
    """Cores that this process may run on: what a container or taskset leaves of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model(root: Path = _ROOT) -> str | None:
    """The processor's name as the kernel has it; its architecture where that is all there is."""
    text = _read(root / "proc/cpuinfo") or ""
    match = re.search(r"^(?:model name|Model|Processor)\s*:\s*(.+)$", text, re.M)
    return match[1].strip() if match else platform.machine() or None


def kernel() -> str | None:
    """Kernel name and release."""
    return f"{platform.system()} {platform.release()}".strip() or None


def host_name() -> str | None:
    """The name of this host, or of the container."""
    return socket.gethostname() or None


def load_average() -> float | None:
    """Processes running or waiting, mean over the last minute."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def runnable_per_core(root: Path = _ROOT) -> float | None:
    """Tasks that run or want to run at this moment, for each core of the host (proc(5), /proc/stat, procs_running).

    The load average takes half a minute to notice what this shows at once.
    """
    found = re.search(r"^procs_running (\d+)$", _read(root / "proc/stat") or "", re.M)
    cores = os.cpu_count()
    return None if found is None or not cores else int(found[1]) / cores


def cpu_limit_cores(root: Path = _ROOT) -> float | None:
    """Cores that the cgroup grants (cpu.max, or cfs_quota_us of version 1); None where it sets no limit."""
    text = _read(root / "sys/fs/cgroup/cpu.max")
    if text is not None:
        quota, period = text.split()[:2]
    else:
        folder = root / "sys/fs/cgroup/cpu"
        quota, period = _read(folder / "cpu.cfs_quota_us") or "-1", _read(folder / "cpu.cfs_period_us") or "1"
    return None if quota.strip() in ("max", "-1") else int(quota) / int(period)


def memory_limit_bytes(root: Path = _ROOT) -> int | None:
    """Memory that the cgroup grants; None where it sets no limit."""
    text = _read(root / "sys/fs/cgroup/memory.max") or _read(root / "sys/fs/cgroup/memory/memory.limit_in_bytes")
    if text is None or text.strip() == "max":
        return None
    limit = int(text)
    return limit if limit < 1 << 60 else None  # version 1 says "no limit" with a number near 2^63


def image(environment: Mapping[str, str], root: Path = _ROOT) -> str | None:
    """The container image: COMM_REGRESS_IMAGE where the job sets it, else what podman leaves in the container."""
    if environment.get("COMM_REGRESS_IMAGE"):
        return environment["COMM_REGRESS_IMAGE"]
    text = _read(root / "run/.containerenv") or ""
    match = re.search(r'^imageid="(.+)"$', text, re.M) or re.search(r'^image="(.+)"$', text, re.M)
    return match[1] if match else None


@dataclass(frozen=True, slots=True)
class CpuCounters:
    """Counters since boot. Ticks over all cores: total, idle (with waiting for disks), steal (taken by the
    hypervisor). periods, throttled: of the cgroup's CPU limit; None where it has none."""

    total: int
    idle: int
    steal: int
    periods: int | None = None
    throttled: int | None = None


def cpu_counters(root: Path = _ROOT) -> CpuCounters | None:
    """The counters now (proc(5), /proc/stat; cgroup v2, cpu.stat); None where there is no /proc."""
    first = (_read(root / "proc/stat") or "").partition("\n")[0].split()
    if len(first) < 9 or first[0] != "cpu":
        return None
    ticks = [int(word) for word in first[1:9]]  # user nice system idle iowait irq softirq steal; guest is in user
    stat = dict(re.findall(r"^(\w+) (\d+)$", _read(root / "sys/fs/cgroup/cpu.stat") or "", re.M))
    limited = int(stat.get("nr_periods", "0")) > 0
    return CpuCounters(sum(ticks), ticks[3] + ticks[4], ticks[7], int(stat["nr_periods"]) if limited else None,
                       int(stat["nr_throttled"]) if limited and "nr_throttled" in stat else None)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None
