"""What can be tried: variables that NCCL, gloo and torch read, and options of the training step.

Which collective has which algorithm, and which algorithm which protocol: NVIDIA/nccl, src/graph/tuning.cc and
docs/userguide/source/env.rst, 2.24 to 2.30. Since 2.24 a forced algorithm that a collective does not have is an error
("no algorithm/protocol available") where it used to fall back to Ring without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from regress.errors import ConfigError, UsageError
from regress.options import NamedPlace, build, nearest, schema_of
from regress.record import Case, Scalar

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "CUDA_DEVICE_MAX_CONNECTIONS", "OMP_NUM_THREADS")
_EVERY = frozenset(("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"))
ALGORITHMS: Mapping[str, frozenset[str]] = {
    "ring": _EVERY, "tree": frozenset(("AllReduce",)), "collnetchain": frozenset(("AllReduce",)),
    "collnetdirect": frozenset(("AllReduce", "AllGather", "ReduceScatter")),
    "nvls": frozenset(("AllReduce", "AllGather", "ReduceScatter")), "nvlstree": frozenset(("AllReduce",)),
    "pat": frozenset(("AllGather", "ReduceScatter"))}
"""The collectives that each of NCCL's algorithms can run."""
_SIMPLE_ONLY = frozenset(("collnetchain", "collnetdirect", "nvls", "nvlstree", "pat"))
PROTOCOLS = ("ll", "ll128", "simple")
_OPERATIONS: Mapping[str, str] = {"allreduce": "AllReduce", "allgather": "AllGather",
                                  "reducescatter": "ReduceScatter", "broadcast": "Broadcast", "reduce": "Reduce"}
_CHANGES_RESULTS = frozenset(("comm_hook",))


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing to try. variables: for the ranks' environment. options: of the training step."""

    variables: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As it is written for --try."""
        return " ".join([*(f"{name}={value}" for name, value in self.variables.items()),
                         *(f"{name}={_written(value)}" for name, value in self.options.items())])

    @property
    def changes_results(self) -> bool:
        """Whether the training computes something else with it: a hook that compresses gradients."""
        return any(name in _CHANGES_RESULTS and value != "none" for name, value in self.options.items())

    def applied(self, case: Case) -> Case:
        """The case with the setting's options."""
        merged = {**dict(case.options), **self.options}
        return Case(case.workload, case.dtype, case.world_size, case.device, case.timing, case.message_size_bytes,
                    case.ranks_per_node, tuple(sorted(merged.items())))


def _written(value: Scalar) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_setting(text: str, step_options: type) -> Setting:
    """A setting from "NCCL_PROTO=Simple" or "NCCL_ALGO=Ring bucket_cap_mb=50".

    step_options: the options of the training step. Raises UsageError for what is neither a variable of a known family
    nor such an option.
    """
    variables: dict[str, str] = {}
    options: dict[str, Scalar] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"{word!r}", where="--try", accepted="NAME=VALUE, several with spaces between them")
        if _VARIABLE.fullmatch(name):
            if not name.startswith(_PREFIXES):
                raise UsageError(f"variable {name}", where="--try", accepted=", ".join(f"{p}*" for p in _PREFIXES))
            variables[name] = value
        else:
            options[name] = _option(name, value, step_options)
    if not variables and not options:
        raise UsageError("nothing to try", where="--try", accepted="NAME=VALUE, several with spaces between them")
    return Setting(variables, options)


def _option(name: str, value: str, step_options: type) -> Scalar:
    known = {declared.name: declared for declared in fields(step_options)}
    where = f"--try {name}={value}"
    if name not in known:
        raise UsageError(f"no option {name!r} of the training step", where=where, accepted=", ".join(known),
                         next_step=nearest(name, known))
    words: dict[str, Scalar] = {"true": True, "false": False, "none": None if name != "comm_hook" else "none"}
    raw: Any = words[value.lower()] if value.lower() in words else _number(value)
    import jsonschema

    wrong = next(jsonschema.Draft202012Validator(schema_of(step_options)).iter_errors({name: raw}), None)
    if wrong is not None:
        raise UsageError(wrong.message, where=where, accepted=str(known[name].metadata["help"]))
    try:
        built: Any = build(step_options, {name: raw}, NamedPlace("--try"))
    except ConfigError as error:
        raise UsageError(error.seen, where=where, accepted=error.accepted) from error
    found: Scalar = getattr(built, name)
    return found


