from __future__ import annotations

from pathlib import Path

import pytest

from regress.measure.progress import ProgressReader, RankState, format_left, format_progress, progress_file
from regress.record import Progress, to_json


def line(operation: str, done: bool, case: str = "allreduce[4KiB]", at: int | None = None) -> Progress:
    return Progress(1.0, case, operation, done, at, None if at is None else 40)


def append(folder: Path, rank: int, text: bytes) -> None:
    with progress_file(folder, rank).open("ab") as stream:
        stream.write(text)


def test_lines_come_once_and_a_cut_one_waits(tmp_path: Path) -> None:
    reader = ProgressReader(tmp_path, 2)
    assert reader.poll() == []
    first, second = to_json(line("warm-up", True)) + b"\n", to_json(line("isolated", False, at=12)) + b"\n"
    append(tmp_path, 1, first + second[:20])
    assert reader.poll() == [(1, line("warm-up", True))]
    append(tmp_path, 1, second[20:])
    append(tmp_path, 0, b"{cut\n" + first)
    assert reader.poll() == [(0, line("warm-up", True)), (1, line("isolated", False, at=12))]
    assert [state.text for state in reader.states] == [
        "rank 0: last finished warm-up of allreduce[4KiB]",
        "rank 1: last finished warm-up of allreduce[4KiB], in isolated of allreduce[4KiB] (12 of 40)"]


def test_a_rank_that_never_spoke_finished_nothing() -> None:
    assert RankState(3).text == "rank 3: finished no operation"
    assert RankState(0).after(line("start", False, case="")).text == "rank 0: finished no operation, in start"


def test_a_line_for_a_person() -> None:
    assert format_progress(line("isolated", False, at=12), position=3, cases=12, launch=2, launches=3,
                           seconds_left=35.2) == (
        "[3/12] allreduce[4KiB] · isolated 12/40 · launch 2/3 · about 35 s left")
    assert format_progress(line("warm-up", False), position=1, cases=1, launch=1, launches=1, seconds_left=None) == (
        "[1/1] allreduce[4KiB] · warm-up · launch 1/1")


@pytest.mark.parametrize(("seconds", "text"), [(-3, "0 s"), (8.4, "8 s"), (59.9, "1 min 0 s"), (107, "1 min 40 s"),
                                               (725, "12 min")])
def test_time_left_is_as_coarse_as_it_is_known(seconds: float, text: str) -> None:
    assert format_left(seconds) == text
