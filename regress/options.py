"""Options declared once: a dataclass field with type, default and one-line help, in the file that uses it.

`option()` makes the field. From the declarations come the loader (`build`), the JSON Schema (`schema_of`) and the
documentation. What people write is text with a unit ("10%", "50ms", "4KiB"); what code sees is a base-unit number.
"""

from __future__ import annotations

import difflib
import enum
import re
import sys
import types
import typing
from collections.abc import Iterable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, Protocol, TypeVar

from regress.errors import ConfigError
from regress.units import Unit, accepted_form, parse_quantity, parse_size

OptionsT = TypeVar("OptionsT")

_MOST_COUNT = 2**31 - 1
"""Runs, launches, ranks and threads: far beyond any of them, and what every database takes."""


class Form(enum.Enum):
    """How an option is written where plain JSON types do not say it.

    METRIC: a quantity in the unit of the metric the policy is for. EFFECT: a change that matters, relative ("10%"),
    absolute in the metric's unit ("3us") or the larger of both ("max(3us, 15%)").
    """

    RATIO = "ratio"
    DURATION = "duration"
    SIZE = "size"
    METRIC = "metric"
    EFFECT = "effect"


@dataclass(frozen=True, slots=True)
class Effect:
    """The smallest change worth a verdict: relevant when beyond both floors.

    relative: fraction of the baseline. absolute: in the metric's base unit.
    """

    relative: float = 0.0
    absolute: float = 0.0

    def bound(self, baseline: float) -> float:
        """The change in the metric's unit that counts as relevant against this baseline."""
        return max(self.relative * abs(baseline), self.absolute)


def option(default: Any = MISSING, *, help: str, form: Form | None = None, choices: tuple[str, ...] = (),
           minimum: float | None = None, above: float | None = None) -> Any:
    """A dataclass field that is also an option: default, one-line help, and how it is written.

    minimum: the least value accepted, in the base unit; 0 for a duration that says nothing. above: what a ratio or a
    duration must be more than.
    """
    if form is Form.DURATION and minimum is None and above is None:
        minimum = 0.0
    metadata = {"help": help, "form": form, "choices": choices, "minimum": minimum, "above": above}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def parse_effect(text: str, unit: Unit, where: str) -> Effect:
    """An Effect from "10%", "3us" or "max(3us, 15%)"; ConfigError for one below 0, or a max of two of one kind."""
    match = re.fullmatch(r"\s*max\(([^,()]+),([^,()]+)\)\s*", text)
    parts = match.groups() if match else (text,)
    if match and len({part.strip().endswith("%") for part in parts}) == 1:
        raise ConfigError(f"{text!r} is the larger of two of one kind", where=where, accepted=_FORMS[Form.EFFECT],
                          next_step="write the larger one alone")
    relative = absolute = 0.0
    for part in parts:
        if part.strip().endswith("%"):
            relative = parse_quantity(part, Unit.RATIO, where)
        elif unit is Unit.RATIO or (match is None and re.fullmatch(r"\s*[\d.]+\s*", text)):
            raise ConfigError(f"{text!r} is not a change", where=where,
                              accepted="10%, or a floor and a percentage such as max(3us, 15%)",
                              next_step="write the percent sign")
        else:
            absolute = parse_quantity(part, unit, where)
    if min(relative, absolute) < 0:
        raise ConfigError(f"{text!r} is below 0", where=where, accepted=_FORMS[Form.EFFECT],
                          next_step="a change counts in both directions: write it without its sign")
    return Effect(relative, absolute)


class Place(Protocol):
    """Where an option was written; `str()` of it is what messages show."""

    def child(self, step: str | int) -> Place:
        """The place of a key or item inside this one."""
        ...


@dataclass(frozen=True, slots=True)
class NamedPlace:
    """A place that is no file: the name of a flag, or of a default."""

    name: str

    def child(self, step: str | int) -> NamedPlace:
        """The key or item inside it."""
        return NamedPlace(f"{self.name}[{step}]" if isinstance(step, int) else f"{self.name}.{step}")

    def __str__(self) -> str:
        return self.name


def nearest(word: str, known: Iterable[str]) -> str:
    """"did you mean X?" for the closest of the known words, or an empty text when none is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"did you mean {close[0]!r}?" if close else ""


@dataclass(frozen=True, slots=True)
class _Shape:
    """A field's type taken apart: what one value is, whether it is a list of them, whether it may be absent."""

    kind: Any
    many: bool
    optional: bool


def _shape(annotation: Any) -> _Shape:
    optional = False
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        rest = [arm for arm in typing.get_args(annotation) if arm is not type(None)]
        optional = len(rest) < len(typing.get_args(annotation))
        annotation = rest[0] if len(rest) == 1 else annotation
    if typing.get_origin(annotation) is tuple:
        return _Shape(typing.get_args(annotation)[0], True, optional)
    return _Shape(annotation, False, optional)


def _shapes(options: type) -> list[tuple[Field[Any], _Shape]]:
    hints = typing.get_type_hints(options)
    return [(f, _shape(hints[f.name])) for f in fields(options)]


