"""The exposition text that Prometheus, node exporter's textfile collector and the Pushgateway read.

Valid as OpenMetrics and as the older text format at once: gauges only, families together, a final `# EOF`, which
the older format takes for a comment. No timestamps: both readers refuse them.
https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

from __future__ import annotations

from collections.abc import Iterable

from regress.delivery.series import Point

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "comm_regress_"
_COMPANIONS = (("low_", "Smallest over launches: "), ("high_", "Largest over launches: "),
               ("baseline_", "What it was judged against: "), ("limit_", "Its absolute bound: "))
_HELP = {
    "run_info": "The run behind the other series; the only one that carries the commit.",
    "run_verdict_code": "0 pass, 1 improvement, 2 no-baseline, 3 inconclusive, 4 regression, 5 invalid.",
    "run_end_timestamp_seconds": "When the run ended, in seconds since the epoch.",
    "verdict_code": "0 pass, 1 improvement, 2 no-baseline, 3 inconclusive, 4 regression, 5 invalid.",
}


def exposition(points: Iterable[Point]) -> bytes:
    """Families in order of name, one HELP and TYPE each, ending in a newline."""
    families: dict[str, list[Point]] = {}
    for point in points:
        families.setdefault(point.name, []).append(point)
    lines: list[str] = []
    for name, members in sorted(families.items()):
        unit = members[0].unit
        lines += [f"# HELP {name} {_help(name)}", f"# TYPE {name} gauge"]
        if unit is not None and name.endswith(f"_{unit.value}"):
            lines.append(f"# UNIT {name} {unit.value}")
        lines += [f"{name}{_labels(point)} {point.value!r}" for point in members]
    return "\n".join([*lines, "# EOF", ""]).encode()


def _help(name: str) -> str:
    plain = name.removeprefix(_PREFIX)
    if plain in _HELP:
        return _HELP[plain]
    prefix, words = next((known for known in _COMPANIONS if plain.startswith(known[0])), ("", "Median over launches: "))
    return words + plain.removeprefix(prefix).replace("_", " ") + "."


def _labels(point: Point) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in point.labels) + "}" if point.labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
