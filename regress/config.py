"""thresholds.yaml into frozen dataclasses: cases, metrics, detectors, device profiles, budgets.

Strict: what is not understood is an error that names the file, the line, the YAML path and what is accepted.
The JSON Schema is derived from the declarations of the options and checked by jsonschema.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from regress.errors import ConfigError
from regress.options import Form, NamedPlace, build, nearest, option, schema_of
from regress.record import Case, Scalar, TimingMode
from regress.units import Unit
from regress.yaml_source import Located, read_yaml

CONFIG_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class GateOptions:
    """The gate itself, whatever the device."""

    budget: float = option(900.0, form=Form.DURATION, above=0,
                           help="wall-clock bound for the whole gate, confirmation included")
    case_deadline: float = option(120.0, form=Form.DURATION, above=0,
                                  help="a case without progress for this long is a hang")
    launch_deadline: float = option(600.0, form=Form.DURATION, above=0, help="bound for one launch of all cases")
    lock_wait: float = option(600.0, form=Form.DURATION, help="how long to wait for another gate on this machine")
    main_branch: str | None = option(None, help="branch that baselines come from; default: what origin/HEAD names")
    window: int = option(20, minimum=1, help="how many earlier runs of the main branch make the baseline")
    confirm: bool = option(True, help="re-measure a suspicion before it may fail the build")
    base_python: str | None = option(None, help="interpreter of the base's ranks, where the environment itself changed")
    base_command: tuple[str, ...] = option((), help="command put before the base's launches, e.g. to enter a container")
    accept_in_ci: bool = option(False, help="allow --comm-regress-accept where CI is set")
    keep_samples: int = option(200, minimum=1, help="runs whose raw samples are kept; statistics are kept for ever")
    cost_per_gpu_hour: float | None = option(None, minimum=0,
                                             help="turns a slower step into money per day in explanations")


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """One kind of device."""

    ranks: int | None = option(None, minimum=1, help="ranks; default one per GPU, 2 where one GPU or CPUs are shared")
    threads_per_rank: int = option(1, minimum=1, help="CPU threads of one rank")
    launches: int = option(3, minimum=1, help="fresh launches per case before anything is confirmed")
    case_duration: float = option(0.5, form=Form.DURATION, above=0,
                                  help="how long one timing mode of a case is measured")


@dataclass(frozen=True, slots=True)
class DeviceProfiles:
    """A profile for each kind of device."""

    cpu: DeviceOptions = option(DeviceOptions(), help="gloo on the CPU")
    cuda: DeviceOptions = option(DeviceOptions(), help="NCCL on NVIDIA GPUs")


@dataclass(frozen=True, slots=True)
class CaseOptions:
    """A family of cases: one workload over sizes, dtypes and world sizes."""

    workload: str = option(help="which workload of the shelf benchmarks/")
    devices: tuple[str, ...] = option(("cuda", "cpu"), choices=("cuda", "cpu"), help="where these cases exist")
    sizes: tuple[int, ...] = option((), form=Form.SIZE,
                                    help="message sizes; S as nccl-tests counts it; cases are named by them, and by "
                                         "the bytes where KiB or MiB with one decimal would not be exact")
    dtypes: tuple[str, ...] = option(("float32",), choices=("float32", "bfloat16", "float16"), help="element types")
    timing: str = option("isolated", choices=("isolated", "pipelined", "graph"), help="the timing mode it is gated on")
    ranks: tuple[int, ...] = option((), minimum=1, help="world sizes; default: all ranks of the device profile")
    options: dict[str, Any] = option({}, help="the workload's own options, see docs/thresholds.md; those that "
                                              "differ from their defaults are part of a case's name")


@dataclass(frozen=True, slots=True)
class Override:
    """Other policies for the cases whose id matches a pattern; later overrides win."""

    cases: str = option(help="shell pattern over case ids; [ and ] stand for themselves: allreduce[4KiB-*]")
    metrics: dict[str, Any] = option({}, help="policies as in the section metrics")


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """What the loader must know of a workload: whether it has sizes, its options, and the metrics its cases give."""

    collective: bool
    options: type
    metrics: Mapping[str, Unit]


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is on the shelves, handed to the loader so that it need not know any of them."""

    workloads: Mapping[str, WorkloadFacts]
    detectors: Mapping[str, type]
    sinks: Mapping[str, type] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, Unit]:
        """Every metric that some workload's cases can give, with its unit."""
        return {name: unit for facts in self.workloads.values() for name, unit in facts.metrics.items()}


