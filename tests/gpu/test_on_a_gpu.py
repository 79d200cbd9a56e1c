"""What only hardware shows. Needs one NVIDIA GPU, a CUDA build of torch, and for the traced launch an nsys.

Run with `pytest tests/gpu -m gpu`; everywhere else these skip and say what is missing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from regress.measure.devices import open_devices
from regress.measure.launch import LaunchResult
from regress.measure.mps import own_mps
from regress.measure.ranks import RankPlan, plan_ranks
from regress.measure.sharing import GpuSharing, sharing_from_durations
from regress.measure.torchrun import TorchrunLauncher
from regress.outcomes import incorrectness
from regress.record import Case, LaunchSpec, TimingMode
from regress.trace.nsys import find

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not (devices := open_devices()) or devices.count == 0,
                                                  reason="needs an NVIDIA GPU that NVML lists")]

SIZES = {TimingMode.GRAPH: 4096, TimingMode.PIPELINED: 4096, TimingMode.ISOLATED: 1 << 20}


@pytest.fixture(scope="module")
def plan() -> RankPlan:
    return plan_ranks("cuda")


@pytest.fixture(scope="module")
def launched(plan: RankPlan, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchResult]:
    """One launch of both collectives in every timing mode and a step, on all GPUs (or two ranks on the only one)."""
    cases = [Case(workload, "float32", plan.world_size, "cuda", mode, size)
             for workload in ("allreduce", "allgather") for mode, size in SIZES.items()]
    cases.append(Case("ddp_step", "float32", plan.world_size, "cuda", TimingMode.STEP))
    folder = tmp_path_factory.mktemp("launch")
    with TorchrunLauncher(plan.world_size, scratch=folder) as launcher, own_mps(mark=launcher.mark) as service:
        spec = LaunchSpec(tuple(cases), 1, "nccl", str(folder / "out"), 0.05, shared_gpu=plan.shared_gpu,
                          multi_rank_gpu=plan.multi_rank_gpu)
        yield launcher.launch(spec, index=0, role="head", deadline_seconds=180, case_deadline_seconds=60,
                              environment=dict(service.environment))


def test_every_collective_is_right_in_every_timing_mode(launched: LaunchResult) -> None:
    assert launched.error is None
    found = {case.id: incorrectness(case, results)
             for case, results in zip(launched.cases, launched.results, strict=True)}
    assert found == dict.fromkeys(found)


def test_a_graph_takes_no_longer_than_eager_calls_back_to_back(launched: LaunchResult, plan: RankPlan) -> None:
    """A graph has no launch path in it; the margin is for a shared machine.

    Between ranks that share a GPU messages go through sockets, whose proxy a graph has to call by host nodes: 51 µs
    there against 46 back to back (allreduce of 4 KiB, mean of 16 launches on an H200).
    """
    margin = 2.0 if plan.shared_gpu else 1.2
    for workload in ("allreduce", "allgather"):
        means = {case.timing: min(min(result.seconds[case.timing.value]) for result in results if result is not None)
                 for case, results in zip(launched.cases, launched.results, strict=True) if case.workload == workload}
        assert means[TimingMode.GRAPH] <= margin * means[TimingMode.PIPELINED]


def test_two_ranks_on_one_gpu_run_side_by_side_under_the_service(launched: LaunchResult, plan: RankPlan) -> None:
    if not plan.shared_gpu:
        pytest.skip("needs a machine with exactly one GPU")
    seconds = {case.message_size_bytes: [max(pair) for pair in zip(
        *(result.seconds[case.timing.value] for result in results if result is not None), strict=True)]
        for case, results in zip(launched.cases, launched.results, strict=True) if case.message_size_bytes}
    assert sharing_from_durations({size: values for size, values in seconds.items() if size}) is GpuSharing.MPS


def test_the_gate_with_a_traced_launch(tmp_path: Path) -> None:
    """First run: no baseline, status 0, a trace with every rank in it and the ratios of the step."""
    nsys = find()
    if nsys is None or nsys.importer.obstacle:
        pytest.skip(f"needs an nsys that can write reports: {nsys.importer.obstacle if nsys else 'none was found'}")
    (tmp_path / "thresholds.yaml").write_text("schema: 1\ndevices: {cuda: {launches: 1, case_duration: 100ms}}\n"
                                              "cases: [{workload: ddp_step, devices: [cuda]}]\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "--comm-regress", "--comm-regress-trace", "nsys",
                           "--comm-regress-json", "result.json", "-p", "no:cacheprovider"], cwd=tmp_path, text=True,
                          capture_output=True, timeout=280, check=False, env={**os.environ, "CI": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = json.loads((tmp_path / "result.json").read_text())["cases"]
    measured = {row["metric"]: row for row in (*case["metrics"], *case["measured"])}
    assert measured["collectives_per_step"]["now"] > 0
    assert 0 < measured["gpu_compute_ratio"]["now"] < 1
    assert measured["transfer_seconds"]["now"] > 0
    assert case["verdict"] == "no-baseline"


def test_gpu_events_agree_with_the_hosts_clock(tmp_path: Path) -> None:
    """A known piece of work, timed as an isolated call is, and by the host around it with a synchronise."""
    import torch

    from benchmarks import clock
    from benchmarks.operation import RankContext

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        alone = RankContext(0, 0, 1, torch.device("cuda", 0), 0, torch.distributed.new_group(backend="gloo"))
        torch.ones(1, device="cuda")

        def work() -> None:
            torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]  # some 10 ms

        clock.isolated(alone, work, 3)
        by_events = statistics.median(clock.isolated(alone, work, 10))
        by_host = statistics.median(clock.pipelined(alone, work, 5, 4))
    finally:
        torch.distributed.destroy_process_group()
    assert by_events > 1e-3
    assert by_host == pytest.approx(by_events, rel=0.02)
