"""`regress explain`: any trace, any profiler, with the same metrics and rules as the gate."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from regress.catalog import open_shelves
from regress.commands import print_json
from regress.config import load_config
from regress.errors import TraceInputError
from regress.explain import explain, render_text
from regress.trace.nsys import find
from regress.trace.nsys_export import export_sqlite
from regress.trace.read import Export


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The traces of one run, and those of another to compare with."""
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE",
                        help=".sqlite, .nsys-rep or torch.profiler JSON (.gz); all files of one run")
    parser.add_argument("--against", nargs="+", type=Path, metavar="TRACE", help="the files of a run to compare with")
    parser.add_argument("--within", metavar="RANGE", help="only what was launched inside this NVTX range")
    parser.add_argument("--log", nargs="+", type=Path, default=[], metavar="FILE",
                        help="NCCL's logs (NCCL_DEBUG=INFO) and output of the ranks, of the same run")
    parser.add_argument("--against-log", nargs="+", type=Path, default=[], metavar="FILE",
                        help="the same of the run to compare with")
    parser.add_argument("--cost-per-gpu-hour", type=float, metavar="MONEY",
                        help="turns a slower step into money per day (default: the gate's `cost_per_gpu_hour` in "
                             "thresholds.yaml)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Prints the explanation. Status 4 for what is no trace, 10 for a trace that cannot support a metric."""
    reports = [path for path in (*arguments.traces, *(arguments.against or ())) if path.suffix == ".nsys-rep"]
    found = explain(arguments.traces, arguments.against, nsys=_exporter(reports[0]) if reports else None,
                    within=arguments.within, logs=arguments.log, logs_against=arguments.against_log,
                    cost_per_gpu_hour=_cost(arguments) if arguments.against else None)
    if arguments.json:
        print_json(found.to_json())
    else:
        sys.stdout.write(render_text(found))
    return 0


def _cost(arguments: argparse.Namespace) -> float | None:
    """As asked for, else as the thresholds file of the working folder says."""
    given: float | None = arguments.cost_per_gpu_hour
    if given is not None or not Path("thresholds.yaml").is_file():
        return given
    return load_config(Path("thresholds.yaml"), open_shelves().catalog()).gate.cost_per_gpu_hour


def _exporter(report: Path) -> Export:
    nsys = find()
    if nsys is None:
        raise TraceInputError("reading a report needs nsys, and none was found", where=str(report),
                              accepted="nsys on PATH, in NVIDIA's folders, or named by REGRESS_NSYS",
                              next_step="or export it where nsys is: nsys export -t sqlite --include-blobs=true")
    return partial(export_sqlite, nsys)
