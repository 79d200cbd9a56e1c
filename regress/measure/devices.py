"""The GPUs as NVML shows them, behind a small protocol, so that tests and machines without GPUs need no NVML.

Every reading is None where the driver, a virtual machine or a partition cannot or may not tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment. Clocks in MHz, temperature in °C, power in W, memory in bytes.

    throttle: names of the active clock event reasons. nvlink_active, nvlink_inactive: links up and down.
    nvlink_errors: recoveries counted on all links since the driver loaded.
    pids: compute processes on the GPU as the driver numbers them; empty inside most containers.
    """

    sm_clock: int | None = None
    sm_clock_max: int | None = None
    throttle: tuple[str, ...] | None = None
    temperature: int | None = None
    power: float | None = None
    power_limit: float | None = None
    gpu_use: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    pids: tuple[int, ...] | None = None
    ecc_uncorrected: int | None = None
    remapped_rows: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlink_active: int | None = None
    nvlink_inactive: int | None = None
    nvlink_errors: int | None = None
    compute_mode: str | None = None
    persistence: bool | None = None
    mig: bool | None = None


class Devices(Protocol):
    """The GPUs of this machine, by NVML index."""

    @property
    def count(self) -> int:
        """GPUs the driver lists."""
        ...

    @property
    def driver(self) -> str | None:
        """Driver version."""
        ...

    @property
    def cuda_version(self) -> str | None:
        """Newest CUDA this driver supports, "13.0"."""
        ...

    def name(self, index: int) -> str | None:
        """Model, "NVIDIA H200"."""
        ...

    def uuid(self, index: int) -> str | None:
        """Identity, "GPU-" and hexadecimal digits."""
        ...

    def nvlink_version(self, index: int) -> int | None:
        """NVML's NVLink version number of the first link; None without NVLink."""
        ...

    def links_between(self, index: int, other: int) -> str | None:
        """The nearest common ancestor of two GPUs on PCIe, in the words of `nvidia-smi topo -m`."""
        ...

    def read(self, index: int) -> GpuReading:
        """Everything, now."""
        ...

    def sample(self, index: int) -> GpuReading:
        """What changes from moment to moment, now; the rest None. Cheap enough for ten calls a second."""
        ...


_THROTTLE = {
    0x1: "gpu idle", 0x2: "application clock setting", 0x4: "software power cap", 0x8: "hardware slowdown",
    0x10: "sync boost", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
    0x80: "hardware power brake", 0x100: "display clock setting"}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (NVML API reference, "Clocks Event Reasons")."""

_NVLINK_RECOVERY = 1
"""nvmlNvLinkErrorCounter_t: a link that had to be trained again. Replays and CRC errors are left alone: all counters
together grew by 4,200 in 88 s of collectives on a healthy pair of H200s, at full bandwidth."""

_COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
_TOPOLOGY = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t in the words of `nvidia-smi topo -m`."""


