"""What differs between two runs, as their traces and NCCL's logs show it.

Four answers: the environment, what NCCL decided, the structure of a step, and where the time of a step went.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from regress.diagnose import Circumstances
from regress.metrics.host import ALLOCATIONS, PAGEABLE
from regress.metrics.structure import COLLECTIVES, MESSAGE_BYTES
from regress.record import Environment
from regress.trace.analysis import Analysis
from regress.trace.budget import StepBudget, step_budgets
from regress.trace.budget_change import BudgetChange, budget_changes, money_per_day
from regress.trace.messages import message_sizes
from regress.trace.names import BLOCKING
from regress.units import Unit, format_change, format_seconds, format_size, format_value

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_KERNEL_SHARE = 0.01
"""Kernels whose time changed by less than this part of a step are not worth a line."""
_KERNELS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Changed:
    """One figure of a step's structure that both runs give."""

    what: str
    unit: Unit
    before: float
    now: float

    @property
    def text(self) -> str:
        """For a terminal."""
        return f"{self.what}: {format_value(self.before, self.unit)} → {format_value(self.now, self.unit)}"


@dataclass(frozen=True, slots=True)
class KernelChange:
    """Kernels of one name, communication left out: count and seconds per step, the mean over ranks. 0: not there."""

    name: str
    count_before: float
    count: float
    seconds_before: float
    seconds: float

    @property
    def how(self) -> str:
        """Whether it appeared, vanished, slowed down or sped up."""
        if not self.count_before:
            return "appeared"
        if not self.count:
            return "vanished"
        return "slower" if self.seconds > self.seconds_before else "faster"


@dataclass(frozen=True, slots=True)
class Difference:
    """All that differs. environment and decisions: one line each. budgets: the rank that tells most first.

    cost_per_day: in the currency of cost_per_gpu_hour, for the same work; None where that is not known.
    """

    environment: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    structure: tuple[Changed, ...] = ()
    kernels: tuple[KernelChange, ...] = ()
    budgets: tuple[BudgetChange, ...] = ()
    cost_per_day: float | None = None

    def to_json(self) -> dict[str, Json]:
        """The public JSON form."""
        return {"environment": list(self.environment), "nccl": list(self.decisions),
                "structure": [{"what": one.what, "unit": one.unit.value, "before": one.before, "now": one.now}
                              for one in self.structure],
                "kernels": [{"name": one.name, "how": one.how, "count_before": one.count_before, "count": one.count,
                             "seconds_before": one.seconds_before, "seconds": one.seconds} for one in self.kernels],
                "step": [_budget_json(one) for one in self.budgets], "cost_per_day": self.cost_per_day}


def _budget_json(change: BudgetChange) -> dict[str, Json]:
    return {"rank": change.rank, "sentence": change.sentence, "change_seconds": change.change,
            "before": _parts(change.before), "now": _parts(change.now),
            "parts": dict(change.parts)}


def _parts(budget: StepBudget) -> dict[str, Json]:
    return {"step_seconds": budget.step, "compute_seconds": budget.compute, "transfer_seconds": budget.transfer,
            "waiting_seconds": budget.waiting, "host_seconds": budget.host, "idle_seconds": budget.idle}


def difference(now: Circumstances, before: Circumstances) -> Difference:
    """What differs between a run and an earlier one."""
    here, there = now.analysis, before.analysis
    on_host = all(lane.on_host for lane in here.lanes)
    budgets = budget_changes(step_budgets(here), step_budgets(there), on_host)
    money = None
    if budgets and now.cost_per_gpu_hour is not None and not on_host and budgets[0].before.step:
        money = money_per_day(budgets[0].before.step, budgets[0].now.step, here.devices, now.cost_per_gpu_hour)
    return Difference(tuple(_environment(now, before)), tuple(_decisions(now.chosen, before.chosen)),
                      tuple(_structure(here, there)), kernel_changes(here, there), budgets, money)


def _environment(now: Circumstances, before: Circumstances) -> Iterator[str]:
    """Facts of the environment where both runs have them; versions of tracers; what NCCL took from its environment."""
    yield from _facts(_flat(now.environment), _flat(before.environment))
    yield from _facts({"tracer": ", ".join(now.analysis.versions)}, {"tracer": ", ".join(before.analysis.versions)})
    if now.nccl is not None and before.nccl is not None:
        yield from _facts({"NCCL": ", ".join(now.nccl.versions), **dict(now.nccl.settings)},
                          {"NCCL": ", ".join(before.nccl.versions), **dict(before.nccl.settings)})
        yield from _facts({"transports": ", ".join(now.nccl.transports)},
                          {"transports": ", ".join(before.nccl.transports)})


def _flat(environment: Environment | None) -> dict[str, str]:
    if environment is None:
        return {}
    return {name: str(value) for name, value in {**environment.reported, **environment.must_match}.items()
            if value is not None}


def _facts(now: Mapping[str, str], before: Mapping[str, str]) -> Iterator[str]:
    if now and before:
        yield from (f"{name}: {before.get(name, 'unset')} → {now.get(name, 'unset')}"
                    for name in sorted({*now, *before}) if now.get(name) != before.get(name))


