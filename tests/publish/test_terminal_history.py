"""The table of `regress show`: widths, pipes, hostile text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from regress.publish.terminal_history import show_table
from regress.trend import ChangePoint
from tests.html.histories import HOSTILE, allreduce, sha, story

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = show_table(story(), width, color=False).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert lines[0].startswith("Slower: 2 of 20 series")


def test_wider_terminals_tell_more() -> None:
    def heads(width: int) -> list[str]:
        lines = show_table(story(), width, color=False).splitlines()
        return re.split(r" {2,}", next(line for line in lines if line.startswith("Case")))

    assert heads(60) == ["Case", "Change", "Verdict"]
    assert heads(100) == ["Case", "Last runs", "Now", "Change", "Verdict", "Since"], "the metric under its case"
    assert heads(110) == ["Case", "Metric", "Now", "Change", "Verdict", "Since"]
    assert heads(200) == ["Case", "Metric", "Last runs", "Now", "Baseline", "Change", "Interval", "Verdict", "Since"]


def test_plain_in_a_pipe_and_coloured_on_a_terminal() -> None:
    plain, coloured = show_table(story(), 120, color=False), show_table(story(), 120, color=True)
    assert "\x1b" not in plain
    assert "\x1b[1;31m" in coloured
    stripped = [line.rstrip() for line in ANSI.sub("", coloured).splitlines()]
    assert stripped == plain.splitlines()


def test_a_row_in_full() -> None:
    slow = (allreduce(2**24).id, "allreduce_seconds")
    text = show_table(story(), 200, color=False, change_points={slow: [ChangePoint("run-00114", 0.2)]})
    assert f"Since {sha(114)[:9]} Tidy the docs (part 114) (in the same run: nccl 2.28.3 → 2.29.1)" in text
    row = next(line for line in text.splitlines() if line.startswith("allreduce[16MiB") and "regression" in line)
    assert re.split(r" {2,}", row) == [
        "allreduce[16MiB-float32-2xcuda]", "allreduce_seconds", "▁▁▁▁▁▁▁▁▁▁██████", "81.4 µs", "67.9 µs", "+19.8 %",
        "+18.9 to +20.7 %", "regression", f"{sha(114)[:9]} Tidy the docs (part 114)"]
    assert "Machine to be believed? Yes." in text
    assert "Not shown: 1 series that no detector judges." in text


def test_hostile_text_neither_colours_nor_moves_the_cursor() -> None:
    runs = [replace(run, commit=replace(run.commit, subject=HOSTILE), warnings=(HOSTILE,)) for run in story(30)]
    text = show_table(runs, 200, color=False)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]x[/red]" in text


def test_empty() -> None:
    assert show_table([], 80, color=False) == "No runs yet. Run: pytest --comm-regress\n"
