"""What nsys's versions do differently, and what made-up exports must give."""

from __future__ import annotations

import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from regress.errors import TraceInputError
from regress.step_picture import step_picture
from regress.trace.messages import message_sizes
from regress.trace.read import read_timeline, read_traces
from regress.trace.sqlite import read_sqlite
from regress.trace.timeline import ReadOptions
from regress.trace.window import WindowSource
from tests.trace.made import ALL_REDUCE, Export, payload, two_ranks
from tests.trace.samples import sample


def test_exports_of_nsys_2022_have_no_version(tmp_path: Path) -> None:
    timeline = read_sqlite(two_ranks().write(tmp_path / "t.sqlite", version=None))
    assert timeline.version == "nsys before 2023"
    assert any("names no schema version" in text for text in timeline.warnings)
    assert len(timeline.kernels) == 16


def test_the_meta_table_of_2023_is_read(tmp_path: Path) -> None:
    timeline = read_sqlite(two_ranks().write(tmp_path / "t.sqlite", version="3.1.7", meta="EXPORT_META_DATA"))
    assert timeline.warnings == ()


def test_a_newer_minor_schema_warns_and_is_read(tmp_path: Path) -> None:
    timeline = read_sqlite(two_ranks().write(tmp_path / "t.sqlite", version="3.27.0"))
    assert any("3.27.0 is newer" in text for text in timeline.warnings)
    assert len(timeline.comm.kernel) == 8


@pytest.mark.parametrize("version", ["4.0.0", "2.9.1", "unreadable"])
def test_an_unknown_major_schema_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(TraceInputError, match=r"schema .* accepted: schemas 3\.\*"):
        read_sqlite(two_ranks().write(tmp_path / "t.sqlite", version=version))


def test_suffixed_tables_are_of_the_same_family(tmp_path: Path) -> None:
    plain = read_traces([two_ranks().write(tmp_path / "a.sqlite")])
    suffixed = read_traces([two_ranks().write(tmp_path / "b.sqlite", suffix={
        "CUPTI_ACTIVITY_KIND_KERNEL": "_V3", "NVTX_EVENTS": "_V2", "CUPTI_ACTIVITY_KIND_RUNTIME": "_V2"})])
    assert [lane.in_trace for lane in suffixed.lanes] == [lane.in_trace for lane in plain.lanes]
    assert suffixed.matching.groups[0].size_bytes.tolist() == [1 << 20] * 4


def test_rows_in_any_order_give_the_same_figures(tmp_path: Path) -> None:
    made, shuffled = two_ranks(collectives=20, late_ns=7_000), two_ranks(collectives=20, late_ns=7_000)
    for _, rows in shuffled.tables.values():
        rows.sort(key=lambda row: zlib.crc32(repr(row).encode()))
    a, b = (read_traces([export.write(tmp_path / f"{i}.sqlite")]) for i, export in enumerate((made, shuffled)))
    assert [(x.in_trace, x.gaps, x.kernels) for x in a.lanes] == [(x.in_trace, x.gaps, x.kernels) for x in b.lanes]
    assert a.matching.column("skew_ns").tolist() == b.matching.column("skew_ns").tolist()


def test_missing_tables_read_as_not_traced(tmp_path: Path) -> None:
    made = Export()
    made.kernel(10, 1000, 5000, launch=-1)
    made.tables.pop("CUPTI_ACTIVITY_KIND_RUNTIME", None)
    timeline = read_timeline(made.write(tmp_path / "t.sqlite"))
    assert (len(timeline.kernels), len(timeline.calls.start), len(timeline.copies.start)) == (1, 0, 0)
    assert timeline.lost.kernels_without_launch == 1


def test_a_table_without_a_needed_column_is_named(tmp_path: Path) -> None:
    made = Export()
    made.row("CUPTI_ACTIVITY_KIND_KERNEL", 'start,"end",globalPid', 1, 2, 3)
    with pytest.raises(TraceInputError, match="CUPTI_ACTIVITY_KIND_KERNEL has no column deviceId"):
        read_sqlite(made.write(tmp_path / "t.sqlite"))


