"""torch.profiler's files: stamps, metadata, CPU runs, and streaming in little memory."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest

from regress.errors import TraceUnfitError
from regress.trace.event_stream import EventStream
from regress.trace.kineto import read_kineto
from regress.trace.kineto_events import to_ns
from regress.trace.names import OPERATIONS
from regress.trace.read import read_traces
from regress.trace.timeline import IdentitySource, Tracer
from tests.trace.made import kineto, kineto_rank
from tests.trace.samples import kineto_8_ranks


@pytest.mark.parametrize(("text", "expected"), [
    ("1694128201436304", 1694128201436304000), ("5101422793404.093", 5101422793404093), ("0.5", 500),
    ("12.3456", 12346), ("-3.25", -3250), ("7", 7000), ("1.5e3", 1500000), ("\"8\"", 8000)])
def test_microseconds_become_whole_nanoseconds_without_a_float(text: str, expected: int) -> None:
    assert to_ns(msgspec.Raw(text.encode())) == expected


def test_launches_captured_into_a_graph_are_not_lost(tmp_path: Path) -> None:
    def call(name: str, start: float, correlation: int, thread: int = 1) -> dict[str, object]:
        return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 40, "tid": thread, "ts": start, "dur": 1.0,
                "args": {"correlation": correlation}}

    path = kineto(tmp_path / "r0.json", [
        *kineto_rank(0), call("cudaStreamBeginCapture", 400.0, 11), call("cudaLaunchKernelExC", 402.0, 12),
        call("cudaLaunchKernel", 402.0, 13, thread=2), call("cudaStreamEndCapture", 404.0, 14),
        call("cudaLaunchKernel", 406.0, 15)])
    assert read_kineto(path).lost.launches_without_kernel == 2


def test_metadata_of_collectives(tmp_path: Path) -> None:
    files = [kineto(tmp_path / f"r{r}.json", kineto_rank(r, late_us=r * 20.5), host_name="node",
                    baseTimeNanoseconds=1_790_857_026_000_000_000,
                    distributedInfo={"backend": "nccl", "rank": r, "world_size": 2}) for r in (0, 1)]
    analysis = read_traces(files)
    group, = analysis.matching.groups
    assert group.communicator != 0
    assert (group.size_bytes.tolist(), group.channels.tolist()) == ([2048], [4])
    assert OPERATIONS[group.operation[0]] == "AllReduce"
    assert (group.skew_ns.tolist(), group.transfer_ns.tolist()) == ([20_500], [79_500])
    assert (analysis.tracer, analysis.identity, analysis.devices) == (Tracer.KINETO, IdentitySource.DISTRIBUTED_INFO, 2)
    assert (analysis.steps, analysis.lanes[0].collectives.in_steps.tolist()) == (1, [True])


def test_the_dtype_and_direction_decide_the_bytes(tmp_path: Path) -> None:
    events = kineto_rank(0)
    args = events[4]["args"]
    assert isinstance(args, dict)
    args |= {"Collective name": "_reduce_scatter_base", "In msg nelems": 4096, "Out msg nelems": 512, "dtype": "Float"}
    comm = read_kineto(kineto(tmp_path / "t.json", events)).comm
    assert (OPERATIONS[comm.operation[0]], comm.size_bytes.tolist()) == ("ReduceScatter", [2048])


def test_gzip_is_told_by_content(tmp_path: Path) -> None:
    plain = kineto(tmp_path / "t.json", kineto_rank(0))
    packed = tmp_path / "renamed.json"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert len(read_kineto(packed).kernels) == len(read_kineto(plain).kernels) == 2


def test_a_bare_array_of_events_is_a_trace_too(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(kineto_rank(0), indent=1))
    assert len(read_kineto(path).kernels) == 2


def test_not_a_number_is_not_json_but_old_files_have_it(tmp_path: Path) -> None:
    path = kineto(tmp_path / "t.json", kineto_rank(0))
    path.write_text(path.read_text().replace('"stream": 7', '"stream": 7, "est. achieved occupancy %": NaN'))
    assert len(read_kineto(path).kernels) == 2


@pytest.mark.parametrize("block", [40, 257, 4096, 1 << 20])
def test_events_are_the_same_wherever_the_file_is_cut(block: int) -> None:
    path = kineto_8_ranks()[0]
    whole = json.loads(path.read_text())
    stream = EventStream(path, block_bytes=block if block > 100 else 3000)
    found = [(event.name, event.ph, event.cat) for event in stream]
    assert found == [(e["name"], e["ph"], e.get("cat")) for e in whole["traceEvents"]]
    assert stream.document.distributed is not None
    assert (stream.document.distributed.rank, stream.document.distributed.world_size) == (0, 8)


def test_a_cut_inside_an_events_own_lists_is_not_taken(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": 'a }, {"name": b', "ts": 1, "dur": 1, "args": {
        "nested": [{"name": "x"}, {"name": "y"}] * 40, "device": 0}}
    path = kineto(tmp_path / "t.json", [event] * 30)
    found = list(EventStream(path, block_bytes=2000))
    assert [e.name for e in found] == ['a }, {"name": b'] * 30


def test_metadata_behind_the_events_is_found(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": ' + json.dumps(kineto_rank(1)) + ', "distributedInfo": '
                    '{"rank": 1, "world_size": 2}, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}')
    process = read_kineto(path).processes[0]
    assert (process.rank, process.world_size, process.source) == (1, 2, IdentitySource.DISTRIBUTED_INFO)


def _gloo(rank: int, late_us: float) -> list[dict[str, object]]:
    def event(name: str, start: float, length: float, **args: object) -> dict[str, object]:
        return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 90 + rank, "tid": 3, "ts": start,
                "dur": length, "args": args}

    return [event(f"comm_regress.rank={rank}/2", 1.0, 1.0), event("step", 10.0, 100.0),
            event("gloo:all_reduce", 20.0 + late_us, 50.0 - late_us, **{
                "Input Dims": [[256, 2]], "Input type": ["float"]}),
            event("gloo:all_gather", 80.0, 5.0)]


def test_gloo_on_the_cpu_has_the_metrics_that_exist(tmp_path: Path) -> None:
    from regress.explain import explain

    files = [kineto(tmp_path / f"{r}.json", _gloo(r, r * 4.0), host_name="n") for r in (0, 1)]
    explained = explain(files)
    assert (explained.ranks, explained.devices, explained.steps) == (2, 0, 1)
    names = {metric.name for metric in explained.metrics}
    assert {"transfer_seconds", "skew_seconds", "span_seconds", "collectives_per_step"} <= names
    assert not names & {"gpu_busy_ratio", "exposed_comm_ratio", "overlap_ratio", "launch_gap_ratio", "host_sync_ratio"}
    sizes = {(row["operation"], row["size_bytes"]) for row in explained.messages}
    assert sizes == {("AllReduce", 2048), ("AllGather", None)}
    transfer = explained.get("transfer_seconds")
    assert transfer is not None
    assert transfer.value == pytest.approx((46e-6 + 5e-6) / 2)


def test_a_range_that_is_no_collective_is_none_in_torchs_trace_either(tmp_path: Path) -> None:
    def event(name: str, start: float) -> dict[str, object]:
        return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 90, "tid": 3, "ts": start, "dur": 5.0}

    names = ("step", "epoch/1", "allreduce/4096", "reduce_lr/2")
    host = read_kineto(kineto(tmp_path / "a.json", [event(name, 10.0 * k) for k, name in enumerate(names)])).host_comm
    assert (host.start.tolist(), host.size_bytes.tolist()) == ([20_000], [4096])
    with pytest.raises(TraceUnfitError, match="neither a GPU kernel nor a collective"):
        read_kineto(kineto(tmp_path / "b.json", [event("epoch/1", 10.0)]))


def test_any_range_can_be_kept_to(tmp_path: Path) -> None:
    """A range keeps what else it is: a step is still a step, a collective of gloo still one."""
    trace = kineto(tmp_path / "gpu.json", kineto_rank(0, world=1))
    lane, = read_traces([trace], within="ProfilerStep#3").lanes
    assert (lane.kernels, lane.window.steps) == (2, 1)
    trace = kineto(tmp_path / "cpu.json", _gloo(0, 0.0))
    for text, operations in (("step", ["AllReduce", "AllGather"]), ("gloo:all_reduce", ["AllReduce"])):
        lane, = read_traces([trace], within=text).lanes
        assert [OPERATIONS[code] for code in lane.collectives.operation] == operations


def test_ranks_of_several_nodes_are_on_devices_of_their_own(tmp_path: Path) -> None:
    props = [{"id": i, "name": "NVIDIA H200"} for i in range(2)]
    files = []
    for rank in range(4):
        events = kineto_rank(rank, world=4)
        for event in events:
            if event["cat"] == "kernel" and isinstance(event["args"], dict):
                event["args"]["device"] = rank % 2
        files.append(kineto(tmp_path / f"{rank}.json", events, deviceProperties=props,
                            distributedInfo={"rank": rank, "world_size": 4}))
    assert read_traces(files).devices == 4
