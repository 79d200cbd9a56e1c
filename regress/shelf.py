"""Shelves: packages that hold only variants of one thing, each a value in a sibling file.

A variant is an instance of the shelf's one frozen dataclass, found by value, never by structure.
Adding one is adding a file: nothing keeps a list.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeVar

from regress.errors import ShelfError


class Named(Protocol):
    """A variant: anything with a name that is unique on its shelf."""

    @property
    def name(self) -> str:
        """Unique on the shelf."""
        ...


VariantT = TypeVar("VariantT", bound=Named)


def variants(package: ModuleType, kind: type[VariantT]) -> dict[str, VariantT]:
    """All values of exactly `kind` in the sibling modules of `package`, by name, in alphabetical order.

    Raises ShelfError when two files declare one name. Importing the shelf's files is the only side effect.
    """
    found: dict[str, VariantT] = {}
    origin: dict[str, str] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda item: item.name):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for value in vars(module).values():
            if not isinstance(value, kind) or found.get(value.name) is value:
                continue
            if value.name in found:
                raise ShelfError(f"{value.name!r} is declared by {origin[value.name]} and by {info.name}",
                                 where=f"shelf {package.__name__}", accepted="one variant for each name")
            found[value.name], origin[value.name] = value, info.name
    return dict(sorted(found.items()))


def beside_package(name: str) -> ModuleType:
    """The top-level package `name` that was installed beside `regress`, whatever else is called that.

    A user's own repository may well have a folder `benchmarks` on sys.path; ours is then loaded from its own
    place under an alias, so that neither hides the other.
    """
    ours = Path(__file__).resolve().parents[1] / name / "__init__.py"
    alias = f"_comm_regress_{name}"
    if alias in sys.modules:
        return sys.modules[alias]
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == ours:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(alias, ours, submodule_search_locations=[str(ours.parent)])
    if spec is None or spec.loader is None or not ours.is_file():
        raise ShelfError(f"no package {name!r} beside {Path(__file__).parent}", accepted=str(ours),
                         next_step="reinstall comm-regress")
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    spec.loader.exec_module(module)
    return module
