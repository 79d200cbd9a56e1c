"""Every labelled trace gets its label as first finding, a good one nothing critical; and rules know their limits."""

from __future__ import annotations

from pathlib import Path

import pytest

import regress.diagnose
from regress.diagnose import COST, Rule, diagnose
from regress.diagnose.accumulation import repeats
from regress.record import Diagnosis
from regress.shelf import variants
from regress.trace.analysis import Analysis
from regress.trace.late import waiting_for
from regress.trace.names import CallKind
from regress.trace.read import read_traces
from tests.trace.made import ALL_REDUCE, Export, two_ranks
from tests.trace.samples import kineto_8_ranks, sample

LABELLED = {
    "nvlink/small_buckets": "small_collectives", "mps/small_buckets": "small_collectives",
    "mps/accum_sync": "accumulation", "mps/sync_loop": "host_sync", "mps/pageable": "pageable_copies",
    "sliced/straggler": "straggler", "mps/micro_1channel": "few_channels"}
HEALTHY = ("nvlink/good", "mps/good", "sliced/good", "mps/accum_no_sync", "mps/micro", "nvlink/micro",
           "sliced/micro_metrics")


def _everything(analysis: Analysis, against: Analysis | None = None) -> list[Diagnosis]:
    """Causes and what follows from them."""
    return [one for found in diagnose(analysis, against) for one in (found, *found.consequences)]


def _only(analysis: Analysis, rule: str, against: Analysis | None = None) -> Diagnosis | None:
    return next((found for found in _everything(analysis, against) if found.rule == rule), None)


def _of(rule: str, made: Export, folder: Path) -> Diagnosis | None:
    path = folder / f"{len(list(folder.iterdir()))}.sqlite"
    return _only(read_traces([made.write(path)]), rule)


@pytest.mark.parametrize(("name", "label"), LABELLED.items())
def test_the_label_comes_first(name: str, label: str) -> None:
    found = diagnose(read_traces([sample(name)]))
    assert found[0].rule == label
    assert found[0].cause
    assert found[0].suggestion


@pytest.mark.parametrize(("name", "healthy", "label"), [
    ("nvlink/small_buckets", "nvlink/good", "small_collectives"),
    ("mps/small_buckets", "mps/good", "small_collectives"),
    ("mps/accum_sync", "mps/accum_no_sync", "accumulation"), ("mps/sync_loop", "mps/good", "host_sync"),
    ("mps/pageable", "mps/good", "pageable_copies"), ("sliced/straggler", "sliced/good", "straggler"),
    ("mps/micro_1channel", "mps/micro", "few_channels")])
def test_the_label_comes_first_and_is_new_against_a_healthy_run(name: str, healthy: str, label: str) -> None:
    found = diagnose(read_traces([sample(name)]), read_traces([sample(healthy)]))
    assert (found[0].rule, found[0].evidence["new"]) == (label, True)


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_critical_where_nothing_is_wrong(name: str) -> None:
    assert [found.rule for found in diagnose(read_traces([sample(name)])) if found.severity == "critical"] == []


@pytest.mark.parametrize("name", [name for name in LABELLED if name != "mps/micro_1channel"])
def test_a_planted_fault_is_critical(name: str) -> None:
    assert diagnose(read_traces([sample(name)]))[0].severity == "critical"


def test_findings_are_worst_first() -> None:
    found = diagnose(read_traces([sample("mps/sync_loop")]))
    order = [regress.diagnose.SEVERITIES.index(one.severity) for one in found]
    assert order == sorted(order)


def test_against_another_run_findings_say_what_is_new() -> None:
    now, before = (read_traces([sample(f"mps/{name}")]) for name in ("sync_loop", "good"))
    found = {one.rule: one for one in diagnose(now, before)}
    assert found["host_sync"].evidence["new"] is True
    assert "not so in the run compared with" in found["host_sync"].cause
    assert found["exposed_comm"].evidence["new"] is False
    order = [(one.rule, one.severity, one.evidence.get("new")) for one in diagnose(now, before)]
    assert order == [("host_sync", "critical", True), ("exposed_comm", "warning", False), ("step_change", "info", None)]
    assert [one.rule for one in found["host_sync"].consequences] == ["launch_gaps"]


