from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from regress.measure.devices import GpuReading, NvmlDevices, open_devices


class FakeNvml:
    """As much of pynvml as answers; everything else is refused, as a virtual machine does."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0, 1, 0
    NVML_NVLINK_MAX_LINKS = 4

    class NVMLError(Exception):
        def __init__(self, text: str, value: int = 3) -> None:
            super().__init__(text)
            self.value = value

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.gone: dict[int, int] = {}
        """GPUs without a handle: index, and the number of the error that says so."""

    def __getattr__(self, call: str) -> Any:
        if not call.startswith("nvml"):
            raise AttributeError(call)

        def answer(*arguments: Any) -> Any:
            if call == "nvmlDeviceGetHandleByIndex":
                if arguments[0] in self.gone:
                    raise self.NVMLError("no handle", self.gone[arguments[0]])
                return f"gpu{arguments[0]}"
            if call not in self.answers:
                raise self.NVMLError(f"{call} is not supported")
            value = self.answers[call]
            return value(*arguments) if callable(value) else value
        return answer


WHOLE = {
    "nvmlDeviceGetCount": 2, "nvmlSystemGetDriverVersion": b"580.159", "nvmlSystemGetCudaDriverVersion_v2": 13000,
    "nvmlDeviceGetName": "NVIDIA H200", "nvmlDeviceGetUUID": "GPU-1", "nvmlDeviceGetNvLinkVersion": 6,
    "nvmlDeviceGetTopologyCommonAncestor": 50, "nvmlDeviceGetClockInfo": 1755, "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x4 | 0x40, "nvmlDeviceGetTemperature": 51,
    "nvmlDeviceGetPowerUsage": 350500, "nvmlDeviceGetEnforcedPowerLimit": 700000,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5, total=9),
    "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=9), SimpleNamespace(pid=4)],
    "nvmlDeviceGetTotalEccErrors": 0, "nvmlDeviceGetRemappedRows": (1, 2, 0, 1),
    "nvmlDeviceGetCurrPcieLinkGeneration": 1, "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16, "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetNvLinkState": lambda _, link: int(link != 3),
    "nvmlDeviceGetNvLinkErrorCounter": lambda _gpu, _link, counter: 2 if counter == 1 else 900,
    "nvmlDeviceGetComputeMode": 3, "nvmlDeviceGetPersistenceMode": 1, "nvmlDeviceGetMigMode": [0, 0]}


def test_a_gpu_that_tells_everything() -> None:
    devices = NvmlDevices(FakeNvml(**WHOLE))
    assert (devices.count, devices.driver, devices.cuda_version) == (2, "580.159", "13.0")
    assert (devices.name(0), devices.uuid(0), devices.nvlink_version(0), devices.links_between(0, 1)) == (
        "NVIDIA H200", "GPU-1", 6, "SYS")
    assert devices.read(0) == GpuReading(
        sm_clock=1755, sm_clock_max=1980, throttle=("software power cap", "hardware thermal slowdown"), temperature=51,
        power=350.5, power_limit=700.0, gpu_use=0.37, memory_used=5, memory_total=9, pids=(4, 9), ecc_uncorrected=0,
        remapped_rows=3, remap_pending=False, remap_failed=True, pcie_generation=1, pcie_generation_max=5,
        pcie_width=16, pcie_width_max=16, nvlink_active=3, nvlink_inactive=1, nvlink_errors=6,
        compute_mode="exclusive process", persistence=True, mig=False)


def test_a_gpu_that_tells_nothing_is_all_none() -> None:
    devices = NvmlDevices(FakeNvml())
    assert (devices.count, devices.driver, devices.cuda_version, devices.name(0)) == (0, None, None, None)
    assert (devices.nvlink_version(0), devices.links_between(0, 1)) == (None, None)
    assert devices.read(0) == GpuReading()


GPU_IS_LOST, NOT_FOUND, NO_PERMISSION, UNKNOWN = 15, 6, 4, 999


def refuse(number: int) -> Any:
    def answer(*_: Any) -> Any:
        raise FakeNvml.NVMLError("refused", number)
    return answer


def test_a_gpu_that_fell_off_the_bus_has_no_readings_and_is_known_as_lost() -> None:
    nvml = FakeNvml(**WHOLE)
    devices = NvmlDevices(nvml)
    assert devices.read(1).lost is None
    nvml.gone = {1: GPU_IS_LOST}
    assert devices.read(1) == devices.sample(1) == GpuReading(lost=True)
    assert (devices.name(1), devices.uuid(1), devices.nvlink_version(1)) == (None, None, None)
    assert (devices.links_between(0, 1), devices.links_between(1, 0)) == (None, None)
    assert devices.read(0).lost is None and devices.name(0) == "NVIDIA H200"
    assert NvmlDevices(nvml).read(1).lost is True, "lost before this gate began"


def test_a_gpu_that_is_lost_between_two_questions() -> None:
    reading = NvmlDevices(FakeNvml(**WHOLE | {"nvmlDeviceGetMemoryInfo": refuse(GPU_IS_LOST)})).read(0)
    assert (reading.lost, reading.memory_used, reading.sm_clock) == (True, None, 1755)


@pytest.mark.parametrize(("number", "lost"), [(NOT_FOUND, True), (UNKNOWN, True), (NO_PERMISSION, None)])
def test_a_gpu_that_cannot_be_had_is_lost_only_if_it_was_there(number: int, lost: bool | None) -> None:
    nvml = FakeNvml(**WHOLE)
    nvml.gone = {0: number}
    devices = NvmlDevices(nvml)
    assert devices.read(0) == GpuReading()
    nvml.gone = {}
    assert devices.read(0).lost is None
    nvml.gone = {0: number}
    assert devices.read(0) == GpuReading(lost=lost)


def test_an_older_driver_names_throttle_reasons_by_another_call() -> None:
    devices = NvmlDevices(FakeNvml(nvmlDeviceGetCurrentClocksThrottleReasons=0x8))
    assert devices.sample(0).throttle == ("hardware slowdown",)


def test_without_a_driver_or_the_package_there_are_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", module)
    refusing = FakeNvml()
    monkeypatch.setattr(module, "NVMLError", FakeNvml.NVMLError, raising=False)
    monkeypatch.setattr(module, "nvmlInit", refusing.nvmlInit, raising=False)
    assert open_devices() is None
    monkeypatch.setattr(module, "nvmlInit", lambda: None)
    assert open_devices() is not None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_devices() is None
