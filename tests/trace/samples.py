"""The packed sample traces, unpacked once a session."""

from __future__ import annotations

import json
import lzma
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

DATA = Path(__file__).resolve().parents[1] / "data" / "trace"
NSYS = sorted(f"{path.parent.name}/{path.name.removesuffix('.sqlite.xz')}" for path in DATA.glob("*/*.sqlite.xz"))
WITH_REFERENCE = [name for name in NSYS if not name.startswith("public/")]
_folder = TemporaryDirectory(prefix="comm-regress-samples-")


@cache
def sample(name: str) -> Path:
    """The unpacked export of that name, such as `mps/good`."""
    target = Path(_folder.name) / (name.replace("/", "-") + ".sqlite")
    target.write_bytes(lzma.decompress((DATA / f"{name}.sqlite.xz").read_bytes()))
    return target


@cache
def kineto_8_ranks() -> tuple[Path, ...]:
    """The eight files of the DLRM run, in order of rank."""
    target = Path(_folder.name) / "dlrm"
    with tarfile.open(DATA / "public" / "param_dlrm_8rank_kineto.tar.xz") as archive:
        archive.extractall(target, filter="data")
    return tuple(sorted(target.rglob("*.json")))


@cache
def reference(folder: str) -> dict[str, Any]:
    """Independent figures of a folder's traces."""
    found: dict[str, Any] = json.loads((DATA / folder / "reference.json").read_text())
    return found


def references() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every sample that has reference figures, with them."""
    for name in WITH_REFERENCE:
        folder, trace = name.split("/")
        yield name, reference(folder)[trace]