def test_every_rule_says_what_it_rests_on() -> None:
    rules = variants(regress.diagnose, Rule)
    assert len(rules) >= 20
    assert all((rule.check is None) != (rule.examine is None) for rule in rules.values())
    assert all(rule.summary and rule.source for rule in rules.values())


def test_rank_7_of_the_eight_is_who_they_wait_for() -> None:
    analysis = read_traces(kineto_8_ranks())
    found = _only(analysis, "straggler")
    assert found is not None
    assert found.evidence["rank"] == 7
    assert found.evidence["last"] == 5
    blamed = waiting_for(analysis)
    assert max(blamed, key=lambda rank: blamed[rank]) == 7


def test_one_channel_against_two_is_named_as_what_changed() -> None:
    now, before = (read_traces([sample(f"mps/{name}")]) for name in ("micro_1channel", "micro"))
    found = _only(now, "transfer_change", before)
    assert found is not None
    assert (found.evidence["channels"], found.evidence["channels_before"]) == (1, 2)
    assert _only(before, "transfer_change", now) is None
    assert _only(now, "transfer_change") is None


def test_collectives_before_are_evidence() -> None:
    now, before = (read_traces([sample(f"nvlink/{name}")]) for name in ("small_buckets", "good"))
    found = _only(now, "small_collectives", before)
    assert found is not None
    assert (found.evidence["collectives_per_step"], found.evidence["collectives_per_step_before"]) == (26, 4)


@pytest.mark.parametrize(("sizes", "times"), [
    ([1, 2, 1, 2], 2), ([1, 2, 3], 1), ([5, 5, 5], 3), ([1], 1), ([], 1), ([1, 2, 1, 2, 1], 1),
    ([1, 2, 1, 2, 1, 2, 1, 2], 4)])
def test_repeats_counts_whole_periods(sizes: list[int], times: int) -> None:
    assert repeats(sizes) == times


def _stepped(sizes: list[int], steps: int = 3, wait_ns: int = 0, operation: str = "AllReduce") -> Export:
    """Two ranks whose steps reduce these sizes, with nothing beside them; rank 0 waits that long for the first."""
    made = Export()
    for rank, pid in enumerate((10, 11)):
        made.gpu(rank, rank, pid)
        for step in range(steps):
            begin = 1_000_000 + step * 10_000_000
            made.nvtx(pid, begin - 10_000, begin + 9_000_000, "step")
            made.kernel(pid, begin, begin + 100_000, device=rank)
            for k, size in enumerate(sizes):
                start = begin + 200_000 + k * 200_000 + wait_ns
                early = wait_ns if rank == k == 0 else 0
                made.collective(pid, start - early, start + 150_000, operation, size=size, device=rank)
    return made


def test_equal_all_reduces_are_no_accumulation(tmp_path: Path) -> None:
    """Tensor parallelism makes the same all-reduce in every layer."""
    assert _of("accumulation", _stepped([8 << 20] * 8), tmp_path) is None


def test_micro_batches_are_counted(tmp_path: Path) -> None:
    found = _of("accumulation", _stepped([8 << 20, 4 << 20] * 3), tmp_path)
    assert found is not None
    assert found.evidence["reductions_per_step"] == 3


@pytest.mark.parametrize("once", [4, 8, 96])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_what_is_reduced_once_a_step_hides_no_micro_batches(once: int, place: int, tmp_path: Path) -> None:
    """A loss, a gradient's norm, a dozen numbers for the log."""
    sizes = [8 << 20, 4 << 20] * 3
    found = _of("accumulation", _stepped([*sizes[:place], once, *sizes[place:]]), tmp_path)
    assert found is not None
    assert found.evidence["reductions_per_step"] == 3
    assert _of("accumulation", _stepped([*[8 << 20] * place, once, *[8 << 20] * (6 - place)]), tmp_path) is None


def test_a_loss_hides_no_micro_batches_that_a_bias_tells_apart(tmp_path: Path) -> None:
    found = _of("accumulation", _stepped([*[8 << 20, 512] * 3, 4]), tmp_path)
    assert found is not None
    assert found.evidence["reductions_per_step"] == 3


