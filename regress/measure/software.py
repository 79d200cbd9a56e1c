"""Versions of what takes part, read from installed metadata: nothing here imports torch or loads CUDA."""

from __future__ import annotations

import importlib.util
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_NCCL_DISTRIBUTIONS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")


def python_version() -> str:
    """This interpreter's version."""
    return platform.python_version()


def package_folder(name: str) -> Path | None:
    """Where a top-level package is installed, found without importing it."""
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


def torch_version(folder: Path | None) -> str | None:
    """torch's version with its build ("2.13.0+cu130"), from the file its build leaves in the package."""
    return _assigned(folder, "__version__")


def torch_cuda_version(folder: Path | None) -> str | None:
    """The CUDA that torch was built for ("13.0"); None for a CPU build."""
    return _assigned(folder, "cuda")


def _assigned(folder: Path | None, name: str) -> str | None:
    if folder is None:
        return None
    try:
        text = (folder / "version.py").read_text()
    except OSError:
        return None
    match = re.search(rf"^{name}(?:\s*:[^=\n]+)?\s*=\s*['\"]([^'\"]+)['\"]", text, re.M)
    return match[1] if match else None


def nccl_version() -> str | None:
    """The NCCL that pip installed for torch; a rank reports the one really loaded. None without such a package."""
    for name in _NCCL_DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
