from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from regress.measure import health
from regress.measure.devices import GpuReading, NvmlDevices
from regress.measure.fitness import assess
from regress.measure.health import GpuSamples, HealthMonitor, cpu_facts, gpu_facts
from regress.measure.host import CpuCounters
from regress.record import Scalar
from tests.measure.fakes import WELL, FakeDevices
from tests.measure.test_devices import WHOLE, FakeNvml


def facts_of(*during: GpuReading, before: GpuReading = WELL, after: GpuReading = WELL) -> dict[str, Scalar]:
    samples = GpuSamples()
    for reading in during:
        samples.add(reading)
    return {f"gpu0.{name}": value for name, value in gpu_facts(before, samples, after).items()}


def test_a_well_gpu_has_nothing_against_it() -> None:
    facts = facts_of(WELL, replace(WELL, gpu_use=0.0, sm_clock=345, pcie_generation=1))
    assert assess(facts) == []
    assert facts["gpu0.samples"] == 2
    assert facts["gpu0.samples_under_load"] == 1
    assert facts["gpu0.sm_clock_under_load_mhz"] == 1980


def test_what_cannot_be_read_is_none_and_decides_nothing() -> None:
    facts = facts_of(GpuReading(), GpuReading(), before=GpuReading(), after=GpuReading())
    assert assess(facts) == []
    assert {value for name, value in facts.items() if "samples" not in name} == {None}
    assert assess({"cpu.steal_ratio": None, "cpu.busy_before_ratio": None}) == []


@pytest.mark.parametrize(("facts", "level", "text"), [
    (facts_of(WELL, after=replace(WELL, ecc_uncorrected=2)), "invalid", "2 uncorrectable memory errors"),
    (facts_of(WELL, after=replace(WELL, remap_failed=True)), "invalid", "could not be remapped"),
    (facts_of(WELL, after=GpuReading(lost=True)), "invalid", "lost: the driver says that it is gone"),
    (facts_of(WELL, GpuReading(lost=True)), "invalid", "lost: the driver says that it is gone"),
    (facts_of(before=GpuReading(lost=True), after=GpuReading(lost=True)), "invalid", "reboot the host"),
    (facts_of(WELL, after=replace(WELL, remap_pending=True)), "inconclusive", "waits to be remapped"),
    (facts_of(WELL, after=replace(WELL, remapped_rows=1)), "inconclusive", "1 memory rows were remapped"),
    (facts_of(replace(WELL, throttle=("hardware thermal slowdown",))), "invalid",
     "throttled (hardware thermal slowdown) in 100%"),
    (facts_of(*[WELL] * 9, replace(WELL, throttle=("hardware power brake",))), "inconclusive",
     "throttled (hardware power brake) in 10%"),
    (facts_of(replace(WELL, throttle=("software power cap",))), "warn", "its power limit of 700 W in 100%"),
    (facts_of(replace(WELL, sm_clock=1168)), "inconclusive", "SM clock 1168 MHz under load, 59% of the maximum 1980"),
    (facts_of(replace(WELL, sm_clock=1000, throttle=("application clock setting",))), "warn", "as it was set"),
    (facts_of(WELL, before=replace(WELL, pids=(7,))), "inconclusive", "1 other processes on the GPU before"),
    (facts_of(WELL, before=replace(WELL, memory_used=3 << 30)), "inconclusive", "3.0 GiB of memory in use before"),
    (facts_of(WELL, after=replace(WELL, nvlink_active=17, nvlink_inactive=1)), "inconclusive",
     "1 of 18 NVLinks are down"),
    (facts_of(WELL, after=replace(WELL, nvlink_errors=4)), "warn", "4 NVLink recoveries while measuring"),
    (facts_of(replace(WELL, pcie_width=8), before=replace(WELL, pcie_width=8), after=replace(WELL, pcie_width=8)),
     "inconclusive", "PCIe width 8 where 16 is possible"),
    (facts_of(WELL, before=replace(WELL, compute_mode="prohibited")), "invalid", "compute mode is prohibited"),
    ({**facts_of(replace(WELL, pids=(1, 2, 3))), "gpu0.processes_expected": 2}, "inconclusive",
     "up to 3 processes on the GPU while measuring, 2 of them expected"),
    ({"cpu.steal_ratio": 0.02}, "warn", "the hypervisor took 2.0% of the CPU time"),
    ({"cpu.steal_ratio": 0.2}, "inconclusive", "the hypervisor took 20.0%"),
    ({"cpu.throttled_ratio": 0.3}, "inconclusive", "CPU limit stopped it in 30.0% of the periods"),
    ({"cpu.busy_before_ratio": 0.7, "cpu.load_before_per_core": 9.0}, "warn", "70% of the CPU was busy"),
    ({"cpu.busy_before_ratio": 0.95, "cpu.load_before_per_core": 0.4}, "warn", "95% of the CPU was busy"),
    ({"cpu.busy_before_ratio": 0.95, "cpu.load_before_per_core": 2.0}, "inconclusive", "load 2.0 per core"),
    ({"cpu.busy_before_ratio": 1.0, "cpu.load_before_per_core": 0.2, "cpu.runnable_before_per_core": 4.0},
     "inconclusive", "4.0 tasks wanted each core"),
    ({"cpu.busy_before_ratio": 0.6, "cpu.runnable_before_per_core": 4.0}, "warn", "60% of the CPU was busy"),
])
def test_each_ailment_is_named_at_its_level(facts: dict[str, Scalar], level: str, text: str) -> None:
    (found,) = assess(facts)
    assert found[0] == level
    assert text in found[1]


