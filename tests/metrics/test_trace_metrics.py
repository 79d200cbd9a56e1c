"""Trace metrics: their values on samples with known figures, how they fold over ranks, and when they do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

import regress.metrics
from regress.metrics import Metric, Reading, worst
from regress.shelf import variants
from regress.trace.analysis import Analysis
from regress.trace.read import read_traces
from regress.units import Better
from tests.trace.made import ALL_REDUCE, Export, two_ranks
from tests.trace.samples import reference, sample

FROM_TRACE = {name: metric for name, metric in variants(regress.metrics, Metric).items() if metric.from_trace}


def _read(analysis: Analysis, name: str) -> Reading | None:
    metric = FROM_TRACE[name]
    assert metric.from_trace is not None
    return metric.from_trace(analysis)


def _value(analysis: Analysis, name: str) -> Reading:
    reading = _read(analysis, name)
    assert reading is not None
    return reading


def test_the_designs_trace_metrics_are_there() -> None:
    assert {"transfer_seconds", "skew_seconds", "span_seconds", "exposed_comm_ratio", "overlap_ratio",
            "gpu_compute_ratio", "gpu_busy_ratio", "sm_active_ratio", "launch_gap_ratio",
            "collectives_per_step", "message_bytes_mean", "host_sync_ratio", "pageable_copy_bytes_per_step",
            "device_allocs_per_step"} <= set(FROM_TRACE)
    assert all(metric.summary and metric.source for metric in FROM_TRACE.values())


@pytest.mark.parametrize("name", ["nvlink/good", "mps/good", "mps/pageable", "sliced/micro_metrics"])
def test_ratios_are_the_reference_of_the_worst_rank(name: str) -> None:
    folder, trace = name.split("/")
    analysis, expected = read_traces([sample(name)]), reference(folder)[trace]
    for metric in ("gpu_busy_ratio", "gpu_compute_ratio", "overlap_ratio"):
        by_key = {lane.rank: expected["ranks"][str(lane.key)][metric] for lane in analysis.lanes}
        reading = _value(analysis, metric)
        assert reading.by_rank == pytest.approx(by_key, rel=1e-2)
        assert reading.value == min(reading.by_rank.values())
    exposed = _value(analysis, "exposed_comm_ratio")
    assert exposed.value == max(exposed.by_rank.values())


def test_three_kinds_of_utilisation_differ() -> None:
    analysis = read_traces([sample("mps/good")])
    busy, compute, active = (_value(analysis, name).value for name in ("gpu_busy_ratio", "gpu_compute_ratio",
                                                                      "sm_active_ratio"))
    assert busy == pytest.approx(0.946, abs=1e-3)
    assert compute == pytest.approx(0.171, abs=1e-3)
    assert active == pytest.approx(0.197, abs=1e-3)


def test_sm_activity_is_taken_inside_the_window() -> None:
    reading = _value(read_traces([sample("sliced/micro_metrics")]), "sm_active_ratio")
    assert reading.value == pytest.approx(0.05832, abs=2e-5)


def test_counters_follow_the_range_that_is_kept_to() -> None:
    path = sample("nvlink/micro")
    whole, big, small = (_value(read_traces([path], within=text), "nvlink_rx_ratio").value
                         for text in (None, "all_reduce/268435456", "all_reduce/4096"))
    assert big > 0.5 > whole > 0.2 > small


def test_nvlink_is_absent_where_the_gpu_does_not_give_it() -> None:
    assert _read(read_traces([sample("mps/micro")]), "nvlink_rx_ratio") is None
    wired = read_traces([sample("nvlink/micro")])
    assert _value(wired, "nvlink_rx_ratio").value == pytest.approx(0.3068, abs=1e-3)
    assert _value(wired, "nvlink_tx_ratio").by_rank.keys() == {0, 1}


@pytest.mark.parametrize(("name", "per_step", "mean_bytes"), [
    ("mps/good", 4, 23_113_728), ("mps/small_buckets", 26, 3_555_958), ("mps/accum_sync", 16, 23_113_728),
    ("mps/accum_no_sync", 4, 23_113_728)])
def test_structure_of_a_step(name: str, per_step: float, mean_bytes: float) -> None:
    analysis = read_traces([sample(name)])
    assert _value(analysis, "collectives_per_step").value == per_step
    assert _value(analysis, "message_bytes_mean").value == pytest.approx(mean_bytes, abs=1)


def test_sizes_that_were_not_exported_are_not_measured() -> None:
    assert _read(read_traces([sample("sliced/straggler")]), "message_bytes_mean") is None


def test_pageable_copies_count_on_the_hosts_side_only() -> None:
    assert _value(read_traces([sample("mps/pageable")]), "pageable_copy_bytes_per_step").value == 67_125_312
    assert _value(read_traces([sample("mps/good")]), "pageable_copy_bytes_per_step").value == 0


def test_synchronisation_is_taken_from_runtime_calls() -> None:
    good, loop = (_value(read_traces([sample(f"mps/{name}")]), "host_sync_ratio").value
                  for name in ("good", "sync_loop"))
    assert (good, loop) == pytest.approx((0.196, 0.522), abs=1e-3)


def test_launch_gaps_split_by_cause() -> None:
    reading = _value(read_traces([sample("sliced/micro_metrics")]), "launch_gap_ratio")
    assert (reading.detail["late_gaps"], reading.detail["queued_gaps"]) == (2, 62)
    # 86.465 ms of gaps, of which 0.954 ms were the profiler's own.
    assert reading.detail["late_seconds"] + reading.detail["profiler_seconds"] == pytest.approx(0.086465, abs=1e-6)
    assert reading.detail["queued_seconds"] == pytest.approx(0.001114, abs=1e-6)


def test_without_steps_nothing_is_per_step() -> None:
    analysis = read_traces([sample("mps/micro")])
    for name in ("collectives_per_step", "pageable_copy_bytes_per_step", "device_allocs_per_step"):
        assert _read(analysis, name) is None


def test_allocations_count_inside_steps(tmp_path: Path) -> None:
    made = Export()
    for start in (0, 1_000_000):
        made.nvtx(10, start, start + 900_000, "step")
        made.kernel(10, start + 10_000, start + 20_000, ALL_REDUCE)
    for start, name in ((100, "cudaMalloc_v3020"), (1_000_200, "cudaMalloc_v3020"),
                        (1_000_300, "cudaMallocAsync_v11020"),
                        (1_000_400, "cudaFree_v3020"), (950_000, "cudaMalloc_v3020"),
                        (500, "cudaHostAlloc_v3020")):
        made.call(10, start, start + 50, name)
    reading = _value(read_traces([made.write(tmp_path / "t.sqlite")]), "device_allocs_per_step")
    assert reading.value == 1.5


def test_collectives_have_one_sample_each(tmp_path: Path) -> None:
    analysis = read_traces([two_ranks(collectives=4, late_ns=20_000).write(tmp_path / "t.sqlite")])
    transfer, skew, span = (_value(analysis, f"{name}_seconds") for name in ("transfer", "skew", "span"))
    assert transfer.samples == pytest.approx([100e-6] * 4)
    assert skew.value == pytest.approx(20e-6)
    assert skew.by_rank == pytest.approx({0: 0.0, 1: 20e-6})
    assert span.value == pytest.approx(120e-6)


def test_a_single_rank_has_no_transfer(tmp_path: Path) -> None:
    """Its kernels' durations hold an unknown part of waiting."""
    made = Export()
    made.kernel(10, 10_000, 90_000, ALL_REDUCE)
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    assert _read(analysis, "transfer_seconds") is None
    assert _value(analysis, "exposed_comm_ratio").value == 1.0


def test_the_worst_rank_depends_on_the_direction() -> None:
    assert worst({0: 1.0, 1: 3.0}, Better.LOWER) == 3.0
    assert worst({0: 1.0, 1: 3.0}, Better.HIGHER) == 1.0