@dataclass(frozen=True, slots=True)
class SinkChoice:
    """One configured sink: its name on the shelf and its options."""

    sink: str
    options: object


@dataclass(frozen=True, slots=True)
class Config:
    """A whole thresholds file, checked."""

    source: str
    gate: GateOptions
    devices: DeviceProfiles
    cases: tuple[CaseOptions, ...]
    sinks: tuple[SinkChoice, ...]
    policies: tuple[tuple[str, Mapping[str, Mapping[str, Any]]], ...]
    """(case pattern, {metric: {detector: raw options}}) in rising precedence, already checked; first the defaults,
    which hold every metric."""
    catalog: Catalog

    def device(self, name: str) -> DeviceOptions:
        """The profile of "cpu" or "cuda"."""
        return self.devices.cuda if name == "cuda" else self.devices.cpu

    def plan(self, device: str, world_size: int, ranks_per_node: int = 0) -> tuple[Case, ...]:
        """The cases of this file on that device, in the file's order, without duplicates."""
        planned: dict[Case, None] = {}
        for family in self.cases:
            if device in family.devices:
                planned.update(dict.fromkeys(self._family(family, device, world_size, ranks_per_node)))
        return tuple(planned)

    def _family(self, family: CaseOptions, device: str, world_size: int, ranks_per_node: int) -> list[Case]:
        facts = self.catalog.workloads[family.workload]
        timing = TimingMode(family.timing) if facts.collective else TimingMode.STEP
        options = _chosen(family, facts)
        return [Case(family.workload, dtype, ranks, device, timing, size, min(ranks_per_node, ranks), options)
                for ranks in family.ranks or (world_size,)
                for dtype in family.dtypes
                for size in (family.sizes if facts.collective else (None,))]

    def names(self, case: Case, metric: str) -> bool:
        """Whether a policy of the file speaks of that metric of that case, so that it is judged even if not gated."""
        return any(metric in metrics for pattern, metrics in self.policies[1:] if matches(case.id, pattern))

    def policy(self, case: Case, metric: str) -> dict[str, object]:
        """Options of every detector for that metric of that case, detectors by name, overrides applied."""
        unit = self.catalog.workloads[case.workload].metrics[metric]
        raw: dict[str, dict[str, Any]] = {name: {} for name in self.catalog.detectors}
        for pattern, metrics in self.policies:
            if matches(case.id, pattern):
                for detector, options in metrics.get(metric, {}).items():
                    raw[detector].update(options)
        return {name: build(kind, raw[name], NamedPlace(f"{self.source}: metrics.{metric}"), unit)
                for name, kind in self.catalog.detectors.items()}


def _chosen(family: CaseOptions, facts: WorkloadFacts) -> tuple[tuple[str, Scalar], ...]:
    """The workload's options that differ from their defaults: one that is written out makes no other case."""
    built: Any = build(facts.options, family.options, NamedPlace(family.workload))
    defaults = {declared.name: declared.default for declared in fields(facts.options)}
    # A whole number stays as it was written, 25 and not 25.0: it is part of the names that are stored.
    return tuple(sorted((name, raw if isinstance(raw, int) else getattr(built, name))
                        for name, raw in family.options.items() if getattr(built, name) != defaults[name]))


def matches(case_id: str, pattern: str) -> bool:
    """Whether a case id fits a shell pattern in which square brackets stand for themselves."""
    return fnmatch.fnmatchcase(case_id, "".join("[[]" if letter == "[" else letter for letter in pattern))


def _policy_schema(catalog: Catalog) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for options in catalog.detectors.values():
        merged.update(schema_of(options)["properties"])
    return {"type": "object", "properties": merged, "additionalProperties": False}