def test_the_gravest_comes_first_and_the_gpu_is_named() -> None:
    facts = {"cpu.steal_ratio": 0.02, "gpu3.remap_failed": True, "gpu1.remap_pending": True}
    assert [level for level, _ in assess(facts)] == ["invalid", "inconclusive", "warn"]
    assert assess(facts)[0][1].startswith("gpu3: ")


def test_the_monitor_samples_while_launches_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SAMPLE_SECONDS", 0.005)
    devices = FakeDevices(2, readings=[WELL])
    with HealthMonitor(devices, (0, 1), processes_expected=1) as monitor:
        deadline = time.monotonic() + 5
        while devices.taken < 10 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert isinstance(monitor.facts["gpu0.samples"], int)
    assert monitor.facts["gpu0.samples"] >= 3
    assert monitor.facts["gpu1.sm_clock_under_load_mhz"] == 1980
    assert monitor.facts["gpu1.processes_expected"] == 1


def test_a_gpu_that_falls_off_the_bus_while_launches_run_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SAMPLE_SECONDS", 0.005)
    nvml = FakeNvml(**WHOLE)
    with HealthMonitor(NvmlDevices(nvml), (0, 1)) as monitor:
        nvml.gone = {1: 15}
        facts = monitor.snapshot()
        seen = facts["gpu0.samples"]
        wait_for(lambda: monitor.snapshot()["gpu0.samples"] != seen)
    assert [level for level, text in assess(facts) if text.startswith("gpu1: lost")] == ["invalid"]
    assert monitor.facts["gpu1.lost"] is True
    assert monitor.facts["gpu0.lost"] is None
    assert monitor.facts["gpu1.temperature_before_celsius"] == 51, "what was seen before is kept"


def test_a_sample_that_fails_is_told_and_the_watch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SAMPLE_SECONDS", 0.005)

    def broken(*_: object) -> GpuReading:
        raise KeyError("power")

    monkeypatch.setattr(FakeDevices, "sample", broken)
    with HealthMonitor(FakeDevices(1), (0,)) as monitor:
        wait_for(lambda: monitor.snapshot()["gpu0.sampling_error"] is not None)
        monkeypatch.setattr(FakeDevices, "sample", FakeDevices.read)
        wait_for(lambda: monitor.snapshot()["gpu0.samples"] != 0)
    assert ("warn", "gpu0: was not watched all the time while measuring (KeyError: 'power')") in assess(monitor.facts)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_without_gpus_the_host_is_watched() -> None:
    with HealthMonitor(None) as monitor:
        pass
    assert set(monitor.facts) == {"cpu.load_before_per_core", "cpu.runnable_before_per_core", "cpu.busy_before_ratio",
                                  "cpu.steal_ratio", "cpu.throttled_ratio"}


def test_cpu_ratios_are_shares_of_what_passed_meanwhile() -> None:
    facts = cpu_facts(CpuCounters(1000, 500, 10, 100, 5), CpuCounters(2000, 900, 60, 200, 30))
    assert facts == {"cpu.steal_ratio": 0.05, "cpu.throttled_ratio": 0.25}
    assert cpu_facts(CpuCounters(5, 1, 0), None) == {"cpu.steal_ratio": None, "cpu.throttled_ratio": None}
