"""What torch says of itself, asked in a process of its own: a broken torch must not take the doctor with it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires

import msgspec

from regress.doctor.facts import TorchFacts
from regress.errors import EnvironmentUnfitError
from regress.measure.ranks import require_torch
from regress.measure.software import nccl_version

PROBE_SECONDS = 120
"""A cold import of torch from a network disk takes the better part of a minute."""

_PROGRAM = """
import json, torch, torch.distributed as d
there = d.is_available()
nccl = there and d.is_nccl_available()
print(json.dumps({
    "version": torch.__version__, "cuda_build": torch.version.cuda, "distributed": there,
    "gloo": bool(there and d.is_gloo_available()), "nccl": bool(nccl),
    "nccl_loaded": ".".join(map(str, torch.cuda.nccl.version())) if nccl and torch.version.cuda else None,
    "cuda_works": torch.cuda.is_available() if torch.version.cuda else None,
    "cuda_devices": torch.cuda.device_count() if torch.version.cuda else None}))
"""


class _Said(msgspec.Struct, frozen=True):
    version: str
    cuda_build: str | None
    distributed: bool
    gloo: bool
    nccl: bool
    nccl_loaded: str | None
    cuda_works: bool | None
    cuda_devices: int | None


def probe_torch(python: str = sys.executable) -> TorchFacts:
    """torch as a fresh interpreter sees it."""
    try:
        require_torch()
    except EnvironmentUnfitError as error:
        return TorchFacts(error=error.seen)
    try:
        done = subprocess.run([python, "-c", _PROGRAM], capture_output=True, text=True, errors="replace",
                              timeout=PROBE_SECONDS, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return TorchFacts(error=f"importing torch did not end within {PROBE_SECONDS} s")
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return TorchFacts(error=f"torch cannot be imported: {said[-1]}")
    said_so = msgspec.json.decode(lines[-1], type=_Said)
    return TorchFacts(None, said_so.version, said_so.cuda_build, said_so.distributed, said_so.gloo, said_so.nccl,
                      wanted_nccl(), nccl_version(), said_so.nccl_loaded, said_so.cuda_works, said_so.cuda_devices)


def wanted_nccl() -> str | None:
    """The NCCL that torch's own metadata asks for; None for a build that brings its own or has none."""
    try:
        needs = requires("torch") or []
    except PackageNotFoundError:
        return None
    found = (re.match(r"nvidia-nccl-cu\d+==([\d.]+)", need.replace(" ", "")) for need in needs)
    return next((match[1] for match in found if match is not None), None)
