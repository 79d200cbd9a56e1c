"""What is wrong with the measurement, not with what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from regress.diagnose import INFO, ONE_NUMBER_BYTES, WARNING, Rule
from regress.record import Diagnosis
from regress.trace.messages import message_sizes
from regress.units import format_seconds, format_size

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_ENOUGH_ITERATIONS = 100
_FEWEST = 5
_COMPUTES = 0.20
_FIRST_SHARE, _COLD_TIMES, _COLD_OF_WINDOW = 0.10, 10.0, 0.02
_PROFILER = 0.01


def _few_iterations(analysis: Analysis) -> Iterator[Diagnosis]:
    """Only where there is little but communication: a trace of training explains, a benchmark's gives figures."""
    rows = [row for row in message_sizes(analysis) if row.count >= _FEWEST
            and (row.size_bytes is None or row.size_bytes > ONE_NUMBER_BYTES)]
    computes = any(lane.in_window.compute_ns > _COMPUTES * lane.in_window.span_ns for lane in analysis.device_lanes)
    if analysis.steps is not None or computes or not rows:
        return
    few = min(rows, key=lambda row: row.count)
    if few.count >= _ENOUGH_ITERATIONS:
        return
    size = "" if few.size_bytes is None else f" of {format_size(few.size_bytes)}"
    yield Diagnosis(
        "measurement_faults", INFO, {"reason": "few_iterations", "operation": few.operation,
                                     "message_bytes": few.size_bytes, "iterations": few.count},
        f"{few.operation}{size} was measured {few.count} times: below {_ENOUGH_ITERATIONS} the 99th percentile is the "
        "maximum, and one disturbance moves the mean",
        "measure longer (`case_duration` of the device in thresholds.yaml)")


def _cold_start(analysis: Analysis) -> Iterator[Diagnosis]:
    """A collective among the first of its communicator for which ranks came much further apart than usual.

    Not the very first one: ranks enter the capture one after the other.
    """
    window = min(lane.window.end - lane.window.start for lane in analysis.lanes)
    for group in analysis.matching.groups:
        skew = group.skew_ns
        first = skew[:max(3, int(_FIRST_SHARE * len(skew)))].copy()
        usual = float(np.median(skew))
        if len(skew) < 2 * len(first):
            continue
        first[0] = 0
        at = int(first.argmax())
        if first[at] < max(_COLD_TIMES * usual, _COLD_OF_WINDOW * window):
            continue
        yield Diagnosis(
            "measurement_faults", INFO, {"reason": "cold_start", "collective": at + 1, "skew_seconds":
                                         float(first[at]) / 1e9, "usual_skew_seconds": usual / 1e9},
            f"collective {at + 1} of {len(skew)} waited {format_seconds(first[at] / 1e9)} for a rank, where "
            f"{format_seconds(usual / 1e9)} is usual: first launches of kernels or libraries lie inside the window",
            "run a few more warm-up iterations before the capture opens")
        return


def _hidden_graphs(analysis: Analysis) -> Iterator[Diagnosis]:
    hidden = sum(lost.graph_launches_hidden for lost in {lane.file: lane.lost for lane in analysis.lanes}.values())
    if hidden:
        yield Diagnosis(
            "measurement_faults", WARNING, {"reason": "graph_capture", "graph_launches": hidden},
            f"{hidden} CUDA graphs were traced as a whole: their kernels, collectives too, are not in the trace",
            "profile with --cuda-graph-trace=node")


def _profiler_cost(analysis: Analysis) -> Iterator[Diagnosis]:
    lanes = [lane for lane in analysis.device_lanes if lane.in_window.span_ns]
    lane = max(lanes, key=lambda one: one.gaps.profiler_ns / one.in_window.span_ns, default=None)
    if lane is None or lane.gaps.profiler_ns <= _PROFILER * lane.in_window.span_ns:
        return
    share = lane.gaps.profiler_ns / lane.in_window.span_ns
    yield Diagnosis(
        "measurement_faults", INFO, {"reason": "profiler_cost", "rank": lane.rank, "profiler_share": share},
        f"the profiler itself held rank {lane.rank} for {share:.1%} of the window; that is taken out of launch gaps, "
        "but the other ranks waited for it",
        "trace fewer steps, and judge times of an untraced run")


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    return [finding for look in (_hidden_graphs, _cold_start, _profiler_cost, _few_iterations)
            for finding in look(analysis)]


RULE = Rule("measurement_faults", "too few iterations, cold launches in the window, graphs traced whole, profiler cost",
            "p99 equals the maximum below 100 samples (nccl-tests, -I); a cold first launch skewed one collective by "
            "22 ms where 2.9 ms was usual (measured); nsys documentation, --cuda-graph-trace", _check)
