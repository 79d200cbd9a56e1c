from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from regress.errors import MeasurementError, RecordError
from regress.measure.launch import Launcher, LaunchResult
from regress.measure.replay import ReplayLauncher, read_recording, write_recording
from regress.record import Case, LaunchSpec, Progress, RankResult, TimingMode

DATA = Path(__file__).resolve().parents[1] / "data" / "measure"
SMALL = Case("allreduce", "float32", 2, "cpu", TimingMode.PIPELINED, 4096)
LARGE = Case("allreduce", "float32", 2, "cpu", TimingMode.ISOLATED, 1 << 24)
UNKNOWN = Case("alltoall", "float32", 2, "cpu", TimingMode.ISOLATED, 1 << 24)


def recorded(seconds: float, role: str = "head") -> LaunchResult:
    ranks = tuple(RankResult(rank, 2, SMALL, {"pipelined": (seconds,)}) for rank in range(2))
    return LaunchResult(0, role, 1, "2026-01-01T00:00:00+00:00", (SMALL,), (ranks,), 2.0, 1.5,
                        logs=("/somewhere/stderr.log",), folder="/somewhere")


def play(launcher: Launcher, *cases: Case, role: str = "head", index: int = 0) -> LaunchResult:
    return launcher.launch(LaunchSpec(cases, 9, "gloo", "/here", 0.1), index=index, role=role, deadline_seconds=1)


def seconds(result: LaunchResult) -> float:
    rank = result.results[0][0]
    assert rank is not None
    return rank.seconds["pipelined"][0]


def test_a_recording_plays_back_as_it_was_without_this_machines_paths(tmp_path: Path) -> None:
    for name in ("one.json", "two.json.gz"):
        write_recording(tmp_path / name, "made by hand", [recorded(0.25)])
        kept = read_recording(tmp_path / name)
        assert kept.about == "made by hand"
        assert "somewhere" not in repr(kept)
    assert len(ReplayLauncher.from_files([tmp_path]).launches) == 2


def test_launches_are_played_in_order_and_again(tmp_path: Path) -> None:
    launcher = ReplayLauncher([recorded(1.0), recorded(2.0)])
    assert [seconds(play(launcher, SMALL, index=turn)) for turn in range(3)] == [1.0, 2.0, 1.0]
    third = play(launcher, SMALL, index=3)
    assert (third.index, third.seed, third.cases, third.folder) == (3, 9, (SMALL,), "/here")


def test_a_role_has_its_own_recordings_or_plays_those_of_head() -> None:
    launcher = ReplayLauncher([recorded(1.0), recorded(5.0, "base")])
    assert [seconds(play(launcher, SMALL, role=role)) for role in ("base", "head", "traced", "base")] == [
        5.0, 1.0, 1.0, 5.0]


def test_a_recording_that_must_not_repeat_runs_out() -> None:
    launcher = ReplayLauncher([recorded(1.0)], repeat=False)
    play(launcher, SMALL)
    with pytest.raises(MeasurementError, match="no recorded launch is left for role 'head' after 1"):
        play(launcher, SMALL)
    with pytest.raises(MeasurementError, match="at most 0 launches"):
        play(ReplayLauncher([]), SMALL)


def test_real_launches_on_the_cpu_and_a_case_that_was_not_recorded() -> None:
    lines: list[Progress] = []
    launcher = ReplayLauncher.from_files([DATA / "gloo_2ranks_cpu.json.gz"])
    result = launcher.launch(LaunchSpec((LARGE, UNKNOWN), 9, "gloo", "", 0.1), index=0, role="head",
                             deadline_seconds=1, on_progress=lines.append)
    large, unknown = result.results
    assert unknown == (None, None)
    assert [line.case for line in lines] == [LARGE.id, UNKNOWN.id]
    for rank in large:
        assert rank is not None
        assert rank.wrong_elements == 0 < rank.checked_elements
        assert len(rank.seconds["isolated"]) > 3


@pytest.mark.parametrize("data", [b"{", b"[]", gzip.compress(b"{}"),
                                  gzip.compress(bytes(99))[:10] + b"\xff" * 30],
                         ids=["cut", "no record", "no record, packed", "damaged"])
def test_a_foreign_file_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "recording.json.gz"
    path.write_bytes(data)
    with pytest.raises(RecordError, match="recording\\.json\\.gz"):
        read_recording(path)