_FORMS = {
    Form.RATIO: accepted_form(Unit.RATIO),
    Form.DURATION: accepted_form(Unit.SECONDS),
    Form.SIZE: accepted_form(Unit.BYTES),
    Form.METRIC: "a value with the metric's unit such as 50ms, 300GB/s or 85%",
    Form.EFFECT: "10%, 3us or max(3us, 15%)",
}


def _written(declared: Field[Any], form: Form) -> str:
    """How a value of that form is written, with its bound."""
    above, minimum = declared.metadata.get("above"), declared.metadata.get("minimum")
    bound = f", more than {above:g}" if above is not None else f", at least {minimum:g}" if minimum is not None else ""
    return _FORMS[form] + bound


def _one_schema(declared: Field[Any], shape: _Shape) -> dict[str, Any]:
    form, choices = declared.metadata.get("form"), declared.metadata.get("choices")
    if form is not None:
        return {"type": ["string", "number"] if form is Form.METRIC else "string",
                "x-accepted": _written(declared, form)}
    if choices:
        return {"enum": list(choices)}
    if is_dataclass(shape.kind):
        return schema_of(typing.cast(type, shape.kind))
    if typing.get_origin(shape.kind) is dict or shape.kind is dict:
        return {"type": "object"}
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    schema: dict[str, Any] = {"type": names[shape.kind]} if shape.kind in names else {}
    if declared.metadata.get("minimum") is not None:
        schema["minimum"] = declared.metadata["minimum"]
    return schema


def schema_of(options: type) -> dict[str, Any]:
    """The JSON Schema of an options dataclass as people write it: every key, its help and its default; no others."""
    properties: dict[str, Any] = {}
    required = []
    for declared, shape in _shapes(options):
        schema = _one_schema(declared, shape)
        if shape.many:
            schema = {"type": "array", "items": schema}
        if shape.optional:
            schema = {"anyOf": [schema, {"type": "null"}]}
        schema["description"] = declared.metadata.get("help", "")
        properties[declared.name] = schema
        if declared.default is MISSING and declared.default_factory is MISSING:
            required.append(declared.name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _one_value(raw: Any, declared: Field[Any], shape: _Shape, place: Place, unit: Unit | None) -> Any:
    form, where = declared.metadata.get("form"), str(place)
    if form in (Form.METRIC, Form.EFFECT) and unit is None:
        raise ConfigError(f"{declared.name!r} needs a metric to take its unit from", where=where)
    if form is Form.METRIC and unit is not None:
        if isinstance(raw, (int, float)) and unit is not Unit.COUNT:
            raise ConfigError(f"{raw!r} has no unit", where=where, accepted=accepted_form(unit))
        return parse_quantity(str(raw), unit, where)
    if form is Form.EFFECT and unit is not None:
        return parse_effect(str(raw), unit, where)
    if form in (Form.RATIO, Form.DURATION):
        value = parse_quantity(str(raw), Unit.RATIO if form is Form.RATIO else Unit.SECONDS, where)
        return _within(value, raw, declared, form, where)
    if form is Form.SIZE:
        return parse_size(str(raw), where)
    if is_dataclass(shape.kind):
        return build(typing.cast(type, shape.kind), raw, place, unit)
    if isinstance(shape.kind, type) and issubclass(shape.kind, enum.Enum):
        return shape.kind(raw)
    return _plain(raw, shape.kind, where)


def _within(value: float, raw: Any, declared: Field[Any], form: Form, where: str) -> float:
    """The value, when it keeps to the option's bound: what is written is text, where a JSON Schema has no bounds."""
    above, minimum = declared.metadata.get("above"), declared.metadata.get("minimum")
    if (above is not None and not value > above) or (minimum is not None and value < minimum):
        raise ConfigError(f"{str(raw)!r}", where=where, accepted=_written(declared, form))
    return value


def _plain(raw: Any, kind: Any, where: str) -> Any:
    """A number as its declaration has it: to JSON, and so to its schema, 3 and 3.0 are the same; YAML knows .inf."""
    if kind not in (int, float) or isinstance(raw, bool) or not isinstance(raw, (int, float)):
        return raw
    most = _MOST_COUNT if kind is int else sys.float_info.max
    if not abs(raw) <= most:  # also where it is no number at all
        raise ConfigError(f"{str(raw)[:40]}", where=where, accepted=f"a finite number of at most {most:g}")
    return kind(raw)


def build(options: type[OptionsT], raw: dict[str, Any], place: Place, unit: Unit | None = None) -> OptionsT:
    """An instance from what a person wrote, already valid against `schema_of(options)`.

    place: shown in errors. unit: the metric's unit, for forms METRIC and EFFECT.
    Raises ConfigError for a value that does not parse in its form.
    """
    values: dict[str, Any] = {}
    for declared, shape in _shapes(options):
        if declared.name not in raw:
            continue
        given, here = raw[declared.name], place.child(declared.name)
        if given is None:
            values[declared.name] = None
        elif shape.many:
            values[declared.name] = tuple(_one_value(item, declared, shape, here.child(index), unit)
                                          for index, item in enumerate(given))
        else:
            values[declared.name] = _one_value(given, declared, shape, here, unit)
    return options(**values)