def config_schema(catalog: Catalog) -> dict[str, Any]:
    """The JSON Schema of a thresholds file, for editors and for the loader itself."""
    metrics = {"type": "object", "additionalProperties": False,
               "properties": dict.fromkeys(sorted(catalog.metrics), _policy_schema(catalog))}
    override = schema_of(Override)
    override["properties"]["metrics"] = metrics
    family = schema_of(CaseOptions)
    family["properties"]["workload"] = {"enum": sorted(catalog.workloads)}
    sinks = [{**schema_of(kind), "required": ["sink"],
              "properties": {"sink": {"const": name}, **schema_of(kind)["properties"]}}
             for name, kind in catalog.sinks.items()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "comm-regress thresholds",
        "type": "object",
        "additionalProperties": False,
        "required": ["schema"],
        "properties": {
            "schema": {"const": CONFIG_SCHEMA},
            "gate": schema_of(GateOptions),
            "devices": schema_of(DeviceProfiles),
            "cases": {"type": "array", "minItems": 1, "items": family},
            "defaults": {**_policy_schema(catalog), "description": "policy of every gated metric; metrics refine it"},
            "metrics": metrics,
            "overrides": {"type": "array", "items": override},
            "publish": {"type": "array", "items": {"type": "object", "required": ["sink"], "properties": {
                "sink": {"enum": sorted(catalog.sinks)}}}},
        },
        "$defs": {"sinks": {"anyOf": sinks}} if sinks else {},
    }


def packaged_thresholds() -> Path:
    """The documented default; in a checkout it is a link to the file at the top."""
    return Path(__file__).with_name("thresholds.yaml")


def load_config(path: Path | None, catalog: Catalog) -> Config:
    """The thresholds at `path`, or the packaged default; sections that are left out come from the default.

    Raises ConfigError with file, line, YAML path, what is accepted and the nearest known key.
    """
    default = read_yaml(packaged_thresholds())
    chosen = read_yaml(path) if path is not None else default
    _check(chosen, config_schema(catalog))
    sections = {**default.data, **chosen.data}
    if path is not None and "cases" in chosen.data:
        # Policies of the default speak of the default's cases; a file with cases of its own says its own.
        sections.update({name: chosen.data.get(name, empty)
                         for name, empty in (("defaults", {}), ("metrics", {}), ("overrides", []))})
    located = Located(sections, chosen.lines, chosen.source)
    return _assemble(located, catalog)


def _assemble(located: Located, catalog: Catalog) -> Config:
    data, source = located.data, located.source
    cases = tuple(build(CaseOptions, raw, located.at("cases", index))
                  for index, raw in enumerate(data["cases"]))
    for index, family in enumerate(cases):
        _check_family(family, located, index, catalog)
    produced = {name for family in cases for name in catalog.workloads[family.workload].metrics}
    everywhere = dict.fromkeys(produced, data.get("defaults", {}))
    policies = [("*", _split(everywhere, ("defaults",), located, catalog, produced)),
                ("*", _split(data.get("metrics", {}), ("metrics",), located, catalog, produced))]
    for index, raw in enumerate(data.get("overrides", [])):
        path = ("overrides", index, "metrics")
        policies.append((raw["cases"], _split(raw.get("metrics", {}), path, located, catalog, produced)))
    config = Config(
        source=source,
        gate=build(GateOptions, data.get("gate", {}), located.at("gate")),
        devices=build(DeviceProfiles, data.get("devices", {}), located.at("devices")),
        cases=cases,
        sinks=tuple(_sink(raw, located, index, catalog) for index, raw in enumerate(data.get("publish", []))),
        policies=tuple(policies),
        catalog=catalog,
    )
    for index, raw in enumerate(data.get("overrides", [])):
        _check_pattern(raw["cases"], config, located.where("overrides", index))
    return config


_RANKS = re.compile(r"(\d+)x(?:(\d+)x)?(?:cpu|cuda)")


def _check_pattern(pattern: str, config: Config, where: str) -> None:
    """ConfigError where a pattern fits no case of the file on any device, at the world sizes it names and usual ones.
    """
    places = {(size, size) for size in (1, 2, 4, 8)}
    for first, second in _RANKS.findall(pattern):
        per_node = int(second or first)
        places.add((int(first) * (per_node if second else 1), per_node))
    ids = [case.id for device in ("cpu", "cuda") for world_size, per_node in sorted(places)
           for case in config.plan(device, world_size, per_node)]
    if not any(matches(case_id, pattern) for case_id in ids):
        raise ConfigError(f"cases: {pattern!r} fits no case of this file", where=where,
                          accepted="a shell pattern over case ids, in which square brackets stand for themselves",
                          next_step=f"cases of this file are called like {next(iter(ids), 'none')}; "
                                    "`regress run --list` names them all")


