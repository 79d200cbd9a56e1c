"""The state of GPUs and host before, during and after the launches: facts for the record.

A thread of the gate's own process reads NVML at 10 Hz; rank processes are left alone. `regress.measure.fitness`
says what the facts amount to.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from regress.measure.contention import Contention
from regress.measure.devices import Devices, GpuReading
from regress.measure.host import CpuCounters, allowed_cores, cpu_counters, load_average, runnable_per_core
from regress.record import Scalar

SAMPLE_SECONDS = 0.1
LOADED_USE = 0.5
"""A sample counts as under load when NVML says that kernels ran in at least this share of its window."""
_LOOK_SECONDS = 0.3
_LOOKS = 7
_NumberT = TypeVar("_NumberT", int, float)


@dataclass(slots=True)
class GpuSamples:
    """What the thread saw of one GPU while launches ran. error: why a sample failed, the last that did."""

    clocks_under_load: list[int] = field(default_factory=list)
    throttled: dict[str, int] = field(default_factory=dict)
    under_load: int = 0
    count: int = 0
    temperature: int | None = None
    power: float | None = None
    memory_used: int | None = None
    processes: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    lost: bool | None = None
    error: str | None = None

    def add(self, now: GpuReading) -> None:
        """Folds one more reading in."""
        self.count += 1
        self.lost = self.lost or now.lost
        self.temperature = _larger(self.temperature, now.temperature)
        self.power = _larger(self.power, now.power)
        self.memory_used = _larger(self.memory_used, now.memory_used)
        self.processes = _larger(self.processes, None if now.pids is None else len(now.pids))
        # A link trains down when idle to save power: the best that was seen is what it can do.
        self.pcie_generation = _larger(self.pcie_generation, now.pcie_generation)
        self.pcie_width = _larger(self.pcie_width, now.pcie_width)
        if now.gpu_use is None or now.gpu_use < LOADED_USE:
            return
        self.under_load += 1
        if now.sm_clock is not None:
            self.clocks_under_load.append(now.sm_clock)
        for reason in now.throttle or ():
            self.throttled[reason] = self.throttled.get(reason, 0) + 1


def _larger(one: _NumberT | None, other: _NumberT | None) -> _NumberT | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


@dataclass(slots=True)
class HealthMonitor:
    """Watches the ranks' GPUs and the host from `with` to its end; then `facts` holds what was seen.

    gpus: NVML indices. processes_expected: on each GPU, ranks and the multi-process server; None where unknown.
    contention: what others took of the CPU while launches ran, which are made in `with monitor.contention.launch()`.
    Facts are named "gpu0.sm_clock_max_mhz", "cpu.steal_ratio"; what cannot be read is None.
    """

    devices: Devices | None
    gpus: Sequence[int] = ()
    processes_expected: int | None = None
    facts: dict[str, Scalar] = field(default_factory=dict, init=False)
    contention: Contention = field(default_factory=Contention, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _folding: threading.Lock = field(default_factory=threading.Lock, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _samples: dict[int, GpuSamples] = field(default_factory=dict, init=False)
    _before: dict[int, GpuReading] = field(default_factory=dict, init=False)
    _cpu_before: CpuCounters | None = field(default=None, init=False)

    def __enter__(self) -> HealthMonitor:
        """Reads the state before anything of ours runs, which takes a third of a second, and starts the thread."""
        self.facts.update(host_before())
        self._cpu_before = cpu_counters()
        if self.devices is not None and self.gpus:
            self._before = {gpu: self.devices.read(gpu) for gpu in self.gpus}
            self._samples = {gpu: GpuSamples() for gpu in self.gpus}
            self._thread = threading.Thread(target=self._watch, args=(self.devices,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.facts.update(self.snapshot())

    def snapshot(self) -> dict[str, Scalar]:
        """The facts up to now, for a judgement while launches are still being made."""
        facts = {**self.facts, **cpu_facts(self._cpu_before, cpu_counters(), self.contention)}
        if self.devices is not None:
            for position, gpu in enumerate(self._samples):
                after = self.devices.read(gpu)
                with self._folding:
                    seen = gpu_facts(self._before[gpu], self._samples[gpu], after)
                seen["processes_expected"] = self.processes_expected
                facts.update({f"gpu{position}.{name}": value for name, value in seen.items()})
        return facts

    def _watch(self, devices: Devices) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            for gpu, samples in self._samples.items():
                try:
                    reading = devices.sample(gpu)
                except Exception as error:  # whatever it is: a thread that dies leaves figures nobody watched over
                    samples.error = f"{type(error).__name__}: {error}"
                    continue
                with self._folding:
                    samples.add(reading)


def gpu_facts(before: GpuReading, during: GpuSamples, after: GpuReading) -> dict[str, Scalar]:
    """The facts of one GPU. Ratios are over the samples under load; `..._new` are counts that grew meanwhile."""
    clocks = during.clocks_under_load
    facts: dict[str, Scalar] = {
        "samples": during.count, "samples_under_load": during.under_load, "sampling_error": during.error,
        "lost": before.lost or during.lost or after.lost,
        "sm_clock_max_mhz": before.sm_clock_max,
        "sm_clock_under_load_mhz": statistics.median(clocks) if clocks else None,
        "sm_clock_under_load_min_mhz": min(clocks, default=None),
        "temperature_before_celsius": before.temperature, "temperature_max_celsius": during.temperature,
        "power_max_watts": during.power, "power_limit_watts": before.power_limit,
        "memory_used_before_bytes": before.memory_used, "memory_used_max_bytes": during.memory_used,
        "memory_total_bytes": before.memory_total,
        "processes_before": None if before.pids is None else len(before.pids), "processes_max": during.processes,
        "ecc_uncorrected": after.ecc_uncorrected,
        "ecc_uncorrected_new": _growth(before.ecc_uncorrected, after.ecc_uncorrected),
        "remapped_rows": after.remapped_rows, "remapped_rows_new": _growth(before.remapped_rows, after.remapped_rows),
        "remap_pending": after.remap_pending, "remap_failed": after.remap_failed,
        "pcie_generation": _larger(_larger(before.pcie_generation, during.pcie_generation), after.pcie_generation),
        "pcie_generation_max": before.pcie_generation_max,
        "pcie_width": _larger(_larger(before.pcie_width, during.pcie_width), after.pcie_width),
        "pcie_width_max": before.pcie_width_max,
        "nvlink_active": after.nvlink_active, "nvlink_inactive": after.nvlink_inactive,
        "nvlink_errors_new": _growth(before.nvlink_errors, after.nvlink_errors),
        "compute_mode": before.compute_mode, "persistence": before.persistence, "mig": before.mig}
    for reason, count in sorted(during.throttled.items()):
        facts[f"throttle_ratio.{reason}"] = count / during.under_load
    return facts


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def host_before(look_seconds: float = _LOOK_SECONDS) -> dict[str, Scalar]:
    """How busy the host is before the launches. busy_before_ratio: share of the cores' time in a short look.

    The load average alone would blame this gate for the one that ran a minute ago, and would not see the job that
    began a few seconds ago; runnable_before_per_core is the median over the look, and does.
    """
    first = cpu_counters()
    queued: list[float] = []
    for _ in range(_LOOKS if first is not None else 0):
        time.sleep(look_seconds / _LOOKS)
        now = runnable_per_core()
        queued += [now] if now is not None else []
    load = load_average()
    return {"cpu.load_before_per_core": None if load is None else load / allowed_cores(),
            "cpu.runnable_before_per_core": statistics.median(queued) if queued else None,
            "cpu.busy_before_ratio": _busy_ratio(first, cpu_counters())}


def cpu_facts(before: CpuCounters | None, after: CpuCounters | None,
              contention: Contention | None = None) -> dict[str, Scalar]:
    """Time that the hypervisor took away, periods in which the container's CPU limit stopped us, as ratios; and in how
    many of the launches other processes were in the way, with the largest share of the cores' time they took."""
    facts: dict[str, Scalar] = {"cpu.steal_ratio": _steal_ratio(before, after),
                                "cpu.throttled_ratio": _throttled(before, after)}
    if contention is not None and contention.launches:
        facts |= {"cpu.launches_watched": contention.launches, "cpu.launches_contended": contention.contended,
                  "cpu.others_max_ratio": contention.worst}
    return facts


def _busy_ratio(before: CpuCounters | None, after: CpuCounters | None) -> float | None:
    if before is None or after is None or after.total <= before.total:
        return None
    return 1 - (after.idle - before.idle) / (after.total - before.total)


def _steal_ratio(before: CpuCounters | None, after: CpuCounters | None) -> float | None:
    if before is None or after is None or after.total <= before.total:
        return None
    return (after.steal - before.steal) / (after.total - before.total)


def _throttled(before: CpuCounters | None, after: CpuCounters | None) -> float | None:
    if before is None or after is None or before.periods is None or after.periods is None:
        return None
    if before.throttled is None or after.throttled is None or after.periods <= before.periods:
        return None
    return (after.throttled - before.throttled) / (after.periods - before.periods)
