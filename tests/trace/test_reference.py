"""Every sample gives the figures of a separate literal script: counts exactly, times within 0.1 %."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from regress.trace.analysis import Analysis
from regress.trace.names import CallKind
from regress.trace.read import read_timeline, read_traces
from tests.trace.samples import kineto_8_ranks, references, sample

_COPY = {1: "host to device", 2: "device to host", 8: "device to device", 10: "peer to peer"}


@pytest.fixture(scope="module", params=list(references()), ids=lambda case: str(case[0]))
def case(request: pytest.FixtureRequest) -> tuple[Analysis, dict[str, Any], str]:
    name, expected = request.param
    return read_traces([sample(name)]), expected, name


def test_kernels_and_unions_per_rank(case: tuple[Analysis, dict[str, Any], str]) -> None:
    analysis, expected, _ = case
    assert {str(lane.key) for lane in analysis.lanes} == set(expected["ranks"])
    for lane in analysis.lanes:
        rank, whole = expected["ranks"][str(lane.key)], lane.in_trace
        assert (lane.kernels, lane.comm_kernels) == (rank["kernels"], rank["comm_kernels"])
        assert lane.kernel_names == rank["names"]
        assert (whole.busy_ns, whole.comm_ns, whole.compute_ns, whole.overlap_ns, whole.exposed_ns, whole.span_ns) == (
            tuple(rank[f"{name}_ns"] for name in ("busy", "comm", "compute", "overlap", "exposed_comm", "span")))


def test_the_step_window_ends_with_the_closing_barrier(case: tuple[Analysis, dict[str, Any], str]) -> None:
    """These captures hold nothing but the steps, so both windows hold the same kernels."""
    analysis, expected, _ = case
    for lane in analysis.lanes:
        rank = expected["ranks"][str(lane.key)]
        assert lane.in_window.span_ns == pytest.approx(rank["span_ns"], rel=1e-3)
        assert lane.in_window.exposed_ns == pytest.approx(rank["exposed_comm_ns"], rel=1e-3)
        assert lane.in_window.compute_ns == pytest.approx(rank["compute_ns"], rel=1e-3)
    assert sum(lane.window.steps for lane in analysis.lanes) == expected["step_ranges"]


def test_collectives_matched_across_ranks(case: tuple[Analysis, dict[str, Any], str]) -> None:
    analysis, expected, _ = case
    matched, matching = expected["matched"], analysis.matching
    assert matching.count == matched["collectives"]
    for figure, column in (("transfer", "transfer_ns"), ("slowest", "slowest_ns"), ("span", "span_ns"),
                           ("start_skew", "skew_ns"), ("end_skew", "end_skew_ns")):
        assert matching.column(column).mean() / 1e3 == pytest.approx(matched[f"{figure}_mean_us"], rel=1e-3)
    assert np.median(matching.column("transfer_ns")) / 1e3 == pytest.approx(matched["transfer_median_us"], rel=1e-3)
    last = Counter(group.ranks[column] for group in matching.groups for column in group.last.tolist())
    assert {str(lane.key): last[lane.rank or 0] for lane in analysis.lanes} == matched["last_to_start"]


def test_calls_and_copies(case: tuple[Analysis, dict[str, Any], str]) -> None:
    analysis, expected, _ = case
    calls: Counter[str] = Counter()
    kinds: dict[str, CallKind] = {}
    for lane in analysis.lanes:
        for call in lane.calls:
            calls[call.name] += call.count
            kinds[call.name] = call.kind
    syncs = {name: count for name, count in calls.items() if kinds[name] is CallKind.SYNC}
    assert syncs == expected["sync_calls"]
    # The script did not look for cudaHostAlloc.
    others = {name: n for name, n in calls.items() if kinds[name] is not CallKind.SYNC and "HostAlloc" not in name}
    assert others == expected["alloc_calls"]
    copies: Counter[tuple[str, bool]] = Counter()
    for copy in (copy for lane in analysis.lanes for copy in lane.copies):
        copies[copy.kind.value, copy.pageable] += copy.bytes
    literal: Counter[tuple[str, bool]] = Counter()
    for row in expected["memcpy"]:
        side = row["srcKind"] if row["copyKind"] == 1 else row["dstKind"]
        literal[_COPY[row["copyKind"]], row["copyKind"] in (1, 2) and side == 0] += row["bytes"]
    assert copies == literal


def test_gpu_counters(case: tuple[Analysis, dict[str, Any], str]) -> None:
    _, expected, name = case
    found = read_timeline(sample(name)).gpu_metrics
    assert bool(found) == bool(expected.get("gpu_metrics"))
    for counter in {metric.name for metric in found}:
        of_name = [metric for metric in found if metric.name == counter]
        samples = sum(metric.samples for metric in of_name)
        literal = expected["gpu_metrics"][counter]
        assert samples == literal["n"]
        mean = sum(metric.mean * metric.samples for metric in of_name) / samples
        assert mean == pytest.approx(literal["mean"], rel=1e-3)


def test_grouped_send_and_receive_of_two_gpus() -> None:
    analysis = read_traces([sample("public/nsys-ai_mfu_2gpu_before")])
    assert analysis.devices == 2
    assert [(lane.device, lane.kernels, lane.comm_kernels) for lane in analysis.lanes] == [(0, 1993, 33), (1, 2017, 33)]
    assert [lane.in_trace.busy_ns / 1e6 for lane in analysis.lanes] == pytest.approx([270.863, 264.325], rel=1e-4)
    assert [lane.in_trace.span_ns / 1e6 for lane in analysis.lanes] == pytest.approx([299.849, 298.662], rel=1e-4)
    assert [lane.in_trace.overlap_ns for lane in analysis.lanes] == [0, 0]
    assert analysis.matching.column("transfer_ns").mean() / 1e3 == pytest.approx(175.06, abs=0.01)
    assert any("24 of 4010 kernels without a launch call" in text for text in analysis.warnings)


def test_eight_ranks_of_torch_profiler() -> None:
    analysis = read_traces(kineto_8_ranks())
    assert ([lane.rank for lane in analysis.lanes], analysis.devices) == (list(range(8)), 8)
    assert {lane.comm_kernels for lane in analysis.lanes} == {8}
    assert analysis.matching.count == 8
    group, = analysis.matching.groups
    assert [group.ranks[column] for column in group.last[:5].tolist()] == [7] * 5
    assert (int(group.transfer_ns[0]), int(group.slowest_ns[0])) == (10_000, 7_635_000)
    assert int(group.end_skew_ns.max()) <= 7_000