def _number(value: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


NCCL_DEFAULTS = ("NCCL_PROTO=LL", "NCCL_PROTO=LL128", "NCCL_PROTO=Simple", "NCCL_ALGO=Ring", "NCCL_ALGO=allreduce:tree",
                 "NCCL_ALGO=allreduce:nvls", "NCCL_MAX_CTAS=4", "NCCL_MIN_CTAS=32", "NCCL_BUFFSIZE=1048576",
                 "NCCL_BUFFSIZE=8388608")
STEP_DEFAULTS = ("bucket_cap_mb=10", "bucket_cap_mb=50", "bucket_cap_mb=100", "gradient_as_bucket_view=true",
                 "static_graph=true", "comm_hook=bf16")
COMPILE = "compile=true"


def default_settings(cases: Sequence[Case], step_options: type) -> tuple[Setting, ...]:
    """What is worth a try for these cases where nobody names anything. Nothing for collectives on gloo."""
    on_gpu = any(case.device == "cuda" for case in cases)
    stepped = any(case.message_size_bytes is None for case in cases)
    chosen = [*(NCCL_DEFAULTS if on_gpu else ()), *(STEP_DEFAULTS if stepped else ()),
              *([COMPILE] if stepped and on_gpu else [])]
    return tuple(parse_setting(text, step_options) for text in chosen)


def operations(case: Case) -> tuple[str, ...]:
    """NCCL's collectives that a launch of the case runs: its own, and the broadcast that begins every communicator."""
    own = {"allreduce": "AllReduce", "allgather": "AllGather"}.get(case.workload, "AllReduce")
    return (own, "Broadcast")


def refusal(setting: Setting, case: Case) -> str | None:
    """Why the setting cannot be tried on the case, or None. Known before a launch, so that none is lost to it."""
    if setting.options and case.message_size_bytes is not None:
        return f"{', '.join(setting.options)} is an option of training steps"
    if case.device == "cpu" and any(name.startswith(("NCCL_", "TORCH_NCCL_")) for name in setting.variables):
        return "the CPU's ranks talk through gloo, which reads no NCCL variable"
    if case.device == "cpu" and setting.options.get("comm_hook") == "powersgd" and (
            {**dict(case.options), **setting.options}.get("bucket_cap_mb") is not None):
        return "PowerSGD on gloo needs one bucket: gloo does not keep the order of its collectives"
    return next(_nccl_refusals(setting.variables, case), None)


def _nccl_refusals(variables: Mapping[str, str], case: Case) -> Iterator[str]:
    algorithms = _per_operation(variables.get("NCCL_ALGO"), tuple(ALGORITHMS), "NCCL_ALGO")
    protocols = _per_operation(variables.get("NCCL_PROTO"), PROTOCOLS, "NCCL_PROTO")
    nodes = case.world_size // case.ranks_per_node
    for operation in operations(case):
        allowed = algorithms.get(operation, frozenset(ALGORITHMS))
        usable = {name for name in allowed if operation in ALGORITHMS[name]}
        if not usable:
            which = " or ".join(sorted(allowed))
            yield (f"NCCL has {which} for {_listed(allowed)} only, and since 2.24 makes {operation} fail instead of "
                   "falling back to Ring; name the collective instead, such as "
                   f"NCCL_ALGO={_example(allowed)}")
        if usable and nodes == 1 and usable <= {"nvlstree", "pat"}:
            yield f"{' and '.join(sorted(usable))} need more than one node"
        if usable and usable <= _SIMPLE_ONLY and "simple" not in protocols.get(operation, frozenset(PROTOCOLS)):
            yield f"{' and '.join(sorted(usable))} run with protocol Simple only"
    if variables.get("NCCL_NVLS_ENABLE") == "0" and any(names <= {"nvls", "nvlstree"} for names in algorithms.values()):
        yield "NVLS is switched off by NCCL_NVLS_ENABLE=0"


def _listed(algorithms: frozenset[str]) -> str:
    return " and ".join(sorted(set[str]().union(*(ALGORITHMS[name] for name in algorithms))))


def _example(algorithms: frozenset[str]) -> str:
    name = min(algorithms)
    return f"{min(ALGORITHMS[name]).lower()}:{name}"


def _per_operation(text: str | None, known: tuple[str, ...], variable: str) -> dict[str, frozenset[str]]:
    """What a list such as "ring,tree", "^tree" or "allreduce:tree;broadcast:ring" leaves to each collective.

    Raises UsageError for a name that is none of NCCL's.
    """
    found: dict[str, frozenset[str]] = {}
    for part in (text or "").split(";"):
        if not part.strip():
            continue
        target, colon, names = part.rpartition(":")
        listed = (names if colon else part).strip().lower()
        chosen = [name.strip() for name in listed.removeprefix("^").split(",")]
        wrong = next((name for name in chosen if name not in known), None)
        if wrong is not None or (colon and target.strip().lower() not in _OPERATIONS):
            raise UsageError(repr(target if wrong is None else wrong), where=f"{variable}={text}",
                             accepted=", ".join(known if wrong is not None else _OPERATIONS))
        kept = frozenset(set(known) - set(chosen) if listed.startswith("^") else chosen)
        targets = [_OPERATIONS[target.strip().lower()]] if colon else list(_OPERATIONS.values())
        found.update(dict.fromkeys(targets, kept))
    return found
