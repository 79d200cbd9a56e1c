"""What the facts of `regress.measure.health` amount to: whether the figures of a run can be trusted.

Pure rules over the recorded facts, so that a stored run can be judged again. A fact that is None decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from regress.record import Scalar

Level = Literal["warn", "inconclusive", "invalid"]

_LEVELS: tuple[Level, ...] = ("invalid", "inconclusive", "warn")
_GIB = 1 << 30
_HARD_THROTTLES = ("hardware slowdown", "hardware thermal slowdown", "hardware power brake",
                   "software thermal slowdown")


@dataclass(frozen=True, slots=True)
class _Facts:
    """The facts of one subject ("gpu0", "cpu"), numbers apart from the rest."""

    subject: str
    values: Mapping[str, Scalar]

    def number(self, name: str) -> float | None:
        value = self.values.get(name)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def assess(facts: Mapping[str, Scalar]) -> list[tuple[Level, str]]:
    """What stands against the figures, gravest first: (level, text with the evidence).

    "invalid": the figures mean nothing. "inconclusive": a would-be regression may be the machine's. "warn": worth
    knowing.
    """
    subjects: dict[str, dict[str, Scalar]] = {}
    for name, value in facts.items():
        subject, _, fact = name.partition(".")
        subjects.setdefault(subject, {})[fact] = value
    found: list[tuple[Level, str]] = []
    for subject, values in subjects.items():
        rules = _GPU_RULES if re.fullmatch(r"gpu\d+", subject) else _CPU_RULES if subject == "cpu" else ()
        seen = _Facts(subject, values)
        found += [(level, f"{subject}: {text}") for rule in rules for level, text in rule(seen)]
    return sorted(found, key=lambda item: _LEVELS.index(item[0]))


_Found = Iterator[tuple[Level, str]]


def _lost(gpu: _Facts) -> _Found:
    if gpu.values.get("lost") is True:
        yield "invalid", ("lost: the driver says that it is gone (it fell off the bus); read `dmesg` for its Xid, "
                          "reset it or reboot the host, and where it happens again check its power, cooling and seat")
    error = gpu.values.get("sampling_error")
    if error is not None:
        yield "warn", f"was not watched all the time while measuring ({error})"


def _memory_errors(gpu: _Facts) -> _Found:
    new, rows = gpu.number("ecc_uncorrected_new"), gpu.number("remapped_rows_new")
    if new:
        yield "invalid", f"{new:g} uncorrectable memory errors while measuring; reset the GPU or take it out of service"
    if gpu.values.get("remap_failed") is True:
        yield "invalid", "a memory row could not be remapped; the GPU needs replacing"
    if gpu.values.get("remap_pending") is True:
        yield "inconclusive", "a memory row waits to be remapped; reset the GPU"
    if rows:
        yield "inconclusive", f"{rows:g} memory rows were remapped while measuring"


def _throttling(gpu: _Facts) -> _Found:
    for reason in _HARD_THROTTLES:
        share = gpu.number(f"throttle_ratio.{reason}") or 0.0
        if share > 0.5:
            yield "invalid", f"throttled ({reason}) in {share:.0%} of the samples under load; cool it or let it rest"
        elif share > 0.05:
            yield "inconclusive", f"throttled ({reason}) in {share:.0%} of the samples under load"
    capped = gpu.number("throttle_ratio.software power cap") or 0.0
    if capped > 0.5:
        limit = gpu.number("power_limit_watts")
        yield "warn", (f"held back by its power limit{'' if limit is None else f' of {limit:g} W'} "
                       f"in {capped:.0%} of the samples under load")


def _clocks(gpu: _Facts) -> _Found:
    """Below 60 % of the maximum no ordinary boost or power cap explains it (an H200 at 700 W holds about 76 %)."""
    clock, top = gpu.number("sm_clock_under_load_mhz"), gpu.number("sm_clock_max_mhz")
    locked = (gpu.number("throttle_ratio.application clock setting") or 0.0) > 0.5
    if clock is None or not top or clock >= 0.6 * top:
        return
    text = f"SM clock {clock:g} MHz under load, {clock / top:.0%} of the maximum {top:g} MHz"
    if locked:
        yield "warn", f"{text}, as it was set"
    else:
        yield "inconclusive", text


def _others(gpu: _Facts) -> _Found:
    processes, used = gpu.number("processes_before"), gpu.number("memory_used_before_bytes")
    if processes:
        yield "inconclusive", f"{processes:g} other processes on the GPU before the first launch; end them (nvidia-smi)"
    elif used is not None and used > 2 * _GIB:  # the driver's own reserve is below 1 GiB
        yield "inconclusive", (f"{used / _GIB:.1f} GiB of memory in use before the first launch by a process that "
                               "cannot be seen from here (another container)")
    most, expected = gpu.number("processes_max"), gpu.number("processes_expected")
    if not processes and most is not None and expected is not None and most > expected:
        yield "inconclusive", f"up to {most:g} processes on the GPU while measuring, {expected:g} of them expected"


def _links(gpu: _Facts) -> _Found:
    up, down, errors = (gpu.number(f"nvlink_{name}") for name in ("active", "inactive", "errors_new"))
    if up and down:
        yield "inconclusive", f"{down:g} of {up + down:g} NVLinks are down; check `nvidia-smi nvlink -s`"
    if errors:
        yield "warn", f"{errors:g} NVLink recoveries while measuring; check `nvidia-smi nvlink -e`"
    for name, words in (("pcie_generation", "PCIe generation"), ("pcie_width", "PCIe width")):
        now, top = gpu.number(name), gpu.number(f"{name}_max")
        if now is not None and top is not None and 0 < now < top:
            yield "inconclusive", f"{words} {now:g} where {top:g} is possible; reseat the card or check the slot"


def _mode(gpu: _Facts) -> _Found:
    mode = gpu.values.get("compute_mode")
    if mode == "prohibited":
        yield "invalid", "compute mode is prohibited: no process may use this GPU"


def _stolen(cpu: _Facts) -> _Found:
    steal, limited = cpu.number("steal_ratio"), cpu.number("throttled_ratio")
    if steal is not None and steal > 0.01:
        yield ("inconclusive" if steal > 0.05 else "warn"), f"the hypervisor took {steal:.1%} of the CPU time"
    if limited is not None and limited > 0.01:
        yield ("inconclusive" if limited > 0.05 else "warn"), (
            f"the container's CPU limit stopped it in {limited:.1%} of the periods; raise the limit")


def _loaded(cpu: _Facts) -> _Found:
    busy, load = cpu.number("busy_before_ratio"), cpu.number("load_before_per_core")
    runnable = cpu.number("runnable_before_per_core")
    if busy is None or busy < 0.5:
        return
    known = "" if load is None else f", load {load:.1f} per core"
    if runnable is not None and (load is None or runnable > load):
        known = f", {runnable:.1f} tasks wanted each core"
    text = f"{busy:.0%} of the CPU was busy before the first launch{known}"
    yield ("inconclusive" if busy >= 0.9 and max(load or 0.0, runnable or 0.0) >= 1.5 else "warn"), text


def _contended(cpu: _Facts) -> _Found:
    watched, contended = cpu.number("launches_watched"), cpu.number("launches_contended")
    if not watched or not contended:
        return
    taken = cpu.number("others_max_ratio") or 0.0
    # One disturbed launch is outvoted by those that confirm; several are not.
    yield ("inconclusive" if contended >= max(2, watched / 3) else "warn"), (
        f"other processes took up to {taken:.0%} of the CPU in {contended:g} of {watched:g} launches, and hardly any "
        "of it was idle")


_Rule = Callable[[_Facts], _Found]
_GPU_RULES: tuple[_Rule, ...] = (_lost, _memory_errors, _mode, _throttling, _clocks, _others, _links)
_CPU_RULES: tuple[_Rule, ...] = (_stolen, _loaded, _contended)
