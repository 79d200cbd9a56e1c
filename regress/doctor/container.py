"""The container around this process: which kind, whether its first process reaps, what was left in shared memory."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path("/")
_REAP_SECONDS = 5.0
"""Some first processes look for orphans every other second only."""
_CGROUP_WORDS = (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("containerd", "containerd"),
                 ("lxc", "lxc"))


def container_kind(environment: Mapping[str, str], root: Path = _ROOT) -> str | None:
    """"kubernetes", "docker", "podman", ...; None on a bare host or where nothing gives it away."""
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if environment.get("APPTAINER_CONTAINER") or environment.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    try:
        text = (root / "proc/1/cgroup").read_text()
    except OSError:
        return None
    return next((kind for word, kind in _CGROUP_WORDS if word in text), None)


def orphans_are_reaped(patience_seconds: float = _REAP_SECONDS) -> bool | None:
    """Whether somebody takes leave of a process whose parent has ended, tried with one; None without /proc or sh."""
    try:
        done = subprocess.run(["sh", "-c", "sleep 0.1 >&2 & echo $!"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    status = Path("/proc", done.stdout.strip(), "stat")
    if not Path("/proc/self/stat").exists():
        return None
    deadline = time.monotonic() + patience_seconds
    while status.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def stale_shared_memory(folder: Path, proc: Path = Path("/proc")) -> tuple[int, int]:
    """Files of NCCL and torch in shared memory that no process we can see maps: how many, and bytes in all."""
    mapped: set[str] = set()
    files = [path for pattern in ("nccl-*", "torch_*") for path in folder.glob(pattern)]
    if not files:
        return 0, 0
    for maps in proc.glob("[0-9]*/maps"):
        try:
            mapped.update(re.findall(rf"{re.escape(str(folder))}/(\S+)", maps.read_text(errors="replace")))
        except OSError:  # ended meanwhile, or somebody else's
            continue
    sizes = []
    for path in files:
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            continue
        if path.name not in mapped:
            sizes.append(size)
    return len(sizes), sum(sizes)
