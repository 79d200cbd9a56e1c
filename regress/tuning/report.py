"""A trial's outcome for people and programs, with the lines to copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from regress.tuning.settings import Setting
from regress.tuning.trial import Effectiveness, TrialResult, Tried
from regress.units import format_change, format_seconds

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_ORDER = tuple(Effectiveness)
_ARGUMENTS = frozenset(("bucket_cap_mb", "static_graph", "gradient_as_bucket_view"))
"""Options of the step that are arguments of DistributedDataParallel."""


def helpful(result: TrialResult) -> list[Setting]:
    """Settings that help some case and hurt none, the biggest gain first."""
    by_name: dict[str, list[Tried]] = {}
    for one in result.tried:
        by_name.setdefault(one.setting.name, []).append(one)
    kept = [tried for tried in by_name.values()
            if any(one.outcome is Effectiveness.HELPS for one in tried)
            and not any(one.outcome is Effectiveness.HURTS for one in tried)]
    kept.sort(key=lambda tried: min(one.change or 0.0 for one in tried))
    return [tried[0].setting for tried in kept]


def export_lines(settings: Sequence[Setting]) -> list[str]:
    """How each setting is put to use: an export for variables, arguments and calls for options of the step."""
    lines = []
    for setting in settings:
        lines += [f"export {name}='{value}'" if ";" in value or ":" in value else f"export {name}={value}"
                  for name, value in setting.variables.items()]
        arguments = [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                     for name, value in setting.options.items() if name in _ARGUMENTS]
        if arguments:
            lines.append(f"DistributedDataParallel(model, {', '.join(arguments)})")
        hook = setting.options.get("comm_hook")
        if hook in ("bf16", "fp16"):
            lines.append(f"ddp.register_comm_hook(None, default_hooks.{hook}_compress_hook)")
        elif hook == "powersgd":
            lines.append("ddp.register_comm_hook(PowerSGDState(process_group=None), powerSGD_hook)")
        if setting.options.get("compile") is True:
            lines.append("torch.compile(ddp)")
        if setting.options.get("accumulation") is not None:
            lines.append(f"accumulate gradients over {setting.options['accumulation']} micro-batches")
    return list(dict.fromkeys(lines))


def _bound(result: TrialResult, case: str) -> str:
    effect = result.matters.get(case)
    if effect is None:
        return ""
    floor = f" and {format_seconds(effect.absolute)}" if effect.absolute else ""
    return f"; a change matters from {effect.relative:.0%}{floor} on"


def _interval(one: Tried) -> str:
    if one.change is None or one.interval is None:
        return one.reason
    low, high = one.interval
    said = f"{format_change(one.change)} ({format_change(low)} to {format_change(high)})"
    return f"{said}; {one.reason}" if one.reason else said


def trial_text(result: TrialResult) -> str:
    """Case by case what helps, hurts, makes no difference, stayed open, failed and was refused; then what to set."""
    lines = [f"{result.rounds} rounds; {result.stopped}"]
    widest = max((len(one.setting.name) for one in result.tried), default=0)
    for case in dict.fromkeys(one.case.id for one in result.tried):
        seconds = result.as_it_is.get(case)
        lines += ["", case + (f": {format_seconds(seconds)} as it is{_bound(result, case)}" if seconds else "")]
        rows = [one for one in result.tried if one.case.id == case]
        rows.sort(key=lambda one: (_ORDER.index(one.outcome), one.change or 0.0))
        lines += [f"  {one.outcome.value:<13}  {one.setting.name:<{widest}}  {_interval(one)}".rstrip() for one in rows]
    chosen = helpful(result)
    if not chosen:
        return "\n".join([*lines, "", "Nothing that was tried helps; leave the settings as they are."]) + "\n"
    lines += ["", "To use what helps (each was tried on its own; try them together with one --try before you keep more "
              "than one):", *(f"  {line}" for line in export_lines(chosen))]
    if any(setting.changes_results for setting in chosen):
        lines.append("  A communication hook changes the gradients: check that training still converges.")
    return "\n".join(lines) + "\n"


def trial_json(result: TrialResult) -> dict[str, Json]:
    """The same for programs; seconds and relative changes."""
    tried: list[Json] = [{
        "setting": one.setting.name, "case": one.case.id, "outcome": one.outcome.value, "seconds": one.seconds,
        "change": one.change, "interval": None if one.interval is None else list(one.interval), "rounds": one.rounds,
        "reason": one.reason} for one in result.tried]
    return {"rounds": result.rounds, "stopped": result.stopped, "as_it_is": dict(result.as_it_is), "tried": tried,
            "use": list(export_lines(helpful(result)))}
