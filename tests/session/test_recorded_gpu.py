"""The CUDA path of the gate without a GPU: launches recorded on one H200 that two NCCL ranks shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regress.measure.devices import NvmlDevices
from regress.measure.launch import Launcher, LaunchResult
from regress.measure.replay import ReplayLauncher
from regress.outcomes import fold_launch
from regress.record import Launch, Run, Verdict
from regress.session import Gate, GateRequest, open_gate
from tests.measure.fakes import FakeDevices
from tests.measure.test_devices import WHOLE, FakeNvml

RECORDING = Path(__file__).parents[1] / "data" / "measure" / "nccl_1gpu_mps.json.gz"
THRESHOLDS = """schema: 1
devices: {cuda: {launches: 2}}
cases:
- {workload: allreduce, devices: [cuda], sizes: [4KiB], timing: graph}
- {workload: allreduce, devices: [cuda], sizes: [1MiB]}
- {workload: allgather, devices: [cuda], sizes: [1MiB]}
- {workload: ddp_step, devices: [cuda]}
"""


class Silent:
    def message(self, text: str) -> None: ...
    def case_started(self, text: str) -> None: ...
    def progress(self, text: str) -> None: ...


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Gate]:
    (tmp_path / "thresholds.yaml").write_text(THRESHOLDS)
    for module in ("regress.measure.ranks", "regress.session"):
        monkeypatch.setattr(f"{module}.open_devices", lambda: FakeDevices(1))
    monkeypatch.setattr("regress.session.host_lock_path", lambda: tmp_path / "lock")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def gate() -> Gate:
        made = open_gate(GateRequest(tmp_path, tmp_path / "thresholds.yaml", str(tmp_path / "history"), trace="none"))
        made.devices = FakeDevices(1)
        made.factory = lambda _: ReplayLauncher.from_files([RECORDING])
        return made

    return gate


def run_of(gate: Gate) -> Run:
    return gate.run([planned.case for planned in gate.plan], Silent()).run


def test_two_ranks_share_the_only_gpu_and_the_header_says_so(opened: Callable[[], Gate]) -> None:
    gate = opened()
    assert gate.ranks.shared_gpu
    assert (gate.ranks.backend, gate.ranks.world_size) == ("nccl", 2)
    assert "shared by the ranks" in gate.header()[0]
    assert [planned.unfit for planned in gate.plan] == [None] * 4


def test_how_the_gpu_was_shared_is_read_from_the_durations(opened: Callable[[], Gate]) -> None:
    assert run_of(opened()).environment.must_match["gpu_sharing"] == "mps"


def test_the_same_launches_again_are_no_change(opened: Callable[[], Gate]) -> None:
    first, second = run_of(opened()), run_of(opened())
    assert first.verdict is Verdict.NO_BASELINE
    assert second.environment.fingerprint == first.environment.fingerprint
    assert Verdict.REGRESSION not in second.verdicts.values()
    shifts = [finding for finding in second.findings if finding.detector == "shift"]
    assert {finding.change for finding in shifts} == {0.0}


def test_busbw_of_an_allgather_is_half_its_algbw_with_two_ranks(opened: Callable[[], Gate]) -> None:
    """(n-1)/n of algbw for allgather and 2(n-1)/n for allreduce: nccl-tests, doc/PERFORMANCE.md."""
    run = run_of(opened())
    for case_id, factor in (("allgather[1MiB-float32-2xcuda]", 0.5), ("allreduce[1MiB-float32-2xcuda]", 1.0)):
        algbw, busbw, seconds = (run.measured(case_id, name)[0].value for name in (
            "algbw_bytes_per_second", "busbw_bytes_per_second", f"{case_id.partition('[')[0]}_seconds"))
        assert busbw == pytest.approx(factor * algbw)
        assert algbw == pytest.approx(2**20 / seconds)


def test_a_time_sliced_gpu_holds_no_regression_against_the_code(
        opened: Callable[[], Gate], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every duration as long as a turn or several: another environment, and nothing to be judged by."""
    from regress import measuring

    run_of(opened())

    def sliced(result: object, metrics: object, session: int) -> Launch:
        launch = fold_launch(result, metrics, session)  # type: ignore[arg-type]
        slow = tuple(type(o)(o.case, tuple(type(m)(m.metric, m.unit, m.better, 0.0045, (0.0045,) * 12)
                                           if m.metric.endswith("_seconds") else m for m in o.measurements))
                     for o in launch.outcomes)
        return type(launch)(launch.index, launch.role, launch.seed, launch.started_at, launch.wall_seconds,
                            launch.rank_wall_seconds, slow, launch.session)

    monkeypatch.setattr(measuring, "fold_launch", sliced)
    run = run_of(opened())
    assert run.environment.must_match["gpu_sharing"] == "time-sliced"
    assert Verdict.REGRESSION not in run.verdicts.values()
    again = run_of(opened())
    judged = {finding.verdict for finding in again.findings if finding.detector == "shift"}
    assert judged == {Verdict.INCONCLUSIVE}, "a turn lasts as long as it did, and that is no pass"
    assert any("time-slices between the ranks" in warning for warning in again.warnings)


def test_a_gpu_that_falls_off_the_bus_is_no_regression_and_costs_no_measurement(
        opened: Callable[[], Gate], monkeypatch: pytest.MonkeyPatch) -> None:
    """The readings before it stand, so that the run is compared with earlier ones of this machine, and stored."""
    from regress import measuring

    earlier = [run_of(opened()) for _ in range(3)][-1]

    def slower(result: object, metrics: object, session: int) -> Launch:
        launch = fold_launch(result, metrics, session)  # type: ignore[arg-type]
        return replace(launch, outcomes=tuple(
            replace(outcome, measurements=tuple(
                replace(m, value=1.6 * m.value, samples=tuple(1.6 * sample for sample in m.samples))
                if m.metric.endswith("_seconds") else m for m in outcome.measurements))
            for outcome in launch.outcomes))

    monkeypatch.setattr(measuring, "fold_launch", slower)
    gate = opened()
    assert gate.environment.must_match["gpu_model"] == "NVIDIA H200"
    nvml = FakeNvml(**WHOLE | {"nvmlDeviceGetCount": 1})
    gate.devices = NvmlDevices(nvml)
    gate.factory = lambda _: Falling(ReplayLauncher.from_files([RECORDING]), nvml)
    outcome = gate.run([planned.case for planned in gate.plan], Silent())
    assert (outcome.exit_status, outcome.run.verdict) == (10, Verdict.INVALID)
    assert outcome.run.environment.fingerprint == earlier.environment.fingerprint
    assert any("gpu0: lost: the driver says that it is gone" in finding.reason for finding in outcome.run.findings)
    assert any("gpu0: lost" in text for text in outcome.result.warnings)
    assert "run" in outcome.run.artifacts


class Falling:
    """Plays launches; the GPU falls off the bus during the last of the screening."""

    def __init__(self, player: Launcher, nvml: FakeNvml) -> None:
        self._player, self._nvml = player, nvml

    def launch(self, *arguments: Any, index: int, **settings: Any) -> LaunchResult:
        if index == 1:
            self._nvml.gone = {0: 15}
        return self._player.launch(*arguments, index=index, **settings)


def test_the_recording_is_small_and_names_its_machine() -> None:
    from regress.measure.replay import read_recording

    recording = read_recording(RECORDING)
    assert RECORDING.stat().st_size < 20_000
    assert "H200" in recording.about
    assert all(isinstance(launch.seed, int) for launch in recording.launches)
