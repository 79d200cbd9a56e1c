"""Who is which rank, and what a trace shows to be wrong with itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from regress.errors import TraceInputError, TraceUnfitError
from regress.trace.health import require_collectives
from regress.trace.read import read_traces
from regress.trace.timeline import IdentitySource
from tests.trace.made import ALL_REDUCE, Export, kineto, kineto_rank, two_ranks
from tests.trace.samples import sample


def _warned(path: Path, text: str) -> bool:
    return any(text in warning for warning in read_traces([path]).warnings)


@pytest.mark.parametrize("kind", [34, 59])
def test_our_mark_names_the_rank(tmp_path: Path, kind: int) -> None:
    made = two_ranks()
    for pid, rank in ((10, 1), (11, 0)):
        made.nvtx(pid, 10, 20 if kind == 59 else None, f"comm_regress.rank={rank}/2", kind=kind)
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    assert [(lane.rank, lane.pid) for lane in analysis.lanes] == [(0, 11), (1, 10)]
    assert analysis.identity is IdentitySource.MARK
    assert analysis.warnings == ()


def test_nccls_communicator_payload_names_the_rank(tmp_path: Path) -> None:
    made = two_ranks()
    for pid, rank in ((10, 1), (11, 0)):
        for ranks, of in ((1, 0), (2, rank)):
            made.nvtx(pid, 10, 20, "ncclCommInitRankConfig", json_text=f'{{"NCCL communicator ID": 77, '
                      f'"No. of ranks": {ranks}, "Rank": {of}, "CUDA device": 0}}')
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    assert [(lane.rank, lane.pid) for lane in analysis.lanes] == [(0, 11), (1, 10)]
    assert analysis.identity is IdentitySource.NCCL_INIT


def test_order_is_the_last_resort_and_is_said(tmp_path: Path) -> None:
    analysis = read_traces([two_ranks(pids=(31, 30)).write(tmp_path / "t.sqlite")])
    assert [(lane.rank, lane.device, lane.pid) for lane in analysis.lanes] == [(0, 0, 31), (1, 1, 30)]
    assert analysis.identity is IdentitySource.ORDER
    assert any("does not say which rank" in text for text in analysis.warnings)


def test_one_process_with_two_gpus_is_two_ranks(tmp_path: Path) -> None:
    made = Export()
    for device in (0, 1):
        made.gpu(device, device, 10)
        made.all_reduce(10, 10_000 + device * 50, 90_000, device=device)
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    assert (len(analysis.lanes), analysis.devices, analysis.matching.count) == (2, 2, 1)


def test_a_stray_kernel_on_another_gpu_makes_no_rank(tmp_path: Path) -> None:
    """`.cuda()` before `set_device`: rank 1 fills a tensor on GPU 0 once, beside rank 0."""
    made = two_ranks()
    made.kernel(11, 900_000, 902_000, "FillFunctor", device=0)
    for pid, rank in ((10, 0), (11, 1)):
        made.nvtx(pid, 10, 20, f"comm_regress.rank={rank}/2", kind=59)
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    found = [(lane.rank, lane.pid, lane.device, lane.kernels) for lane in analysis.lanes]
    assert found == [(0, 10, 0, 8), (1, 11, 1, 8)]
    assert (analysis.identity, analysis.matching.count) == (IdentitySource.MARK, 4)
    assert analysis.warnings == ("rank 1 communicates on GPU 1 and ran 1 kernel on GPU 0 too (before set_device?): "
                                 "what runs there is left out",)


def test_a_process_that_only_computes_is_still_refused(tmp_path: Path) -> None:
    made = two_ranks()
    for device in (2, 3):
        made.kernel(12, 900_000, 902_000, device=device)
    with pytest.raises(TraceUnfitError, match="has kernels but no collective, while others have"):
        read_traces([made.write(tmp_path / "t.sqlite")])


def test_missing_ranks_are_said(tmp_path: Path) -> None:
    files = [kineto(tmp_path / f"{r}.json", kineto_rank(r, 4), distributedInfo={"rank": r, "world_size": 4})
             for r in (0, 2)]
    analysis = read_traces(files)
    assert analysis.health.missing_ranks == (1, 3)
    assert any("2 of 4 ranks have no trace (rank 1, 3)" in text for text in analysis.warnings)


def test_fewer_collectives_than_planned_are_unfit(tmp_path: Path) -> None:
    lanes = read_traces([two_ranks(collectives=4).write(tmp_path / "t.sqlite")]).lanes
    require_collectives(lanes, 4)
    with pytest.raises(TraceUnfitError, match="rank 0 shows 4 collectives of 5 planned"):
        require_collectives(lanes, 5)


def test_ranks_that_differ_in_count_are_matched_up_to_the_shorter(tmp_path: Path) -> None:
    made = two_ranks(collectives=4)
    made.all_reduce(10, 9_000_000, 9_100_000)
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    assert analysis.matching.count == 4
    assert any("rank 1 shows 4 collectives where rank 0 shows 5" in text for text in analysis.warnings)


def test_collectives_that_disagree_are_left_out(tmp_path: Path) -> None:
    made = Export()
    for pid, size in ((10, 64), (11, 128)):
        made.all_reduce(pid, 10_000, 20_000, size=size)
        made.all_reduce(pid, 30_000, 40_000, size=256)
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    assert analysis.matching.groups[0].size_bytes.tolist() == [256]
    assert any("1 of 2 collectives differ in operation or size" in text for text in analysis.warnings)


def test_lost_launches_and_kernels_are_counted(tmp_path: Path) -> None:
    made = two_ranks()
    made.kernel(10, 5_000_000, 5_100_000, launch=-1)
    made.call(11, 5_000_000, 5_001_000, "cudaLaunchKernel_v7000", 9_999)
    made.call(11, 5_000_000, 5_001_000, "cudaGraphLaunch_v10000", 9_998)
    path = made.write(tmp_path / "t.sqlite")
    assert _warned(path, "1 of 17 kernels without a launch call")
    assert _warned(path, "1 launch call without a kernel")


def test_launches_captured_into_a_graph_are_not_lost(tmp_path: Path) -> None:
    made = two_ranks()
    made.call(11, 5_000_000, 5_000_100, "cudaStreamBeginCapture_v10000", 9_990)
    made.call(11, 5_001_000, 5_001_100, "cudaLaunchKernelExC_v11060", 9_991)
    made.call(11, 5_001_000, 5_001_100, "cudaLaunchKernel_v7000", 9_992, thread=8)
    made.call(11, 5_002_000, 5_002_100, "cudaStreamEndCapture_v10000", 9_993)
    made.call(11, 5_003_000, 5_003_100, "cudaLaunchKernel_v7000", 9_994)
    assert _warned(made.write(tmp_path / "t.sqlite"), "2 launch calls without a kernel")


def test_impossible_durations_are_said_and_left_out(tmp_path: Path) -> None:
    made = two_ranks()
    made.kernel(10, 5_000_000, 4_000_000)
    made.kernel(10, 6_000_000, 6_000_000)
    path = made.write(tmp_path / "t.sqlite")
    assert _warned(path, "1 kernel ending before the start")
    assert _warned(path, "1 kernel without a duration")
    assert read_traces([path]).lanes[0].kernels == 9


def test_clipped_ranges_are_said(tmp_path: Path) -> None:
    made = two_ranks()
    made.nvtx(10, 500, None, "step")
    assert _warned(made.write(tmp_path / "t.sqlite"), "1 range still open when the capture ended")


@pytest.mark.parametrize(("text", "said"), [
    ("Number of incomplete CUPTI events dropped: 12", True), ("Reached the size limit", True),
    ("Number of incomplete CUPTI events dropped: 0", False), ("Not all CUDA events might have been collected.", False)])
def test_only_diagnostics_of_lost_events_are_shown(tmp_path: Path, text: str, said: bool) -> None:
    made = two_ranks()
    made.row("DIAGNOSTIC_EVENT", "timestamp,severity,text", 1, 2, text)
    assert _warned(made.write(tmp_path / "t.sqlite"), text) is said


def test_profiler_overhead_is_taken_out_of_gaps(tmp_path: Path) -> None:
    made = Export()
    made.kernel(10, 0, 100_000, launch=-1)
    made.kernel(10, 1_100_000, 1_200_000, ALL_REDUCE, launch=900_000)
    made.row("PROFILER_OVERHEAD", 'start,"end",globalTid', 200_000, 800_000, (1 << 48) | (10 << 24) | 7)
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    gaps = analysis.lanes[0].gaps
    assert (gaps.late_ns, gaps.profiler_ns, gaps.queued_ns) == (400_000, 600_000, 0)
    assert any("profiler itself held the process for 0.6 ms" in text for text in analysis.warnings)


def test_gaps_are_late_queued_or_unknown(tmp_path: Path) -> None:
    made = Export()
    made.kernel(10, 0, 100, launch=-1)
    made.kernel(10, 300, 400, launch=50)
    made.kernel(10, 900, 1000, launch=600)
    made.kernel(10, 1070, 1100, launch=-1)
    gaps = read_traces([made.write(tmp_path / "t.sqlite")]).lanes[0].gaps
    assert (gaps.queued_ns, gaps.late_ns, gaps.unknown_ns) == (200, 500, 70)
    assert (gaps.queued, gaps.late, gaps.unknown, gaps.longest_late_ns) == (1, 1, 1, 500)


def test_long_gaps_are_late_ones_from_a_millisecond_on(tmp_path: Path) -> None:
    made = Export()
    for at, launch in ((0, -1), (1_100_000, 1_000_000), (2_199_999, 2_100_000), (5_299_999, 5_200_000),
                       (9_399_999, 5_200_001)):
        made.kernel(10, at, at + 100_000, launch=launch)
    gaps = read_traces([made.write(tmp_path / "t.sqlite")]).lanes[0].gaps
    assert (gaps.late, gaps.queued, gaps.late_ns) == (3, 1, 4_999_999)
    assert (gaps.long, gaps.long_ns) == (2, 4_000_000)


@pytest.mark.parametrize("name", ["sliced/good", "sliced/straggler", "sliced/micro_metrics"])
def test_a_sliced_gpu_is_noticed(name: str) -> None:
    assert read_traces([sample(name)]).health.time_sliced


@pytest.mark.parametrize("name", ["mps/good", "mps/micro", "mps/accum_sync", "nvlink/good", "nvlink/micro"])
def test_ranks_side_by_side_are_not_taken_for_sliced(name: str) -> None:
    assert not read_traces([sample(name)]).health.time_sliced


def test_clocks_of_two_hosts_are_put_together_by_ends(tmp_path: Path) -> None:
    files = []
    for rank, shift in ((0, 0.0), (1, 5_000.0)):
        events = kineto_rank(rank, late_us=rank * 30.0)
        for event in events:
            event["ts"] = float(str(event["ts"])) + shift
        files.append(kineto(tmp_path / f"{rank}.json", events, host_name=f"node{rank}",
                            distributedInfo={"rank": rank, "world_size": 2}))
    analysis = read_traces(files)
    assert analysis.matching.column("skew_ns").tolist() == [30_000]
    assert any("clocks differ: rank" in text for text in analysis.warnings)


def test_many_files_read_in_parallel_give_the_same(tmp_path: Path) -> None:
    files = [kineto(tmp_path / f"{r}.json", kineto_rank(r, 6), distributedInfo={"rank": r, "world_size": 6})
             for r in range(6)]
    alone, together = read_traces(files, workers=1), read_traces(files, workers=2)
    assert [lane.in_trace for lane in alone.lanes] == [lane.in_trace for lane in together.lanes]
    assert alone.matching.column("span_ns").tolist() == together.matching.column("span_ns").tolist()


def _init(made: Export, pid: int, communicator: int, rank: int, ranks: int = 2) -> None:
    known = f'"NCCL communicator ID": {communicator}, ' if communicator else ""
    made.nvtx(pid, 10, 20, "ncclCommInitRankConfig",
              json_text=f'{{{known}"No. of ranks": {ranks}, "Rank": {rank}, "CUDA device": 0}}')


def _with_groups(inits: Sequence[tuple[int, int, int]], pids: Sequence[int] = (10, 11, 12, 13),
                 world_communicator: int = 9) -> Export:
    """A process a GPU that all-reduce together; inits: pid, communicator and rank in a group of two."""
    made = Export()
    for device, pid in enumerate(pids):
        made.gpu(device, device, pid)
        made.all_reduce(pid, 50_000 + device * 100, 90_000, device=device, communicator=world_communicator)
    for pid, communicator, rank in inits:
        _init(made, pid, communicator, rank)
    return made


GROUPS = ((10, 71, 0), (11, 71, 1), (12, 72, 0), (13, 72, 1))


@pytest.mark.parametrize("inits", [
    GROUPS,
    tuple((pid, 0, rank) for pid, _, rank in GROUPS),
    ((10, 81, 0), (11, 82, 0), (12, 81, 1), (13, 82, 1)),
    ((12, 72, 0), (13, 72, 1)),
], ids=["tensor parallel", "without communicator ids", "data parallel", "one group alone"])
def test_groups_made_inside_the_capture_are_not_taken_for_the_world(
        inits: tuple[tuple[int, int, int], ...], tmp_path: Path) -> None:
    """The world's communicator was made before the capture: what its ranks are is not in the trace."""
    analysis = read_traces([_with_groups(inits).write(tmp_path / "t.sqlite")])
    assert [(lane.rank, lane.pid, lane.world_size) for lane in analysis.lanes] == [
        (rank, pid, None) for rank, pid in enumerate((10, 11, 12, 13))]
    assert analysis.identity is IdentitySource.ORDER
    assert analysis.matching.count == 1
    assert [text for text in analysis.warnings if "rank" in text] == [
        "the trace does not say which rank a process is: ranks are by order of files, devices and processes"]


