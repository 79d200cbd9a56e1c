"""The GPUs as NVML shows them, behind a small protocol, so that tests and machines without GPUs need no NVML.

Every reading is None where the driver, a virtual machine or a partition cannot or may not tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment. Clocks in MHz, temperature in °C, power in W, memory in bytes.

    throttle: names of the active clock event reasons. nvlink_active, nvlink_inactive: links up and down.
    nvlink_errors: recoveries counted on all links since the driver loaded.
    pids: compute processes on the GPU as the driver numbers them; empty inside most containers.
    lost: True where NVML says that the GPU is gone (it fell off the bus), else None.
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
    lost: bool | None = None


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


_IS_LOST = 15
_IS_GONE = (6, 999)
"""nvmlReturn_t (nvml.h): GPU_IS_LOST; NOT_FOUND and UNKNOWN, with which NVML refuses the handle of a GPU that fell off
the bus ("Unable to determine the device handle for GPU …: Unknown Error") and also of one that it never could open."""


@dataclass(slots=True)
class _Gpu:
    """One GPU for as long as one reading takes. handle: None where it cannot be had; then nothing is answered.

    lost: NVML said that the GPU is gone, when it was asked for the handle or in any answer since.
    """

    nvml: Any
    handle: Any
    lost: bool

    def ask(self, call: str, *arguments: Any) -> Any:
        """The answer of an NVML call about this GPU, None where this driver or device refuses it or lacks it."""
        if self.handle is None:
            return None
        answer, error = _answer(self.nvml, call, self.handle, *arguments)
        self.lost = self.lost or error == _IS_LOST
        return answer

    def throttle(self) -> tuple[str, ...] | None:
        """Names of the active clock event reasons."""
        bits = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else tuple(words for bit, words in _THROTTLE.items() if bits & bit)

    def processes(self) -> tuple[int, ...] | None:
        """Compute processes."""
        found = self.ask("nvmlDeviceGetComputeRunningProcesses")
        return None if found is None else tuple(sorted(int(process.pid) for process in found))

    def nvlinks(self) -> tuple[int | None, int | None, int | None]:
        """Links up, links down, and errors counted on them; all None for a GPU without NVLink."""
        states = [self.ask("nvmlDeviceGetNvLinkState", link)
                  for link in range(getattr(self.nvml, "NVML_NVLINK_MAX_LINKS", 18))]
        known = [(link, bool(state)) for link, state in enumerate(states) if state is not None]
        if not known:
            return None, None, None
        counters = [self.ask("nvmlDeviceGetNvLinkErrorCounter", link, _NVLINK_RECOVERY) for link, up in known if up]
        counted = [int(value) for value in counters if value is not None]
        up = sum(state for _, state in known)
        return up, len(known) - up, sum(counted) if counted else None

    def sample(self) -> GpuReading:
        """What changes from moment to moment."""
        ask, nvml = self.ask, self.nvml
        memory, use = ask("nvmlDeviceGetMemoryInfo"), ask("nvmlDeviceGetUtilizationRates")
        reading = GpuReading(
            sm_clock=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            throttle=self.throttle(),
            temperature=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            power=_watts(ask("nvmlDeviceGetPowerUsage")),
            gpu_use=None if use is None else use.gpu / 100,
            memory_used=None if memory is None else int(memory.used),
            memory_total=None if memory is None else int(memory.total),
            pids=self.processes(),
            pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"))
        return replace(reading, lost=self.lost or None)

    def read(self) -> GpuReading:
        """Everything."""
        ask, nvml = self.ask, self.nvml
        remapped, mig = ask("nvmlDeviceGetRemappedRows"), ask("nvmlDeviceGetMigMode")
        mode, persistence = ask("nvmlDeviceGetComputeMode"), ask("nvmlDeviceGetPersistenceMode")
        active, inactive, errors = self.nvlinks()
        reading = replace(
            self.sample(),
            sm_clock_max=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            power_limit=_watts(ask("nvmlDeviceGetEnforcedPowerLimit")),
            ecc_uncorrected=ask("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                                nvml.NVML_VOLATILE_ECC),
            remapped_rows=None if remapped is None else int(remapped[0]) + int(remapped[1]),
            remap_pending=None if remapped is None else bool(remapped[2]),
            remap_failed=None if remapped is None else bool(remapped[3]),
            pcie_generation_max=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
            nvlink_active=active, nvlink_inactive=inactive, nvlink_errors=errors,
            compute_mode=_COMPUTE_MODES[mode] if mode is not None and 0 <= mode < len(_COMPUTE_MODES) else None,
            persistence=None if persistence is None else bool(persistence),
            mig=None if mig is None else bool(mig[0]))
        return replace(reading, lost=self.lost or None)


@dataclass(frozen=True, slots=True)
class NvmlDevices:
    """Devices through nvidia-ml-py. nvml: the imported and initialised module `pynvml`."""

    nvml: Any
    _opened: set[int] = field(default_factory=set, init=False, compare=False)

    def _ask(self, call: str, *arguments: Any) -> Any:
        return _answer(self.nvml, call, *arguments)[0]

    def _gpu(self, index: int) -> _Gpu:
        """That GPU; a GPU that was there before and has no handle any more is lost."""
        handle, error = _answer(self.nvml, "nvmlDeviceGetHandleByIndex", index)
        if handle is not None:
            self._opened.add(index)
        return _Gpu(self.nvml, handle, error == _IS_LOST or (error in _IS_GONE and index in self._opened))

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
        return _text(self._gpu(index).ask("nvmlDeviceGetName"))

    def uuid(self, index: int) -> str | None:
        """Identity, "GPU-" and hexadecimal digits."""
        return _text(self._gpu(index).ask("nvmlDeviceGetUUID"))

    def nvlink_version(self, index: int) -> int | None:
        """NVML's version number of the first link."""
        version = self._gpu(index).ask("nvmlDeviceGetNvLinkVersion", 0)
        return None if version is None else int(version)

    def links_between(self, index: int, other: int) -> str | None:
        """Nearest common PCIe ancestor, as `nvidia-smi topo -m` names it."""
        neighbour = self._gpu(other).handle
        level = None if neighbour is None else self._gpu(index).ask("nvmlDeviceGetTopologyCommonAncestor", neighbour)
        return None if level is None else _TOPOLOGY.get(int(level))

    def sample(self, index: int) -> GpuReading:
        """What changes from moment to moment."""
        return self._gpu(index).sample()

    def read(self, index: int) -> GpuReading:
        """Everything."""
        return self._gpu(index).read()


def _answer(nvml: Any, call: str, *arguments: Any) -> tuple[Any, int | None]:
    """The answer of an NVML call, and NVML's number of the error where there is none."""
    function: Callable[..., Any] | None = getattr(nvml, call, None)
    if function is None:
        return None, None
    try:
        return function(*arguments), None
    except nvml.NVMLError as error:
        return None, getattr(error, "value", None)


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