def test_gradients_scattered_in_every_micro_batch_are_told_of_sharding(tmp_path: Path) -> None:
    """Three units, of which a call leaves half on each rank (0.75 MiB of 1.5). 12 of 150 µs where 3 would do."""
    units = [768 << 10, 896 << 10, 1 << 20]
    found = _of("accumulation", _stepped([*units * 4, 4], operation="ReduceScatter"), tmp_path)
    assert found is not None
    assert (found.severity, found.evidence["operation"], found.evidence["reductions_per_step"]) == (
        "warning", "ReduceScatter", 4)
    assert found.evidence[COST] == pytest.approx(9 * 150e-6, rel=1e-3)
    assert "set_requires_gradient_sync(False)" in found.suggestion
    assert _of("accumulation", _stepped(units, operation="ReduceScatter"), tmp_path) is None


@pytest.mark.parametrize("wait_ns", [0, 5_000_000])
def test_what_micro_batches_cost_leaves_waiting_out(wait_ns: int, tmp_path: Path) -> None:
    """Six all-reduces of 150 µs where two would do."""
    found = _of("accumulation", _stepped([8 << 20, 4 << 20] * 3, wait_ns=wait_ns), tmp_path)
    assert found is not None
    assert found.evidence[COST] == pytest.approx(4 * 150e-6, rel=1e-3)


def test_few_small_collectives_are_no_fault(tmp_path: Path) -> None:
    assert _of("small_collectives", _stepped([1 << 20] * 4), tmp_path) is None
    assert _of("small_collectives", _stepped([1 << 20] * 30), tmp_path) is not None


def test_synchronising_on_events_is_no_fault(tmp_path: Path) -> None:
    made = _stepped([8 << 20])
    for step in range(3):
        begin = 1_000_000 + step * 10_000_000
        made.call(10, begin + 1_000_000, begin + 8_000_000, "cudaEventSynchronize_v3020")
    assert _of("host_sync", made, tmp_path) is None


def test_waiting_for_the_device_while_it_runs_dry_is_one(tmp_path: Path) -> None:
    made = _stepped([8 << 20])
    for step in range(3):
        begin = 1_000_000 + step * 10_000_000
        made.call(10, begin + 400_000, begin + 4_000_000, "cudaDeviceSynchronize_v3020")
        made.kernel(10, begin + 4_500_000, begin + 4_600_000)
    found = _of("host_sync", made, tmp_path)
    assert found is not None
    assert (found.severity, found.evidence["rank"], found.evidence["call"]) == ("critical", 0, "cudaDeviceSynchronize")


def test_stream_waits_of_pageable_copies_belong_to_the_copies(tmp_path: Path) -> None:
    made = _stepped([8 << 20])
    for step in range(3):
        begin = 1_000_000 + step * 10_000_000
        made.call(10, begin + 380_000, begin + 389_000, "cudaMemcpyAsync_v3020", 9000 + step)
        made.copy(10, begin + 400_000, begin + 3_900_000, 64 << 20, correlation=9000 + step)
        made.call(10, begin + 390_000, begin + 4_000_000, "cudaStreamSynchronize_v3020")
        made.kernel(10, begin + 4_500_000, begin + 4_600_000)
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    assert _only(analysis, "host_sync") is None
    found = _only(analysis, "pageable_copies")
    assert found is not None
    assert (found.severity, found.evidence["pageable_copy_bytes_per_step"]) == ("critical", 64 << 20)


def _read_loss(made: Export, step: int, call: str) -> None:
    """What reading the loss is: 4 bytes to the host, and a call that waits for them; the next kernel comes after.

    loss.item() copies to pinned memory and waits for the stream. loss.cpu() waits inside the copying call, as the
    target is pageable, and finds the stream done.
    """
    begin = 1_000_000 + step * 10_000_000
    for rank, pid in enumerate((10, 11)):
        inside, correlation = call == "cudaMemcpyAsync", 9000 + step
        copied = begin + (8_399_000 if inside else 405_000)
        made.call(pid, begin + 400_000, copied, "cudaMemcpyAsync_v3020", correlation)
        made.call(pid, copied + 1_000, begin + 8_400_500, "cudaStreamSynchronize_v3020")
        made.copy(pid, begin + 8_390_000, begin + 8_392_000, 4, kind=2, source=2, target=0 if inside else 1,
                  device=rank, correlation=correlation)
        made.kernel(pid, begin + 8_500_000, begin + 8_600_000, device=rank)


