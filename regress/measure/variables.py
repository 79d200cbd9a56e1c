"""Environment variables and NCCL's own files, as far as they steer communication: allow-listed and redacted."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

ALLOWED_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_")
ALLOWED_NAMES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS")
SEARCH_PATHS = ("PYTHONPATH", "LD_PRELOAD")
"""They choose the code that ranks run: another entry can be another communication library."""

REDACTED = "(redacted)"

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|KEY|COOKIE", re.I)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_CONF_LINE = re.compile(r"\s*([A-Za-z0-9_]+)\s*=\s*(.*?)\s*")


def allowed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that steer communication, as `variable.NAME`, in order of name."""
    return {f"variable.{name}": redact(name, value) for name, value in sorted(environment.items())
            if name.startswith(ALLOWED_PREFIXES) or name in (*ALLOWED_NAMES, *SEARCH_PATHS)}


def without_place(environment: Mapping[str, str], root: Path) -> dict[str, str]:
    """The environment with the repository's own folder left out of search paths: a job's workspace has another name
    each time, and that is no difference.
    """
    place = str(root.resolve())
    moved = {name: os.pathsep.join(entry.replace(place, "<repository>", 1) if entry.startswith(place) else entry
                                   for entry in environment[name].split(os.pathsep))
             for name in SEARCH_PATHS if environment.get(name)}
    return {**environment, **moved}


def redact(name: str, value: str) -> str:
    """The value, without what a report must not show: all of it where the name says secret, logins in addresses."""
    return REDACTED if _SECRET_NAME.search(name) else redact_logins(value)


def redact_logins(text: str) -> str:
    """The text with the `user:password` of every address in it left out."""
    return _USER_INFO.sub(REDACTED, text)


def conf_files(environment: Mapping[str, str], system: Path = Path("/etc/nccl.conf")) -> list[Path]:
    """The files NCCL reads parameters from: the system's, then NCCL_CONF_FILE or else ~/.nccl.conf.

    NCCL user guide, "Environment Variables", "System configuration".
    """
    named, home = environment.get("NCCL_CONF_FILE"), environment.get("HOME")
    own = [Path(named)] if named else [Path(home, ".nccl.conf")] if home else []
    return [system, *own]


def conf_variables(files: list[Path]) -> dict[str, str]:
    """Parameters set in NCCL's files, as `nccl_conf.NAME`; a later file wins; files that cannot be read hold none."""
    found: dict[str, str] = {}
    for file in files:
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            match = _CONF_LINE.fullmatch(line.partition("#")[0])
            if match:
                found[f"nccl_conf.{match[1]}"] = redact(match[1], match[2])
    return dict(sorted(found.items()))
