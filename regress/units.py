"""Units, parsing of what people write ("64MiB", "3us", "10%") and scaling for display.

Stored values are base units: seconds, bytes, bytes per second, ratios from 0 to 1, plain counts.
GB/s (1e9 bytes per second) and MiB (2**20 bytes) are forms of display and of input only.
"""

from __future__ import annotations

import enum
import math
import re

from regress.errors import ConfigError


class Unit(enum.Enum):
    """The closed set of units a stored value can have."""

    SECONDS = "seconds"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes_per_second"
    PER_SECOND = "per_second"
    RATIO = "ratio"
    COUNT = "count"


class Better(enum.Enum):
    """Which direction of a metric is an improvement."""

    LOWER = "lower"
    HIGHER = "higher"


_BINARY = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SCALES: dict[Unit, dict[str, float]] = {
    Unit.SECONDS: {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0},
    Unit.BYTES: {k: float(v) for k, v in _BINARY.items()},
    Unit.BYTES_PER_SECOND: {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12},
    Unit.PER_SECOND: {"/s": 1.0},
    Unit.RATIO: {"%": 0.01},
    Unit.COUNT: {"": 1.0},
}
_EXAMPLES: dict[Unit, str] = {
    Unit.SECONDS: "a duration such as 3us, 50ms or 2s (ns, us, ms, s, min, h)",
    Unit.BYTES: "a size in powers of 1024 such as 4KiB or 25MiB (B, KiB, MiB, GiB, TiB)",
    Unit.BYTES_PER_SECOND: "a bandwidth in powers of 1000 such as 300GB/s (B/s, kB/s, MB/s, GB/s, TB/s)",
    Unit.PER_SECOND: "a rate such as 120/s",
    Unit.RATIO: "a percentage with its sign such as 85%",
    Unit.COUNT: "a plain number such as 12",
}
_MOST_BYTES = 2**63 - 1
"""What a message size is counted in, by NCCL, torch and the stored JSON alike: 64 bits with a sign."""
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\s\d]\S*)?\s*")


def accepted_form(unit: Unit) -> str:
    """How a quantity of this unit is written, for error messages and documentation."""
    return _EXAMPLES[unit]


def _hint(suffix: str, unit: Unit, scales: dict[str, float]) -> str:
    for known in scales:
        if known.lower() == suffix.lower():
            return f"did you mean {known}?"
    if unit is Unit.BYTES and suffix.upper() in {"K", "M", "G", "T", "KB", "MB", "GB", "TB"}:
        return f"message sizes are powers of 1024: write {suffix[0].upper()}iB"
    return ""


def parse_quantity(text: str, unit: Unit, where: str = "") -> float:
    """The value of `text` in the base unit of `unit`.

    Raises ConfigError when the suffix is missing, unknown or of another unit, or the number beyond every float; `where`
    is shown in it.
    """
    match = _QUANTITY.fullmatch(text)
    scales = _SCALES[unit]
    suffix = (match.group(2) or "") if match else ""
    if match is None or suffix not in scales:
        raise ConfigError(
            f"{text!r} is not a value in {unit.value.replace('_', ' ')}",
            where=where,
            accepted=accepted_form(unit),
            next_step=_hint(suffix, unit, scales),
        )
    # Dividing by the inverse keeps decimal input exact where it can be: 3us is 3e-6 and not 3 * 1e-6.
    number, scale = float(match.group(1)), scales[suffix]
    value = number / round(1 / scale) if scale < 1 else number * scale
    if not math.isfinite(value):
        raise ConfigError(f"{text!r} is too large a number", where=where, accepted=accepted_form(unit))
    return value


def parse_size(text: str, where: str = "") -> int:
    """A message size in bytes from text such as "64MiB"; powers of 1024 only, as nccl-tests counts sizes."""
    value = parse_quantity(text, Unit.BYTES, where)
    if value != int(value) or not 0 < value <= _MOST_BYTES:
        raise ConfigError(f"{text!r} is not a whole, positive number of bytes below 8 EiB", where=where,
                          accepted=accepted_form(Unit.BYTES))
    return int(value)


def format_size(size_bytes: float) -> str:
    """A message size as KiB, MiB or GiB when it divides evenly, else with one decimal: 16MiB, 1.5KiB, 100B."""
    for suffix in ("TiB", "GiB", "MiB", "KiB"):
        scale = _BINARY[suffix]
        if size_bytes >= scale:
            amount = size_bytes / scale
            return f"{amount:.0f}{suffix}" if amount == int(amount) else f"{amount:.1f}{suffix}"
    return f"{size_bytes:.0f}B"


def exact_size(size_bytes: int) -> str:
    """As `format_size` where that reads back as the same size, else in bytes: two sizes never have one name."""
    text = format_size(size_bytes)
    return text if size_bytes * 10 % _BINARY.get(text[-3:], 1) == 0 else f"{size_bytes}B"


def format_seconds(seconds: float) -> str:
    """Seconds with three significant digits in ns, µs, ms or s."""
    for suffix, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= scale * 0.9995:
            return f"{_three_digits(seconds / scale)} {suffix}"
    return f"{_three_digits(seconds * 1e9)} ns" if seconds else "0 s"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    return f"{value:.2f}" if magnitude < 9.995 else f"{value:.1f}" if magnitude < 99.95 else f"{value:.0f}"


def format_value(value: float | None, unit: Unit) -> str:
    """A stored value for people: scaled, three significant digits, unit named; a dash for "not measured"."""
    if value is None:
        return "–"
    if unit is Unit.SECONDS:
        return format_seconds(value)
    if unit is Unit.BYTES:
        return format_size(value)
    if unit is Unit.BYTES_PER_SECOND:
        for suffix, scale in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
            if abs(value) >= scale * 0.9995:
                return f"{_three_digits(value / scale)} {suffix}"
        return f"{_three_digits(value)} B/s"
    if unit is Unit.RATIO:
        return f"{value * 100:.1f} %"
    if unit is Unit.PER_SECOND:
        return f"{_three_digits(value)} /s"
    return f"{value:.0f}" if value == int(value) else _three_digits(value)


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number with its noun: "1 launch", "3 launches". many: the plural where it is not `one` and an s."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def format_change(change: float | None) -> str:
    """A relative change with its sign, +12.3 %; factors from 3 up read better as ×4.2."""
    if change is None:
        return "–"
    if change >= 2:
        return f"×{_three_digits(change + 1)}"
    return f"{change * 100:+.1f} %"
