"""House rules that a linter of static imports cannot see, or sees only with a list that somebody must keep.

The layers of rooms and the independence of variants are import contracts in pyproject.toml (`make contracts`).
"""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import benchmarks
import regress
from regress.shelf import variants

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = sorted([*(ROOT / "regress").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])
PACKAGES = {"regress": regress, "benchmarks": benchmarks}
FRAMES = "regress.history.frames"
COMPUTING = {"diagnose", "judge", "step_picture", "trace"}
"""Rooms that compute with numpy."""
LIGHT = {"cli", "config", "delivery", "errors", "forge", "gate_options", "history", "measure", "measuring", "metrics",
         "options", "outcomes", "plugin", "publish", "record", "result", "shelf", "terminal", "trend", "units",
         "whole_file", "yaml_source"}
"""Rooms that are there before anything is computed, or where nothing ever is."""


def name_of(path: Path) -> str:
    """The dotted name of a module of the product."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of what a file imports, absolute, with a name per imported module or member."""
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[:len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def modules() -> list[str]:
    """Every module of the product but the one that makes pandas frames: it is imported where a frame is asked for."""
    return [info.name for root, package in PACKAGES.items()
            for info in pkgutil.walk_packages(package.__path__, f"{root}.") if info.name != FRAMES]


def loaded_after(names: list[str], heavy: tuple[str, ...]) -> set[str]:
    """Which heavy packages are there once these modules have been imported, in a fresh interpreter."""
    code = (f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
            f"print(*[name for name in {heavy!r} if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_nothing_inside_takes_a_name_from_the_package_root() -> None:
    """`import regress` and `from regress import ...` tie a room to whatever the root holds; a room is named in full."""
    found = [f"{path.relative_to(ROOT)}:{line}: {name}" for path in PRODUCT for line, name in imported(path)
             if name == "regress" or (name.startswith("regress.") and name.count(".") == 1
                                      and not (ROOT / "regress" / name[8:]).is_dir()
                                      and not (ROOT / "regress" / f"{name[8:]}.py").is_file())]
    assert found == []


def test_no_other_module_loads_torch_or_pandas_when_it_is_imported() -> None:
    assert loaded_after(modules(), ("torch", "pandas")) == set()


def test_only_rooms_that_compute_import_numpy_at_once() -> None:
    for path in (path for path in PRODUCT if name_of(path) != FRAMES):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)) and re.search(r"\b(numpy|scipy)\b", ast.unparse(node)):
                assert name_of(path).split(".")[1] in COMPUTING, f"{path.relative_to(ROOT)}:{node.lineno}"


def test_rooms_that_do_not_compute_do_not_load_numpy() -> None:
    names = [name for name in modules() if name.split(".")[0] == "benchmarks" or name.split(".")[1] in LIGHT]
    assert {name.split(".")[1] for name in names if name.startswith("regress.")} == LIGHT
    assert loaded_after(names, ("numpy", "scipy")) == set()


def test_a_rank_loads_nothing_that_it_does_not_use() -> None:
    """The harness, before the workload imports torch: it starts in every rank of every launch."""
    heavy = ("torch", "pandas", "numpy", "scipy", "yaml", "jsonschema", "pytest", "requests", "sqlite3", "rich")
    assert loaded_after(["benchmarks.harness"], heavy) == set()


def test_workloads_do_not_import_each_other() -> None:
    declared = {module for module in (info.name for info in pkgutil.iter_modules(benchmarks.__path__))
                if "WORKLOAD = Workload(" in (ROOT / "benchmarks" / f"{module}.py").read_text()}
    assert declared >= {"allreduce", "allgather", "ddp_step"}
    assert len(declared) == len(variants(benchmarks, benchmarks.Workload))
    for module in declared:
        others = {f"benchmarks.{other}" for other in declared - {module}}
        for line, name in imported(ROOT / "benchmarks" / f"{module}.py"):
            assert not any(f"{name}.".startswith(f"{other}.") for other in others), f"{module}.py:{line}: {name}"


def test_workloads_import_the_record_the_shelf_and_options_only() -> None:
    allowed = ("regress.errors.", "regress.record.", "regress.shelf.", "regress.options.")
    for path in (path for path in PRODUCT if path.parent.name == "benchmarks"):
        for line, name in imported(path):
            assert not name.startswith("regress.") or name.startswith(allowed), f"{path.name}:{line}: {name}"


@pytest.mark.parametrize("word", ["utils", "util", "common", "helpers", "helper", "manager", "misc"])
def test_no_room_is_a_drawer(word: str) -> None:
    assert [path for path in PRODUCT if word in path.stem.split("_")] == []


def test_dataclasses_have_slots() -> None:
    without = []
    for path in PRODUCT:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            decorators = [ast.unparse(one) for one in node.decorator_list] if isinstance(node, ast.ClassDef) else []
            if any(text.startswith("dataclass") and "slots=True" not in text for text in decorators):
                without.append(f"{path.relative_to(ROOT)}: {ast.unparse(node).splitlines()[1]}")
    assert without == []
