"""Shelves find values by type, refuse two of one name, and are not confused by other people's folders."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from regress.errors import ShelfError
from regress.shelf import beside_package, variants


@dataclass(frozen=True, slots=True)
class Tool:
    name: str


def make_shelf(folder: Path, name: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> object:
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text("")
    for file, text in files.items():
        (package / file).write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    return importlib.import_module(name)


def test_variants_are_values_found_by_type_and_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = f"from {Tool.__module__} import Tool\n"
    shelf = make_shelf(tmp_path, "shelf_sorted", {
        "saw.py": kind + "SAW = Tool('saw')\nALSO = SAW\nNOISE = 3\n", "axe.py": kind + "AXE = Tool('axe')\n"},
                       monkeypatch)
    found = variants(shelf, Tool)  # type: ignore[arg-type]
    assert list(found) == ["axe", "saw"]
    assert found["axe"] == Tool("axe")


def test_one_name_twice_is_an_error_that_names_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"from {Tool.__module__} import Tool\nT = Tool('saw')\n"
    shelf = make_shelf(tmp_path, "shelf_twice", {"one.py": text, "two.py": text}, monkeypatch)
    with pytest.raises(ShelfError, match="'saw' is declared by one and by two"):
        variants(shelf, Tool)  # type: ignore[arg-type]


def test_a_users_own_folder_called_benchmarks_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").write_text("MINE = True\n")
    code = ("import benchmarks; from regress.shelf import beside_package; "
            "ours = beside_package('benchmarks'); print(benchmarks.MINE, hasattr(ours, 'Workload'))")
    checkout = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
                          env={"PYTHONPATH": f"{tmp_path}:{checkout}", "PATH": ""})
    assert done.stdout.split() == ["True", "True"]


def test_what_is_not_beside_us_is_a_fault_of_the_installation() -> None:
    with pytest.raises(ShelfError, match="reinstall comm-regress"):
        beside_package("no_such_package_here")