def test_groups_of_unequal_size_are_no_two_runs(tmp_path: Path) -> None:
    made = _with_groups(GROUPS[:2], pids=(10, 11, 12, 13, 14))
    for rank, pid in enumerate((12, 13, 14)):
        _init(made, pid, 72, rank, 3)
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    assert [lane.rank for lane in analysis.lanes] == [0, 1, 2, 3, 4]


def test_a_process_that_never_communicates_is_still_no_rank(tmp_path: Path) -> None:
    made = _with_groups(GROUPS[:2], pids=(10, 11))
    made.kernel(12, 50_000, 60_000, device=2)
    analysis = read_traces([made.write(tmp_path / "t.sqlite")])
    assert (len(analysis.lanes), analysis.identity) == (2, IdentitySource.NCCL_INIT)
    assert any("1 processes with kernels are no rank" in text for text in analysis.warnings)


def test_groups_of_one_run_in_a_file_a_node(tmp_path: Path) -> None:
    files = [_with_groups(GROUPS[i:i + 2], pids=(10 + i, 11 + i)).write(tmp_path / f"n{i}.sqlite") for i in (0, 2)]
    analysis = read_traces(files)
    assert [(lane.rank, Path(lane.file).name) for lane in analysis.lanes] == [
        (0, "n0.sqlite"), (1, "n0.sqlite"), (2, "n2.sqlite"), (3, "n2.sqlite")]