@pytest.mark.parametrize("call", ["cudaMemcpyAsync", "cudaStreamSynchronize"])
@pytest.mark.parametrize("batch_bytes", [0, 2 << 20])
def test_reading_the_loss_every_step_is_waiting_for_the_device(batch_bytes: int, call: str, tmp_path: Path) -> None:
    """Whether or not the batch is copied from pageable memory too, with a wait of its own."""
    made = _stepped([8 << 20])
    for step in range(3):
        begin = 1_000_000 + step * 10_000_000
        if batch_bytes:
            made.call(10, begin + 105_000, begin + 109_000, "cudaMemcpyAsync_v3020", 8000 + step)
            made.copy(10, begin + 110_000, begin + 150_000, batch_bytes, correlation=8000 + step)
            made.call(10, begin + 110_000, begin + 151_000, "cudaStreamSynchronize_v3020")
        _read_loss(made, step, call)
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    found = diagnose(analysis)
    first = found[0]
    assert (first.rule, first.severity, first.evidence["call"]) == ("host_sync", "critical", call)
    assert [one.rule for one in first.consequences] == ["launch_gaps"]
    assert ".item(), .cpu()" in first.suggestion
    assert [one.rule for one in found if one.rule == "pageable_copies"] == ["pageable_copies"] * bool(batch_bytes)
    lane = analysis.lanes[1]
    assert lane.host_sync_ns == pytest.approx(3 * 8_000_000, rel=0.002)


@pytest.mark.parametrize(("call", "waiting"), [
    ("cudaMemcpyAsync_v3020", 1), ("cuMemcpyDtoHAsync_v2", 1), ("cudaMemcpy2DAsync_ptsz_v7000", 1),
    ("cudaMemcpy_v3020", 4), ("cuMemcpyDtoH_v2", 4), ("cudaMemcpyFromSymbol_v3020", 4)])
def test_a_copying_call_is_kept_only_where_it_waits(call: str, waiting: int, tmp_path: Path) -> None:
    """Told by its correlation and process: the copy to pageable memory, of calls that return late all but on-device."""
    made = two_ranks()
    for number, (kind, source, target) in enumerate([(1, 0, 2), (1, 1, 2), (2, 2, 0), (2, 2, 1), (8, 2, 2)]):
        made.call(10, 500_000 + number * 1000, 500_900 + number * 1000, call, 700 + number)
        made.copy(10, 600_000, 601_000, 4, kind=kind, source=source, target=target, correlation=700 + number)
    made.call(11, 500_000, 500_900, call, 702)
    lanes = read_traces([made.write(tmp_path / "t.sqlite")]).lanes
    assert [[(call.name, call.count) for call in lane.calls] for lane in lanes] == [[(call, waiting)], []]


def test_blocking_while_the_device_waits_for_a_late_rank_is_only_a_warning() -> None:
    """Real: ten small copies a step wait behind an all-to-all that rank 7 comes late to."""
    found = _only(read_traces(kineto_8_ranks()), "host_sync")
    assert found is not None
    assert (found.severity, found.evidence["call"]) == ("warning", "cudaStreamSynchronize")
    lane = next(lane for lane in read_traces(kineto_8_ranks()).lanes if lane.rank == 0)
    assert [(call.plain_name, call.count, call.total_ns) for call in lane.calls if call.kind is CallKind.COPY] == [
        ("cudaMemcpyAsync", 2, 903_000)]
    assert "the device itself waits for a late rank" in found.cause


def test_a_rank_with_longer_copies_does_not_hide_one_with_more_bytes(tmp_path: Path) -> None:
    """Its waits are left to the copies, so the copies must be told of."""
    made = _stepped([8 << 20])
    for step in range(3):
        begin = 1_000_000 + step * 10_000_000
        made.copy(10, begin + 50_000, begin + 400_000, 64 << 10)
        made.copy(11, begin + 50_000, begin + 250_000, 4 << 20, device=1)
    found = _of("pageable_copies", made, tmp_path)
    assert found is not None
    assert (found.evidence["rank"], found.evidence["pageable_copy_bytes_per_step"]) == (1, 4 << 20)