def _sink(raw: dict[str, Any], located: Located, index: int, catalog: Catalog) -> SinkChoice:
    name = raw["sink"]
    options = {key: value for key, value in raw.items() if key != "sink"}
    _check(Located(options, located.lines, located.source), schema_of(catalog.sinks[name]), ("publish", index))
    return SinkChoice(name, build(catalog.sinks[name], options, located.at("publish", index)))


def _check_family(family: CaseOptions, located: Located, index: int, catalog: Catalog) -> None:
    facts = catalog.workloads[family.workload]
    where = located.where("cases", index)
    if facts.collective and not family.sizes:
        raise ConfigError(f"{family.workload} without sizes", where=where, accepted="sizes: [4KiB, 1MiB, ...]")
    if not facts.collective and family.sizes:
        raise ConfigError(f"{family.workload} is a training step and has no message size", where=where,
                          accepted="no key sizes")
    if family.timing == "graph" and "cpu" in family.devices:
        raise ConfigError("timing: graph on the CPU", where=where, accepted="isolated or pipelined on the CPU",
                          next_step="CUDA graphs need devices: [cuda]")
    _check(Located(family.options, located.lines, located.source), schema_of(facts.options),
           ("cases", index, "options"))
    build(facts.options, family.options, located.at("cases", index, "options"))


def _split(raw: Mapping[str, Any], path: tuple[str | int, ...], located: Located, catalog: Catalog,
           produced: set[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """{metric: {detector: raw options}} from one flat mapping a metric; each value is parsed to prove it can be."""
    split: dict[str, dict[str, dict[str, Any]]] = {}
    for metric, policy in raw.items():
        where = located.where(*path, metric)
        if metric not in produced:
            raise ConfigError(f"no case of this file measures {metric!r}", where=where,
                              accepted=", ".join(sorted(produced)), next_step=nearest(metric, produced))
        split[metric] = {}
        for detector, options in catalog.detectors.items():
            mine = schema_of(options)["properties"]
            chosen = {key: value for key, value in policy.items() if key in mine}
            build(options, chosen, located.at(*path, *((metric,) if path != ("defaults",) else ())),
                  catalog.metrics[metric])
            split[metric][detector] = chosen
    return split


def _check(located: Located, schema: dict[str, Any], prefix: tuple[str | int, ...] = ()) -> None:
    """Raise the first violation in the file's order as a ConfigError."""
    import jsonschema

    errors = sorted(jsonschema.Draft202012Validator(schema).iter_errors(located.data),
                    key=lambda error: (located.line(*prefix, *error.absolute_path), str(error.absolute_path)))
    if not errors:
        return
    error = errors[0]
    while error.context:
        error = min(error.context, key=lambda inner: inner.validator == "type" and inner.schema == {"type": "null"})
    path = (*prefix, *error.absolute_path)
    schema_here = error.schema if isinstance(error.schema, Mapping) else {}
    raise _violation(error, path, schema_here, located)


def _violation(error: Any, path: tuple[str | int, ...], schema: Mapping[str, Any], located: Located) -> ConfigError:
    seen, accepted, hint = str(error.message), "", ""
    if error.validator == "additionalProperties":
        known = sorted(schema["properties"])
        unknown = next(key for key in error.instance if key not in known)
        path = (*path, unknown)
        seen, accepted, hint = f"unknown key {unknown!r}", ", ".join(known), nearest(str(unknown), known)
    elif error.validator == "enum":
        known = [str(choice) for choice in error.validator_value]
        seen, accepted, hint = f"{error.instance!r}", ", ".join(known), nearest(str(error.instance), known)
    elif error.validator == "type" and "x-accepted" in schema:
        seen, accepted = f"{error.instance!r} has no unit", str(schema["x-accepted"])
    elif error.validator == "type":
        wanted = error.validator_value
        seen, accepted = f"{error.instance!r}", wanted if isinstance(wanted, str) else " or ".join(wanted)
    elif error.validator == "const":
        seen, accepted = f"{error.instance!r}", str(error.validator_value)
    elif error.validator == "minItems":  # jsonschema says it in other words in every other release
        seen, accepted = f"{error.instance!r}", f"at least {error.validator_value} of them"
    elif error.validator == "minimum":
        seen, accepted = f"{error.instance!r}", f"at least {error.validator_value}"
    elif error.validator == "required":
        seen = f"{error.message}"
        hint = f"add it, for example {error.validator_value[0]}: 1" if path == () else ""
    return ConfigError(seen, where=located.where(*path), accepted=accepted, next_step=hint)