def _decisions(now: Mapping[str, str], before: Mapping[str, str]) -> Iterator[str]:
    if now and before:
        yield from (f"{what}: {before.get(what, 'not run')} → {now.get(what, 'not run')}"
                    for what in sorted({*now, *before}) if now.get(what) != before.get(what))


def _structure(now: Analysis, before: Analysis) -> Iterator[Changed]:
    """What a step consists of, only where it differs."""
    for metric in (COLLECTIVES, MESSAGE_BYTES, ALLOCATIONS, PAGEABLE):
        readings = [metric.from_trace(run) if metric.from_trace else None for run in (before, now)]
        yield from _if_changed(metric.name, metric.unit, *(None if one is None else one.value for one in readings))
    if now.steps is None or before.steps is None:
        return
    yield from _if_changed("synchronising calls per step", Unit.COUNT, _calls(before), _calls(now))
    yield from _if_changed("copies per step", Unit.COUNT, *(_copies(run, False) for run in (before, now)))
    yield from _if_changed("bytes copied per step", Unit.BYTES, *(_copies(run, True) for run in (before, now)))
    if any(row.size_bytes is None for run in (before, now) for row in message_sizes(run)):
        return
    sizes = [_sizes(run) for run in (before, now)]
    for what in sorted({*sizes[0], *sizes[1]}):
        yield from _if_changed(f"{what} per step", Unit.COUNT, sizes[0].get(what, 0.0), sizes[1].get(what, 0.0))


def _if_changed(what: str, unit: Unit, before: float | None, now: float | None) -> Iterator[Changed]:
    if before is not None and now is not None and before != now:
        yield Changed(what, unit, before, now)


def _calls(run: Analysis) -> float:
    return max(sum(call.in_steps for call in lane.calls if call.kind in BLOCKING) / lane.window.steps
               for lane in run.lanes)


def _copies(run: Analysis, size: bool) -> float:
    return max(sum(copy.in_window_bytes if size else copy.in_window for copy in lane.copies) / lane.window.steps
               for lane in run.lanes)


def _sizes(run: Analysis) -> dict[str, float]:
    """Collectives per step by operation and size as it is shown, of those that come in every other step at least."""
    found: Counter[str] = Counter()
    for row in message_sizes(run):
        found[f"{row.operation} of {format_size(row.size_bytes or 0)}"] += row.count
    per_step = {what: round(count / (run.steps or 1), 1) for what, count in found.items()}
    return {what: count for what, count in per_step.items() if count >= 0.5}


def kernel_changes(now: Analysis, before: Analysis) -> tuple[KernelChange, ...]:
    """Kernels whose time per step changed by 1 % of a step or more, and those that came or went; biggest first."""
    step = next((budget.step for budget in step_budgets(before)), 0.0)
    if not step or now.steps is None:
        return ()
    here, there = _kernels(now), _kernels(before)
    found = [KernelChange(name, *(side.get(name, (0.0, 0.0))[part] for part in (0, 1) for side in (there, here)))
             for name in {*here, *there}]
    worth = [one for one in found if abs(one.seconds - one.seconds_before) >= _KERNEL_SHARE * step]
    return tuple(sorted(worth, key=lambda one: (-abs(one.seconds - one.seconds_before), one.name)))


def _kernels(run: Analysis) -> dict[str, tuple[float, float]]:
    """Count and seconds per step by name, the mean over ranks."""
    found: dict[str, tuple[float, float]] = {}
    lanes = [lane for lane in run.device_lanes if lane.window.steps]
    for lane in lanes:
        for total in lane.kernel_totals:
            count, seconds = found.get(total.name, (0.0, 0.0))
            share = 1 / (lane.window.steps * len(lanes))
            found[total.name] = count + total.count * share, seconds + total.total_ns / 1e9 * share
    return found


def difference_lines(found: Difference) -> list[str]:
    """The difference as lines of a terminal; empty where nothing differs."""
    lines = [f"rank {one.rank}: {one.sentence}" for one in found.budgets[:4] if one.change]
    if len(found.budgets) > 4:
        lines.append(f"… {len(found.budgets) - 4} more ranks")
    if lines and found.budgets[0].before.step:
        first = found.budgets[0]
        lines[0] += f" ({format_change(first.now.step / first.before.step - 1)})"
    if found.cost_per_day is not None:
        lines.append(f"the same work costs {found.cost_per_day:+.2f} a day")
    lines += [f"environment: {text}" for text in found.environment]
    lines += [f"NCCL: {text}" for text in found.decisions]
    lines += [one.text for one in found.structure]
    lines += [f"kernel {one.how}: {one.name[:60]}: {one.count_before:.4g} → {one.count:.4g} a step, "
              f"{format_seconds(one.seconds_before)} → {format_seconds(one.seconds)}"
              for one in found.kernels[:_KERNELS_SHOWN]]
    if len(found.kernels) > _KERNELS_SHOWN:
        lines.append(f"… {len(found.kernels) - _KERNELS_SHOWN} more kernels changed")
    return lines
