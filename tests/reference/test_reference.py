"""The two generated pages: what lies in docs/ is what the declarations say now."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from regress.catalog import open_shelves
from regress.options import Form, option
from regress.reference import main, option_table, pages

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["metrics.md", "thresholds.md"])
def test_the_page_in_docs_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name], "run `make docs`"


def test_every_metric_and_every_option_has_its_row() -> None:
    shelves, made = open_shelves(), pages()
    for name in shelves.metrics:
        assert f"| `{name}` |" in made["metrics.md"]
    options = [*(one.options for one in shelves.detectors.values()), *(one.options for one in shelves.sinks.values())]
    for kind in options:
        for declared in fields(kind):
            assert f"| `{declared.name}` |" in made["thresholds.md"]


def test_tables_have_as_many_cells_in_every_row() -> None:
    for content in pages().values():
        width = 0
        for line in re.sub(r"```.*?```", "", content, flags=re.DOTALL).splitlines():
            cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
            assert not width or not cells or cells == width, line
            width = cells


@dataclass(frozen=True, slots=True)
class Made:
    mode: str = option(help="which", choices=("x", "y"))
    wait: float = option(90.0, form=Form.DURATION, help="a | b")
    size: int | None = option(None, form=Form.SIZE, help="how big")
    on: bool = option(True, help="whether")
    many: tuple[int, ...] = option((1, 2), minimum=1, help="some")


def test_defaults_are_written_as_people_write_them() -> None:
    rows = option_table(Made).splitlines()[2:]
    assert rows == [
        "| `mode` | `x`, `y` | required | which |",
        "| `wait` | a duration such as 3us, 50ms or 2s (ns, us, ms, s, min, h), at least 0 | `90s` | a \\| b |",
        "| `size` | a size in powers of 1024 such as 4KiB or 25MiB (B, KiB, MiB, GiB, TiB) | none | how big |",
        "| `on` | `true` or `false` | `true` | whether |",
        "| `many` | a list of: a whole number, at least 1 | `[1, 2]` | some |",
    ]


def test_make_docs_writes_both(tmp_path: Path) -> None:
    main(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.md", "thresholds.md"}
