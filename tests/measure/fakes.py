"""GPUs that exist only in tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from regress.measure.devices import GpuReading

WELL = GpuReading(
    sm_clock=1980, sm_clock_max=1980, throttle=(), temperature=40, power=300.0, power_limit=700.0, gpu_use=1.0,
    memory_used=1 << 29, memory_total=141 << 30, pids=(), ecc_uncorrected=0, remapped_rows=0, remap_pending=False,
    remap_failed=False, pcie_generation=5, pcie_generation_max=5, pcie_width=16, pcie_width_max=16, nvlink_active=18,
    nvlink_inactive=0, nvlink_errors=0, compute_mode="default", persistence=True, mig=False)


@dataclass(slots=True)
class FakeDevices:
    """Equal GPUs. readings: what `read` and `sample` give, one after another, the last for ever."""

    count: int = 1
    driver: str | None = "580.1"
    cuda_version: str | None = "13.0"
    model: str = "NVIDIA H200"
    nvlink: int | None = 6
    path: str | None = "SYS"
    readings: Sequence[GpuReading] = (WELL,)
    taken: int = field(default=0, init=False)

    def name(self, index: int) -> str | None:
        return self.model if index < self.count else None

    def uuid(self, index: int) -> str | None:
        return f"GPU-{index}a5e"

    def nvlink_version(self, index: int) -> int | None:
        return self.nvlink if index < self.count else None

    def links_between(self, index: int, other: int) -> str | None:
        return self.path if index != other else "internal"

    def read(self, index: int) -> GpuReading:
        assert index < self.count
        reading = self.readings[min(self.taken, len(self.readings) - 1)]
        self.taken += 1
        return reading

    sample = read