@pytest.mark.parametrize("second", [
    _with_groups(((10, 72, 0), (11, 72, 1)), pids=(10, 11), world_communicator=8),
    _with_groups(((10, 0, 0), (11, 0, 1)), pids=(10, 11), world_communicator=0),
    _with_groups(GROUPS[:2], pids=(10, 11)),
], ids=["another run", "nothing in common", "a copy"])
def test_two_runs_are_refused_although_each_has_its_ranks_from_nccl(second: Export, tmp_path: Path) -> None:
    first = _with_groups(GROUPS[:2], pids=(10, 11))
    files = [made.write(tmp_path / f"{name}.sqlite") for name, made in (("a", first), ("b", second))]
    with pytest.raises(TraceInputError, match="rank 0 is in it and also in"):
        read_traces(files)


def test_two_runs_one_after_the_other_in_one_capture_are_refused(tmp_path: Path) -> None:
    made = _with_groups(GROUPS[:2], pids=(10, 11))
    for rank, pid in enumerate((20, 21)):
        made.all_reduce(pid, 500_000_000, 500_090_000, device=rank, communicator=8)
        _init(made, pid, 72, rank)
    with pytest.raises(TraceInputError, match="rank 0 is in it and also in"):
        read_traces([made.write(tmp_path / "t.sqlite")])