def test_allocations_every_step_are_found(tmp_path: Path) -> None:
    made = _stepped([8 << 20])
    for step in range(3):
        made.call(11, 1_100_000 + step * 10_000_000, 1_600_000 + step * 10_000_000, "cudaMalloc_v3020")
    found = _of("allocations", made, tmp_path)
    assert found is not None
    assert (found.evidence["rank"], found.evidence["device_allocs_per_step"]) == (1, 1.0)


def _emptied_cache(made: Export, free: str, waits: bool) -> None:
    """Ten steps of 20 ms: 20 frees of 0.5 ms and 20 allocations of 20 µs between two kernels, or beside the first."""
    for step in range(10):
        begin = 1_000_000 + step * 20_000_000
        made.nvtx(10, begin - 10_000, begin + 19_980_000, "step")
        made.kernel(10, begin, begin + (8_000_000 if waits else 18_990_000), launch=begin - 5_000)
        for k in range(20):
            made.call(10, begin + 8_000_000 + k * 500_000, begin + 8_500_000 + k * 500_000, free)
            made.call(10, begin + 18_000_000 + k * 20_000, begin + 18_020_000 + k * 20_000, "cudaMalloc_v3020")
        made.kernel(10, begin + 19_000_000, begin + 20_000_000, launch=begin + 18_450_000)


@pytest.mark.parametrize(("free", "waits", "seconds"), [
    ("cudaFree_v3020", True, 20 * 520e-6), ("cuMemRelease", True, 20 * 520e-6), ("cuMemFree_v2", True, 20 * 520e-6),
    ("cudaFreeAsync_v11020", True, 20 * 20e-6), ("cudaFreeHost_v3020", True, 20 * 20e-6),
    ("cudaFree_v3020", False, 10e-6)])
def test_freeing_device_memory_costs_what_the_device_stands_idle_for(free: str, waits: bool, seconds: float,
                                                                     tmp_path: Path) -> None:
    made = Export()
    _emptied_cache(made, free, waits)
    found = _of("allocations", made, tmp_path)
    assert found is not None
    assert found.evidence[COST] == pytest.approx(seconds)


def test_gaps_that_freeing_makes_stand_beneath_it(tmp_path: Path) -> None:
    made = Export()
    _emptied_cache(made, "cudaFree_v3020", True)
    first = diagnose(read_traces([made.write(tmp_path / "t.sqlite")]))[0]
    assert (first.rule, [one.rule for one in first.consequences]) == ("allocations", ["launch_gaps"])
    assert (first.evidence["device_allocs_per_step"], first.evidence["device_frees_per_step"]) == (20, 20)
    assert "20 times a step and frees it 20 times" in first.cause


def test_exposed_communication_says_whether_it_is_waiting() -> None:
    found = _only(read_traces([sample("nvlink/good")]), "exposed_comm")
    assert found is not None
    assert "waiting for a late rank" in found.cause
    other = _only(read_traces([sample("mps/good")]), "exposed_comm")
    assert other is not None
    assert "take longer than the computation" in other.cause


def test_unfit_measurements_are_findings(tmp_path: Path) -> None:
    sliced = _only(read_traces([sample("sliced/good")]), "unfit_measurement")
    assert sliced is not None
    assert sliced.evidence["reason"] == "time_sliced"
    made = two_ranks()
    made.nvtx(10, 1, None, "comm_regress.rank=0/4", kind=34)
    made.nvtx(11, 1, None, "comm_regress.rank=1/4", kind=34)
    missing = _of("unfit_measurement", made, tmp_path)
    assert missing is not None
    assert (missing.evidence["reason"], missing.evidence["missing"]) == ("missing_ranks", 2)


def test_a_custom_kernel_alone_gives_no_finding(tmp_path: Path) -> None:
    made = Export()
    made.kernel(10, 1000, 2000, ALL_REDUCE)
    assert diagnose(read_traces([made.write(tmp_path / "t.sqlite")])) == ()
