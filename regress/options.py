"""Options declared once: a dataclass field with type, default and one-line help, in the file that uses it.

`option()` makes the field. From the declarations come the loader (`build`), the JSON Schema (`schema_of`) and the
documentation. What people write is text with a unit ("10%", "50ms", "4KiB"); what code sees is a base-unit number.
"""

from __future__ import annotations

import enum
from dataclasses import MISSING, Field, field, fields
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_type_hints
import re
import types
import typing

from regress.errors import ConfigError
from regress.units import Unit, accepted_form, parse_quantity, parse_size


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
           minimum: float | None = None) -> Any:
    """A dataclass field that is also an option: default, one-line help, and how it is written."""
    metadata = {"help": help, "form": form, "choices": choices, "minimum": minimum}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def parse_effect(text: str, unit: Unit, where: str) -> Effect:
    """An Effect from "10%", "3us" or "max(3us, 15%)"."""
    match = re.fullmatch(r"\s*max\(([^,()]+),([^,()]+)\)\s*", text)
    parts = match.groups() if match else (text,)
    relative = absolute = 0.0
    for part in parts:
        if part.strip().endswith("%"):
            relative = parse_quantity(part, Unit.RATIO, where)
        elif unit is Unit.RATIO or match is None and re.fullmatch(r"\s*[\d.]+\s*", text):
            raise ConfigError(f"{text!r} is not a change", where=where,
                              accepted="10%, or a floor and a percentage such as max(3us, 15%)",
                              next_step="write the percent sign")
        else:
            absolute = parse_quantity(part, unit, where)
    return Effect(relative, absolute)