@dataclass(frozen=True, slots=True)
class NvmlDevices:
    """Devices through nvidia-ml-py. nvml: the imported and initialised module `pynvml`."""

    nvml: Any

    def _ask(self, call: str, *arguments: Any) -> Any:
        """The answer of an NVML call, None where this driver or device refuses it or lacks it."""
        function: Callable[..., Any] | None = getattr(self.nvml, call, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self.nvml.NVMLError:
            return None

    def _handle(self, index: int) -> Any:
        return self.nvml.nvmlDeviceGetHandleByIndex(index)

    @property
    def count(self) -> int:
        """GPUs the driver lists."""
        return int(self._ask("nvmlDeviceGetCount") or 0)

    @property
    def driver(self) -> str | None:
        """Driver version."""
        return _text(self._ask("nvmlSystemGetDriverVersion"))

    @property
    def cuda_version(self) -> str | None:
        """Newest CUDA this driver supports."""
        number = self._ask("nvmlSystemGetCudaDriverVersion_v2")
        return None if number is None else f"{number // 1000}.{number % 1000 // 10}"

    def name(self, index: int) -> str | None:
        """Model."""
        return _text(self._ask("nvmlDeviceGetName", self._handle(index)))

    def uuid(self, index: int) -> str | None:
        """Identity, "GPU-" and hexadecimal digits."""
        return _text(self._ask("nvmlDeviceGetUUID", self._handle(index)))

    def nvlink_version(self, index: int) -> int | None:
        """NVML's version number of the first link."""
        version = self._ask("nvmlDeviceGetNvLinkVersion", self._handle(index), 0)
        return None if version is None else int(version)

    def links_between(self, index: int, other: int) -> str | None:
        """Nearest common PCIe ancestor, as `nvidia-smi topo -m` names it."""
        level = self._ask("nvmlDeviceGetTopologyCommonAncestor", self._handle(index), self._handle(other))
        return None if level is None else _TOPOLOGY.get(int(level))

    def sample(self, index: int) -> GpuReading:
        """What changes from moment to moment."""
        handle, nvml, ask = self._handle(index), self.nvml, self._ask
        memory, use = ask("nvmlDeviceGetMemoryInfo", handle), ask("nvmlDeviceGetUtilizationRates", handle)
        return GpuReading(
            sm_clock=ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            throttle=self._throttle(handle),
            temperature=ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            power=_watts(ask("nvmlDeviceGetPowerUsage", handle)),
            gpu_use=None if use is None else use.gpu / 100,
            memory_used=None if memory is None else int(memory.used),
            memory_total=None if memory is None else int(memory.total),
            pids=self._processes(handle),
            pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth", handle))

    def read(self, index: int) -> GpuReading:
        """Everything."""
        handle, nvml, ask = self._handle(index), self.nvml, self._ask
        remapped, mig = ask("nvmlDeviceGetRemappedRows", handle), ask("nvmlDeviceGetMigMode", handle)
        mode, persistence = ask("nvmlDeviceGetComputeMode", handle), ask("nvmlDeviceGetPersistenceMode", handle)
        active, inactive, errors = self._nvlinks(handle)
        return replace(
            self.sample(index),
            sm_clock_max=ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
            power_limit=_watts(ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
            ecc_uncorrected=ask("nvmlDeviceGetTotalEccErrors", handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                                nvml.NVML_VOLATILE_ECC),
            remapped_rows=None if remapped is None else int(remapped[0]) + int(remapped[1]),
            remap_pending=None if remapped is None else bool(remapped[2]),
            remap_failed=None if remapped is None else bool(remapped[3]),
            pcie_generation_max=ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            nvlink_active=active, nvlink_inactive=inactive, nvlink_errors=errors,
            compute_mode=_COMPUTE_MODES[mode] if mode is not None and 0 <= mode < len(_COMPUTE_MODES) else None,
            persistence=None if persistence is None else bool(persistence),
            mig=None if mig is None else bool(mig[0]))

    def _throttle(self, handle: Any) -> tuple[str, ...] | None:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return None if bits is None else tuple(words for bit, words in _THROTTLE.items() if bits & bit)

    def _processes(self, handle: Any) -> tuple[int, ...] | None:
        found = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        return None if found is None else tuple(sorted(int(process.pid) for process in found))

    def _nvlinks(self, handle: Any) -> tuple[int | None, int | None, int | None]:
        """Links up, links down, and errors counted on them; all None for a GPU without NVLink."""
        states = [self._ask("nvmlDeviceGetNvLinkState", handle, link)
                  for link in range(getattr(self.nvml, "NVML_NVLINK_MAX_LINKS", 18))]
        known = [(link, bool(state)) for link, state in enumerate(states) if state is not None]
        if not known:
            return None, None, None
        counters = [self._ask("nvmlDeviceGetNvLinkErrorCounter", handle, link, _NVLINK_RECOVERY)
                    for link, up in known if up]
        counted = [int(value) for value in counters if value is not None]
        up = sum(state for _, state in known)
        return up, len(known) - up, sum(counted) if counted else None


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode() if isinstance(value, bytes) else str(value)


def _watts(milliwatts: Any) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def open_devices() -> Devices | None:
    """The GPUs through NVML; None without nvidia-ml-py, without a driver, or where it refuses."""
    try:
        import pynvml
    except ImportError:
        return None
    module: ModuleType = pynvml
    try:
        module.nvmlInit()
    except module.NVMLError:
        return None
    return NvmlDevices(module)
