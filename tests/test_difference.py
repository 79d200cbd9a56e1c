"""What `explain --against` says beyond metrics: structure, kernels, NCCL's choices, environment, time of a step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regress.cli import main
from regress.diagnose import Circumstances
from regress.difference import difference, difference_lines
from regress.explain import explain, render_text
from regress.record import Environment
from regress.trace.read import read_traces
from tests.trace.made import Export
from tests.trace.samples import sample


def _run(name: str) -> Circumstances:
    return Circumstances(read_traces([sample(name)]))


def test_smaller_buckets_are_seen_in_the_structure() -> None:
    found = difference(_run("nvlink/small_buckets"), _run("nvlink/good"))
    changed = {one.what: (one.before, one.now) for one in found.structure}
    assert changed["collectives_per_step"] == (4.0, 26.0)
    assert changed["AllReduce of 24.0MiB per step"] == (1.0, 0.0)
    assert changed["AllReduce of 1.0MiB per step"] == (0.0, 6.0)
    assert found.environment == ()
    assert found.decisions == ()
    assert found.cost_per_day is None


def test_a_copy_and_its_waits_are_seen_in_the_structure() -> None:
    found = difference(_run("mps/pageable"), _run("mps/good"))
    changed = {one.what: (one.before, one.now) for one in found.structure}
    assert changed["pageable_copy_bytes_per_step"] == (0.0, 67_125_312.0)  # 64 MiB and the batch
    assert changed["synchronising calls per step"] == (2.4, 4.4)


def test_buckets_of_almost_one_size_are_counted_together(tmp_path: Path) -> None:
    """Two a step, 24 bytes apart, are both 1.0MiB to the reader: one line, and none lost."""
    runs = []
    for name, sizes in (("one", (1 << 20,)), ("two", ((1 << 20) + 8, (1 << 20) + 32))):
        made = Export()
        for rank, pid, begin in made.steps(4, every=1_000_000, length=900_000):
            for number, size in enumerate(sizes):
                at = begin + number * 200_000
                made.all_reduce(pid, at, at + 100_000, size=size, device=rank)
        runs.append(Circumstances(read_traces([made.write(tmp_path / f"{name}.sqlite")])))
    changed = {one.what: (one.before, one.now) for one in difference(runs[1], runs[0]).structure}
    assert changed["AllReduce of 1.0MiB per step"] == (0.0, 2.0)
    assert changed["AllReduce of 1MiB per step"] == (1.0, 0.0)


def _stepped(kernels: dict[str, int]) -> Export:
    """Two ranks, four steps of these kernels (µs each) and an all-reduce of 100 µs."""
    made = Export()
    for rank, pid, begin in made.steps(4):
        at = begin
        for name, microseconds in kernels.items():
            made.kernel(pid, at, at + microseconds * 1000, name, device=rank)
            at += microseconds * 1000
        made.all_reduce(pid, at, at + 100_000, device=rank)
    return made


def test_kernels_that_came_went_or_slowed_are_named(tmp_path: Path) -> None:
    now, old = ({"gemm": 900, "copy_fp32": 300, "norm": 50}, {"gemm": 500, "norm": 50, "fused": 200})
    runs = [Circumstances(read_traces([_stepped(kernels).write(tmp_path / f"{name}.sqlite")]))
            for name, kernels in (("now", now), ("old", old))]
    found = difference(runs[0], runs[1])
    assert [(one.name, one.how) for one in found.kernels] == [
        ("gemm", "slower"), ("copy_fp32", "appeared"), ("fused", "vanished")]
    first = found.kernels[0]
    assert first.count == 1
    assert [first.seconds_before, first.seconds] == pytest.approx([500e-6, 900e-6])
    assert any(line.startswith("kernel appeared: copy_fp32: 0 → 1 a step") for line in difference_lines(found))


def test_environment_and_choices_are_compared_where_both_are_known() -> None:
    run = read_traces([sample("mps/micro")])
    old = Circumstances(run, environment=Environment({"gpu_model": "H200"}, {"nccl_version": "2.27.3"}),
                        decisions={"AllReduce 16MiB": "RING SIMPLE, 2 channels"})
    now = Circumstances(run, environment=Environment({"gpu_model": "H200"}, {"nccl_version": "2.28.9"}),
                        decisions={"AllReduce 16MiB": "RING SIMPLE, 1 channels"})
    found = difference(now, old)
    assert found.environment == ("nccl_version: 2.27.3 → 2.28.9",)
    assert found.decisions == ("AllReduce 16MiB: RING SIMPLE, 2 channels → RING SIMPLE, 1 channels",)
    assert difference(now, Circumstances(run)).environment == ()
    assert difference_lines(difference(old, old)) == []


LINE = ("node:{pid}:1 [0] NCCL INFO AllReduce: 16777216 Bytes -> Algo {algorithm} proto SIMPLE "
        "channel{{Lo..Hi}}={{0..23}}")


def _log(folder: Path, name: str, algorithm: str, setting: str = "") -> str:
    lines = ["node:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0", LINE.format(pid=1, algorithm=algorithm)]
    lines += [f"node:1:1 [0] NCCL INFO {setting}"] if setting else []
    (folder / name).write_text("\n".join(lines))
    return str(folder / name)


def test_the_command_takes_logs_and_a_price(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    now = _log(tmp_path, "now.log", "TREE", "NCCL_ALGO set by environment to TREE.")
    before = _log(tmp_path, "before.log", "RING")
    arguments = ["explain", str(sample("nvlink/small_buckets")), "--against", str(sample("nvlink/good")), "--log", now,
                 "--against-log", before, "--cost-per-gpu-hour", "2.5"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["difference"]["nccl"] == ["AllReduce 16MiB: RING SIMPLE, 24 channels → TREE SIMPLE, 24 channels"]
    assert found["difference"]["environment"] == ["NCCL_ALGO: unset → TREE"]
    assert found["difference"]["cost_per_day"] == pytest.approx(78.32, abs=0.01)
    step = found["difference"]["step"][0]
    assert sum(step["parts"].values()) == pytest.approx(step["change_seconds"])
    assert step["now"]["step_seconds"] - step["before"]["step_seconds"] == pytest.approx(step["change_seconds"])
    assert "algorithm_change" in {one["rule"] for one in found["findings"]}
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "rank 0: step +8.7 ms: +11.6 waiting for rank 1" in text
    assert "the same work costs +78.32 a day" in text
    assert "INFO step_change" not in text


def test_the_price_of_the_thresholds_file_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thresholds.yaml").write_text("schema: 1\ngate: {cost_per_gpu_hour: 5.0}\n")
    traces = str(sample("nvlink/small_buckets")), "--against", str(sample("nvlink/good"))
    assert main(["explain", *traces, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["difference"]["cost_per_day"] == pytest.approx(156.63, abs=0.01)


def test_consequences_are_indented_beneath_their_cause() -> None:
    lines = render_text(explain([sample("mps/pageable")])).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("CRITICAL pageable_copies"))
    assert lines[at + 1].startswith("  try: ")
    assert lines[at + 2].startswith("  leads to launch_gaps: ")
    assert not any(line.startswith("WARNING launch_gaps") for line in lines)


def test_a_log_that_is_not_there_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(sample("mps/good")), "--log", "/nonexistent.log"]) == 4
    assert "a log of NCCL or the output of a rank" in capsys.readouterr().err