def test_a_table_without_rows_is_not_asked_for_columns(tmp_path: Path) -> None:
    path = two_ranks().write(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (renamed)")
    assert len(read_sqlite(path).kernels) == 2 * 4 * 2


def test_two_processes_on_one_device_do_not_merge(tmp_path: Path) -> None:
    made = Export()
    made.kernel(10, 0, 100_000, ALL_REDUCE, launch=-1)
    made.kernel(11, 50_000, 150_000, "gemm", launch=-1)
    made.kernel(11, 200_000, 250_000, ALL_REDUCE, launch=-1)
    lanes = read_traces([made.write(tmp_path / "t.sqlite")]).lanes
    assert [lane.in_trace.overlap_ns for lane in lanes] == [0, 0]
    assert [lane.in_trace.exposed_ns for lane in lanes] == [100_000, 50_000]


def test_equal_correlation_ids_of_two_processes_stay_apart(tmp_path: Path) -> None:
    made = Export()
    for pid, late in ((10, 0), (11, 500)):
        made.correlation = 100
        made.kernel(pid, 10_000, 20_000, ALL_REDUCE, launch=5_000 + late)
    launched = read_sqlite(made.write(tmp_path / "t.sqlite")).kernels.launch
    assert launched.tolist() == [5_000, 5_500]


def test_a_driver_call_inside_a_runtime_call_is_not_the_launch(tmp_path: Path) -> None:
    made = Export()
    made.kernel(10, 10_000, 20_000, launch=6_000)
    made.call(10, 6_200, 6_400, "cuLaunchKernelEx", made.correlation)
    timeline = read_sqlite(made.write(tmp_path / "t.sqlite"))
    assert timeline.kernels.launch.tolist() == [6_000]


def test_payloads_name_communicators_beyond_63_bits(tmp_path: Path) -> None:
    communicator = 16364257013156872161
    made = Export()
    for pid in (10, 11):
        made.all_reduce(pid, 10_000, 90_000, size=4096, communicator=communicator)
    group, = read_traces([made.write(tmp_path / "t.sqlite")]).matching.groups
    assert (group.communicator, group.size_bytes.tolist()) == (communicator, [4096])


def test_json_payloads_serve_where_blobs_were_not_exported(tmp_path: Path) -> None:
    made = Export()
    made.kernel(10, 10_000, 20_000, ALL_REDUCE)
    made.nvtx(10, 7_000, 9_500, "ncclAllReduce", json_text='{"NCCL communicator ID":13969233454435520444,'
              '"Message size [bytes]":16777216,"Reduction operation":"Sum"}')
    comm = read_sqlite(made.write(tmp_path / "t.sqlite")).comm
    assert (comm.communicator.tolist(), comm.size_bytes.tolist()) == ([13969233454435520444], [16777216])


def _grouped(made: Export, pid: int, start: int, end: int, *members: tuple[str, int]) -> None:
    """A kernel of one group of point-to-point operations; members: name and bytes."""
    made.kernel(pid, start, end, "ncclDevKernel_SendRecv", launch=start - 2_000)
    made.nvtx(pid, start - 40_000, start - 39_000, "ncclGroupStart")
    for k, (name, size) in enumerate(members):
        made.nvtx(pid, start - 30_000 + k * 1000, start - 29_500 + k * 1000, name, blob=payload(9, size))
    made.nvtx(pid, start - 3_000, start - 500, "ncclGroupEnd")


@pytest.mark.parametrize(("members", "size"), [
    ((("ncclSend", 512), ("ncclRecv", 512)), 512),
    ((("ncclSend", 512), ("ncclRecv", 128)), 512),
    ((("ncclSend", 256), ("ncclSend", 256), ("ncclRecv", 256), ("ncclRecv", 256)), 512),
    ((("ncclSend", 256), ("ncclSend", 256)), 512),
    ((("ncclAllReduce", 256), ("ncclSend", 256), ("ncclRecv", 256)), 512),
], ids=["both ways", "more one way", "several both ways", "one way", "beside another"])
def test_a_group_counts_its_operations(members: tuple[tuple[str, int], ...], size: int, tmp_path: Path) -> None:
    """Sending and receiving go on at once, so the bytes of a group are those of its fuller direction."""
    made = Export()
    _grouped(made, 10, 50_000, 60_000, *members)
    comm = read_sqlite(made.write(tmp_path / "t.sqlite")).comm
    assert (comm.grouped.tolist(), comm.size_bytes.tolist(), comm.communicator.tolist()) == (
        [len(members)], [size], [9])


def test_busbw_of_send_and_receive_is_that_of_nccl_tests(tmp_path: Path) -> None:
    """sendrecv.cu: every rank sends S to the next and receives S, and busbw is S over time."""
    made = Export()
    for device, pid in enumerate((10, 11)):
        made.gpu(device, device, pid)
        _grouped(made, pid, 1_000_000, 2_000_000, ("ncclSend", 1 << 20), ("ncclRecv", 1 << 20))
    row, = message_sizes(read_traces([made.write(tmp_path / "t.sqlite")]))
    assert (row.operation, row.size_bytes) == ("SendRecv", 1 << 20)
    assert row.busbw_bytes_per_second == pytest.approx((1 << 20) / 1e-3)


def test_busbw_of_an_all_to_all_is_that_of_nccl_tests(tmp_path: Path) -> None:
    """alltoall.cu: S is what a rank sends to all, busbw is S (n-1)/n over time; NCCL's range says what goes to one."""
    made = Export()
    for rank in range(8):
        made.gpu(rank, rank, 10 + rank)
        made.kernel(10 + rank, 1_000_000, 1_200_000, "ncclDevKernel_SendRecv", device=rank)
        made.nvtx(10 + rank, 997_000, 999_500, "ncclAlltoAll", blob=payload(9, 4 << 20))
    row, = message_sizes(read_traces([made.write(tmp_path / "t.sqlite")]))
    assert (row.operation, row.size_bytes) == ("AllToAll", 32 << 20)
    assert row.busbw_bytes_per_second == pytest.approx((32 << 20) * 7 / 8 / 200e-6)


def test_all_to_alls_of_one_group_are_one(tmp_path: Path) -> None:
    made = Export()
    for device, pid in enumerate((10, 11)):
        made.gpu(device, device, pid)
        _grouped(made, pid, 1_000_000, 2_000_000, ("ncclAlltoAll", 1 << 20), ("ncclAlltoAll", 3 << 20))
    row, = message_sizes(read_traces([made.write(tmp_path / "t.sqlite")]))
    assert (row.operation, row.size_bytes) == ("AllToAll", 8 << 20)
    assert row.busbw_bytes_per_second == pytest.approx((8 << 20) / 2 / 1e-3)


def test_steps_bound_the_window_and_count_what_they_launch(tmp_path: Path) -> None:
    made = Export()
    for pid in (10, 11):
        made.kernel(pid, 1_000_000, 1_500_000, "warm up")
        made.nvtx(pid, 1_990_000, 2_400_000, "step")
        made.kernel(pid, 2_000_000, 2_100_000)
        # DDP's backward launches from another thread.
        made.kernel(pid, 2_100_000, 2_300_000, ALL_REDUCE, thread=8)
        made.kernel(pid, 9_000_000, 9_100_000, "much later")
        made.kernel(pid, 9_200_000, 9_300_000, "and later")
        made.kernel(pid, 9_400_000, 9_500_000, ALL_REDUCE)
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    lane = analysis.lanes[0]
    assert (lane.window.source, lane.window.start, lane.window.end) == (WindowSource.STEPS, 2_000_000, 2_300_000)
    assert lane.collectives.in_steps.tolist() == [True, False]
    assert (lane.in_window.exposed_ns, lane.in_trace.exposed_ns) == (200_000, 300_000)


def _steps_in_steps(folder: Path) -> Path:
    """Two training steps that touch, each `ProfilerStep#n` around a second name of the same step."""
    made = two_ranks(collectives=4)
    for pid in (10, 11):
        for step in range(2):
            begin = 950_000 + step * 600_000
            made.nvtx(pid, begin, begin + 600_000, f"ProfilerStep#{step}")
            made.nvtx(pid, begin, begin + 300_000, "step")
            made.nvtx(pid, begin + 300_000, begin + 600_000, "step")
    return made.write(folder / "t.sqlite")


def test_a_step_inside_a_step_counts_once(tmp_path: Path) -> None:
    path = _steps_in_steps(tmp_path)
    analysis = read_traces([path])
    assert [(lane.window.steps, int(lane.collectives.in_steps.sum())) for lane in analysis.lanes] == [(2, 4), (2, 4)]
    assert read_traces([path], within="ProfilerStep#1").steps == 1
    view = step_picture([path], "run")
    assert view is not None
    assert (view.title, len(view.collectives)) == ("run, step 2 of 2 traced", 2)


def test_the_same_step_named_twice_counts_once(tmp_path: Path) -> None:
    made = two_ranks(collectives=1)
    for pid in (10, 11):
        for text in ("step", "ProfilerStep#0"):
            made.nvtx(pid, 950_000, 1_200_000, text)
    assert read_traces([made.write(tmp_path / "t.sqlite")]).steps == 1


def test_an_analysis_can_be_kept_to_one_case(tmp_path: Path) -> None:
    made = two_ranks(collectives=4)
    for pid in (10, 11):
        made.nvtx(pid, 1_250_000, 1_850_000, "case:allreduce[1MiB-float32-2xcuda]")
    path = made.write(tmp_path / "t.sqlite")
    analysis = read_traces([path], within="case:allreduce[1MiB-float32-2xcuda]")
    assert [lane.kernels for lane in analysis.lanes] == [4, 4]
    assert analysis.matching.count == 2
    assert read_traces([path]).matching.count == 4


@pytest.mark.parametrize(("text", "operation"), [
    ("all_reduce/16777216", "AllReduce"), ("all_gather/4096", "AllGather")])
def test_any_range_can_be_kept_to(text: str, operation: str) -> None:
    """25 timed calls; the five of warm-up lie outside the range."""
    analysis = read_traces([sample("nvlink/micro")], within=text)
    assert [(row.operation, row.size_bytes, row.count) for row in message_sizes(analysis)] == [
        (operation, int(text.partition("/")[2]), 25)]


def test_nccls_own_ranges_can_be_kept_to(tmp_path: Path) -> None:
    analysis = read_traces([two_ranks(collectives=4).write(tmp_path / "t.sqlite")], within="ncclAllReduce")
    assert [(lane.kernels, lane.comm_kernels) for lane in analysis.lanes] == [(4, 4), (4, 4)]
    assert analysis.matching.groups[0].size_bytes.tolist() == [1 << 20] * 4


def test_custom_kernels_communicate_when_told_so(tmp_path: Path) -> None:
    import re

    made = Export()
    made.kernel(10, 10_000, 20_000, "cross_device_reduce_1stage")
    path = made.write(tmp_path / "t.sqlite")
    assert len(read_sqlite(path).comm.kernel) == 0
    found = read_sqlite(path, ReadOptions(custom_comm=re.compile("cross_device_reduce")))
    assert len(found.comm.kernel) == 1


def test_a_cpu_run_under_nsys_has_collectives_and_no_device(tmp_path: Path) -> None:
    made = Export()
    for rank, pid in enumerate((10, 11)):
        made.nvtx(pid, 500, 500, f"comm_regress.rank={rank}/2", kind=34)
        for k in range(3):
            made.nvtx(pid, 1000 + k * 1000 + rank * 100, 1900 + k * 1000, "allreduce/4096")
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    assert (analysis.devices, [lane.rank for lane in analysis.lanes]) == (0, [0, 1])
    assert analysis.matching.column("skew_ns").tolist() == [100, 100, 100]
    assert analysis.matching.groups[0].size_bytes.tolist() == [4096] * 3


@pytest.mark.parametrize("text", ["batch/3", "epoch/1", "reduce_lr/2", "send_batch/7", "prefetch_gather/1",
                                  "allreduce/" + "9" * 30])
@pytest.mark.parametrize("registered", [True, False])
def test_a_range_that_is_no_collective_makes_no_rank(text: str, registered: bool, tmp_path: Path) -> None:
    """A data loader's process has ranges and no kernel, and is nothing to wait for."""
    made = two_ranks()
    made.nvtx(99, 10_000, 20_000, text, registered=registered)
    made.nvtx(99, 30_000, None, text, registered=registered)
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    assert [lane.pid for lane in analysis.lanes] == [10, 11]
    assert not any("still open" in warning for warning in analysis.warnings)


@pytest.mark.parametrize(("text", "operation"), [
    ("all_reduce/4096", "AllReduce"), ("allreduce_fp8/4096", "AllReduce"), ("reduce/4096", "Reduce"),
    ("reduce_scatter/4096", "ReduceScatter"), ("bcast/4096", "Broadcast"), ("all_to_all/4096", "AllToAll")])
def test_what_ranges_of_collectives_are_called(text: str, operation: str, tmp_path: Path) -> None:
    made = Export()
    for rank, pid in enumerate((10, 11)):
        made.nvtx(pid, 500, 500, f"comm_regress.rank={rank}/2", kind=34)
        made.nvtx(pid, 1000, 1900, text)
    rows = message_sizes(read_traces([made.write(tmp_path / "t.sqlite")]))
    assert [(row.operation, row.size_bytes) for row in rows] == [(operation, 4096)]


def test_channels_are_the_thread_blocks_of_nccls_kernels() -> None:
    wide, narrow = (read_traces([sample(f"mps/{name}")]) for name in ("micro", "micro_1channel"))
    assert (max(wide.matching.groups[0].channels), max(narrow.matching.groups[0].channels)) == (2, 1)
