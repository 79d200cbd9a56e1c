"""docs/faults.md names no test that is not there, gives every fault a status, and leaves out no test of this room."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
ABOUT_THE_SEARCH = {"test_the_search_finds_a_planted_fault", "test_green_gates_then_a_slow_allreduce"}
"""Tests here that show something else than a fault around the gate."""


def defined_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_fault_has_a_status_and_a_test_that_is_there() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines()
            if re.match(r"\| (?!fault \|)", line)]
    assert len(rows) >= 40
    for fault, action, status, test in rows:
        assert fault and action
        assert re.search(r"\b(0|1|2|4|10)\b|killed|as above", status), fault
        named = TEST.fullmatch(test)
        assert named is not None, test
        assert named[2] in defined_in(ROOT / named[1]), test


def test_every_fault_that_is_tested_here_is_in_the_table() -> None:
    told = {name for _, name in TEST.findall(PAGE)}
    here = set[str]()
    for path in Path(__file__).parent.glob("test_*.py"):
        if path != Path(__file__):
            here |= defined_in(path)
    assert here - told - ABOUT_THE_SEARCH == set()


def test_the_readme_leads_to_the_table() -> None:
    assert "(docs/faults.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
