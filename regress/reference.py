"""docs/metrics.md and docs/thresholds.md, rendered from the declarations that the code itself runs on.

Pure but for `main`, which writes the two files; a test keeps them true.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from regress.catalog import Shelves, open_shelves
from regress.config import CaseOptions, DeviceOptions, GateOptions, Override
from regress.delivery.http import HttpOptions
from regress.judge.detectors import SeriesOptions
from regress.metrics import Metric
from regress.options import Effect, Form, schema_of
from regress.units import Better, Unit, accepted_form

GENERATED = "<!-- Made from the code by `make docs`; edit the declarations instead. -->"

_PLACES = {True: "collectives", False: "training steps", None: "both"}
_FORMED = {Form.DURATION: "{:g}s", Form.RATIO: "{:.3%}", Form.SIZE: "{:g}B"}


def table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table; bars in cells are escaped."""
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return "\n".join([line(headings), "|" + "---|" * len(headings), *map(line, rows)])


def option_table(options: type) -> str:
    """Every key of an options dataclass: how it is written, its default and its help."""
    schema = schema_of(options)["properties"]
    return table(("key", "accepted", "default", "meaning"), (
        (f"`{declared.name}`", _accepted(schema[declared.name]), _default(declared),
         str(declared.metadata.get("help", ""))) for declared in fields(options)))


def _accepted(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return _accepted(schema["anyOf"][0])
    if schema.get("type") == "array":
        return f"a list of: {_accepted(schema['items'])}"
    if "x-accepted" in schema:
        return str(schema["x-accepted"])
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    least = f", at least {schema['minimum']:g}" if "minimum" in schema else ""
    words = {"boolean": "`true` or `false`", "integer": "a whole number", "number": "a number", "string": "text",
             "object": "keys and values"}
    return words.get(str(schema.get("type")), "text") + least


def _default(declared: Field[Any]) -> str:
    if declared.default is MISSING:
        return "required" if declared.default_factory is MISSING else "none"
    value = declared.default
    if value is None or value in ((), ""):
        return "none"
    form = declared.metadata.get("form")
    if isinstance(value, tuple):
        return "`[" + ", ".join(map(str, value)) + "]`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Effect) or is_dataclass(value):
        return "see below"
    return f"`{_FORMED[form].format(value) if form in _FORMED else value}`"


def metrics_page(metrics: Mapping[str, Metric], collectives: Iterable[str]) -> str:
    """docs/metrics.md: every metric with unit, direction, definition and source, gated ones first."""
    ordered = sorted(metrics.values(), key=lambda metric: (not metric.gated, metric.from_ranks is None, metric.name))
    names = " and ".join(f"`{name}_seconds`" for name in sorted(collectives))
    measured = [metric for metric in ordered if metric.from_ranks is not None]
    traced = [metric for metric in ordered if metric.from_ranks is None]
    heads = ("metric", "unit", "better", "in cases of", "gated", "definition", "formula from")
    return "\n\n".join([
        "# Metrics", GENERATED,
        "Stored values are in base units: seconds, bytes, bytes per second, ratios from 0 to 1. What could not be "
        "measured is absent, never 0. Gated metrics are judged by default; any other one is judged once a thresholds "
        "file names it.",
        f"`{{workload}}` stands for the name of a collective: {names} are two metrics of one declaration.",
        "## Measured by the ranks themselves, in every launch",
        "Iterations are folded over ranks by the slowest rank, warm-up excluded.",
        table(heads, map(_metric_row, measured)),
        "## Read from a trace",
        "From the one launch that runs under a profiler; it is never part of a gated time. A ratio or a count is that "
        "of the worst rank. `regress explain` gives the same metrics for any trace.",
        table(heads, map(_metric_row, traced)),
        "## How each unit is written",
        table(("unit", "written as"), ((unit.value.replace("_", " "), accepted_form(unit)) for unit in Unit)),
    ]) + "\n"


def _metric_row(metric: Metric) -> tuple[str, ...]:
    return (f"`{metric.name}`", metric.unit.value.replace("_", " "),
            "lower" if metric.better is Better.LOWER else "higher", _PLACES[metric.collective],
            "yes" if metric.gated else "", metric.summary[:1].upper() + metric.summary[1:].rstrip(".") + ".",
            metric.source)


def thresholds_page(shelves: Shelves, packaged: str) -> str:
    """docs/thresholds.md: every key of thresholds.yaml. packaged: the text of the packaged default."""
    detectors = [part for name, detector in shelves.detectors.items()
                 if detector.options is not SeriesOptions and fields(detector.options)
                 for part in (f"#### {name}: {detector.summary}", option_table(detector.options))]
    workloads = [part for name, workload in shelves.workloads.items()
                 for part in ((f"#### `{name}`: {workload.summary}", option_table(cast(type, workload.options)))
                              if fields(workload.options) else (f"#### `{name}`: {workload.summary}", "No options."))]
    sinks = [part for name, sink in shelves.sinks.items()
             for part in (f"#### `{name}`: {sink.summary}", option_table(sink.options))]
    return "\n\n".join([
        "# thresholds.yaml", GENERATED,
        "What the gate measures and when it says no. A `thresholds.yaml` in the root of the repository replaces the "
        "packaged default section by section; a file with `cases` of its own also says its own policies. What is not "
        "understood is an error that names the file, the line, the path and the nearest known key, and exit status 4. "
        "`regress schema thresholds` prints the JSON Schema for editors; `schema: 1` is the only required key.",
        "## `gate`", option_table(GateOptions),
        "## `devices`", "One profile for `cpu`, one for `cuda`.", option_table(DeviceOptions),
        "## `cases`", "A list; each entry is a family of cases.", option_table(CaseOptions),
        "### Options of each workload", *workloads,
        "## `defaults` and `metrics`",
        "Policies: `defaults` is for every gated metric, `metrics` refines it metric by metric "
        "([all metrics](metrics.md)). The keys of all detectors stand side by side in one policy.",
        "#### Every series: what its verdicts do", option_table(SeriesOptions), *detectors,
        "## `overrides`", "A list; later entries win.", option_table(Override),
        "## `publish`", "A list of sinks. Every entry has `sink` and that sink's own keys; secrets are never written "
        "here, only the names of the environment variables that hold them.", *sinks,
        "#### `http`: how a server is reached, the same for every sink that has it", option_table(HttpOptions),
        "## The packaged default", f"```yaml\n{packaged.rstrip()}\n```",
    ]) + "\n"


def pages() -> dict[str, str]:
    """File name to content, from what is on the shelves now."""
    from regress.config import packaged_thresholds

    shelves = open_shelves()
    collectives = [name for name, workload in shelves.workloads.items() if workload.collective]
    return {"metrics.md": metrics_page(shelves.metrics, collectives),
            "thresholds.md": thresholds_page(shelves, packaged_thresholds().read_text(encoding="utf-8"))}


def main(folder: Path) -> None:
    """Writes the pages into a folder."""
    for name, content in pages().items():
        (folder / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
