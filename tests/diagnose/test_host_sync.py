"""Which calls hold the host up, and with it the device: by what they wait for, and by whose they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from regress.diagnose import diagnose
from regress.record import Diagnosis
from regress.trace.names import CallKind
from regress.trace.read import read_traces
from tests.trace.made import Export, kineto, kineto_rank

US, MS = 1_000, 1_000_000
STEPS = 10


def _found(made: Export, path: Path) -> dict[str, Diagnosis]:
    """The findings by rule; those that follow from another are not among them."""
    return {one.rule: one for one in diagnose(read_traces([made.write(path / "t.sqlite")]))}


@pytest.mark.parametrize("target", [0, 1], ids=["pageable", "pinned"])
def test_a_copy_that_is_not_asynchronous_waits_whatever_memory_it_is_to(target: int, tmp_path: Path) -> None:
    """Of 10 ms the host is 6 in cudaMemcpy, and its device has nothing to do for the next 3."""
    made = Export()
    for step in range(STEPS):
        begin = (1 + 10 * step) * MS
        made.nvtx(10, begin, begin + 10 * MS - 1000, "step")
        made.kernel(10, begin + 10 * US, begin + 6 * MS)
        made.call(10, begin + 20 * US, begin + 6020 * US, "cudaMemcpy_v3020", 5000 + step)
        made.copy(10, begin + 6 * MS, begin + 6010 * US, 65536, kind=2, source=2, target=target,
                  correlation=5000 + step)
        made.kernel(10, begin + 9 * MS, begin + 9900 * US)
    found = _found(made, tmp_path)
    sync = found["host_sync"]
    assert (sync.severity, sync.evidence["call"], sync.evidence["calls_per_step"]) == ("critical", "cudaMemcpy", 1.0)
    assert sync.evidence["blocked_ratio"] == pytest.approx(0.6, rel=1e-3)
    assert [one.rule for one in sync.consequences] == ["launch_gaps"]


@pytest.mark.parametrize(("name", "to", "kept"), [
    ("cudaMemcpyAsync", "Pageable", True), ("cudaMemcpyAsync", "Pinned", False), ("cudaMemcpy", "Pinned", True)])
def test_torchs_traces_tell_the_copying_calls_that_wait_too(name: str, to: str, kept: bool, tmp_path: Path) -> None:
    events: list[dict[str, object]] = [
        *kineto_rank(0),
        {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 40, "tid": 1, "ts": 180.0, "dur": 50.0,
         "args": {"correlation": 8}},
        {"ph": "X", "cat": "gpu_memcpy", "name": f"Memcpy DtoH (Device -> {to})", "pid": 0, "tid": 7, "ts": 225.0,
         "dur": 2.0, "args": {"device": 0, "stream": 7, "correlation": 8, "bytes": 4}}]
    (lane,) = read_traces([kineto(tmp_path / "t.json", events)]).lanes
    assert [(call.name, call.total_ns) for call in lane.calls if call.kind is CallKind.COPY] == [(name, 50_000)] * kept


def _threads(first: tuple[int, int], second: tuple[int, int], blocking: int, outside: int = 0) -> Export:
    """Steps of 10 ms whose kernels threads launch at 0 and 3 ms while one thread is blocked for 9 ms.

    first, second: thread and length in µs of the kernel. outside: a thread that launches one between every two steps.
    """
    made = Export()
    for step in range(STEPS):
        begin = (1 + 10 * step) * MS
        made.nvtx(10, begin, begin + 9800 * US, "step")
        for (thread, length), at in ((first, 10 * US), (second, 3 * MS)):
            made.kernel(10, begin + at, begin + at + length * US, thread=thread, launch=begin + at - 5 * US)
        made.call(10, begin + 500 * US, begin + 9500 * US, "cudaStreamSynchronize_v3020", thread=blocking)
        if outside:
            made.kernel(10, begin + 9900 * US, begin + 9950 * US, thread=outside, launch=begin + 9890 * US)
    return made


@pytest.mark.parametrize("outside", [0, 99], ids=["nothing", "outside the steps"])
def test_a_thread_that_launches_nothing_in_the_steps_may_wait(outside: int, tmp_path: Path) -> None:
    """It writes a checkpoint, while the main thread loads data. It is counted all the same."""
    made = _threads((7, 10), (7, 6800), blocking=99, outside=outside)
    path = made.write(tmp_path / "t.sqlite")
    found = {one.rule: one for one in diagnose(read_traces([path]))}
    assert "host_sync" not in found
    assert found["launch_gaps"].severity == "warning"
    (lane,) = read_traces([path]).lanes
    (call,) = lane.calls
    assert (call.count, call.in_steps, call.in_steps_ns) == (STEPS, STEPS, STEPS * 9 * MS)
    assert (call.launching, call.launching_ns, lane.host_sync_ns) == (0, 0, 0)


def test_the_thread_of_backward_holds_the_step_up_while_the_main_thread_waits_for_it(tmp_path: Path) -> None:
    made = _threads((7, 10), (8, 6800), blocking=8)
    sync = _found(made, tmp_path)["host_sync"]
    assert (sync.severity, sync.evidence["calls_per_step"]) == ("critical", 1.0)
    assert sync.evidence["blocked_ratio"] == pytest.approx(9 / 9.8)


def test_without_any_launch_every_thread_counts(tmp_path: Path) -> None:
    """Launches were not recorded: nobody knows whose they were."""
    made = Export()
    made.kernel(10, 2 * MS, 9 * MS, launch=-1)
    made.call(10, 3 * MS, 8 * MS, "cudaStreamSynchronize_v3020", thread=99)
    (lane,) = read_traces([made.write(tmp_path / "t.sqlite")]).lanes
    assert (lane.host_ns, lane.host_sync_ns) == (7 * MS, 5 * MS)


@pytest.mark.parametrize(("thread", "blocked_us"), [(1, 60), (2, 0)])
def test_torchs_traces_tell_threads_apart_too(thread: int, blocked_us: int, tmp_path: Path) -> None:
    events = [event for event in kineto_rank(0) if event["name"] != "cudaDeviceSynchronize"]
    events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": 40, "tid": thread,
                   "ts": 180.0, "dur": 60.0, "args": {"correlation": 8}})
    (lane,) = read_traces([kineto(tmp_path / "t.json", events)]).lanes
    (call,) = lane.calls
    assert (call.in_steps, call.launching, lane.host_sync_ns) == (1, blocked_us > 0, blocked_us * 1000)


def _batch(call: str, size: int, waited_us: tuple[int, int], *, pageable: bool = True, thread: int = 7,
           read: bool = False) -> Export:
    """Steps of 12 ms: a batch goes to the device, the loop waits for the stream, and the device then runs dry for 3 ms.

    call: copies the batch from 50 to 60 us, on that thread. waited_us: begin and end of the wait. read: it is for the
    loss, whose copy to pinned memory was asked for just before.
    """
    made = Export()
    for step in range(STEPS):
        begin, key = (1 + 12 * step) * MS, 1000 + 2 * step
        made.nvtx(10, begin, begin + 12 * MS - 1000, "step")
        made.call(10, begin + 50 * US, begin + 60 * US, call, key, thread=thread)
        made.copy(10, begin + 60 * US, begin + 110 * US, size, source=0 if pageable else 1, correlation=key)
        made.kernel(10, begin + 300 * US, begin + 8300 * US, launch=begin + 20 * US)
        if read:
            made.call(10, begin + waited_us[0] * US - 6 * US, begin + waited_us[0] * US - 1 * US,
                      "cudaMemcpyAsync_v3020", key + 1)
            made.copy(10, begin + 8301 * US, begin + 8303 * US, 4, kind=2, source=2, target=1, correlation=key + 1)
        made.call(10, begin + waited_us[0] * US, begin + waited_us[1] * US, "cudaStreamSynchronize_v3020")
        made.kernel(10, begin + 11_500 * US, begin + 11_990 * US)
    return made


@pytest.mark.parametrize("began_us", [67, 400], ids=["at once", "later"])
@pytest.mark.parametrize("pageable", [True, False])
def test_reading_the_loss_is_no_wait_of_the_batchs_copies(pageable: bool, began_us: int, tmp_path: Path) -> None:
    """The batch is copied with non_blocking=True: the wait is for the loss, however the batch came and how soon."""
    made = _batch("cudaMemcpyAsync_v3020", 4 << 20, (began_us, 8310), pageable=pageable, read=True)
    sync = _found(made, tmp_path)["host_sync"]
    assert (sync.severity, sync.evidence["calls_per_step"]) == ("critical", 1.0)
    assert sync.evidence["blocked_ratio"] == pytest.approx((8310 - began_us) / 11_999)
    assert [one.rule for one in sync.consequences] == ["launch_gaps"]


@pytest.mark.parametrize(("began_us", "thread", "size", "found"), [
    (66, 7, 4 << 20, False),     # batch.to(device): a copy, and a wait that is part of it
    (66, 7, 64 << 10, True),     # too little to be a fault: a way to wait for the device
    (66, 8, 4 << 20, True),      # another thread's copy
    (200, 7, 4 << 20, True)],    # long after it
    ids=["of the copy", "small", "of another thread", "later"])
def test_a_wait_is_a_copys_where_it_follows_at_once_on_its_thread(
        began_us: int, thread: int, size: int, found: bool, tmp_path: Path) -> None:
    made = _batch("cudaMemcpyAsync_v3020", size, (began_us, 8310), thread=thread)
    assert ("host_sync" in _found(made, tmp_path)) is found


def test_a_copy_from_pageable_memory_that_is_not_asynchronous_is_left_to_the_copies_too(tmp_path: Path) -> None:
    (lane,) = read_traces([_batch("cudaMemcpy_v3020", 4 << 20, (400, 410)).write(tmp_path / "t.sqlite")]).lanes
    assert [(call.plain_name, call.in_steps, call.launching, call.uploading, call.uploading_ns)
            for call in lane.calls] == [("cudaMemcpy", STEPS, STEPS, STEPS, STEPS * 10 * US),
                                        ("cudaStreamSynchronize", STEPS, STEPS, 0, 0)]


@pytest.mark.parametrize(("tid", "uploading"), [(1, 1), (2, 0)])
def test_torchs_traces_tell_the_waits_of_copies_too(tid: int, uploading: int, tmp_path: Path) -> None:
    def call(name: str, start: float, length: float, thread: int, **args: object) -> dict[str, object]:
        return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 40, "tid": thread, "ts": start, "dur": length,
                "args": args}

    copy: dict[str, object] = {
        "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7, "ts": 195.0,
        "dur": 20.0, "args": {"device": 0, "stream": 7, "correlation": 8, "bytes": 1 << 20}}
    events = [*kineto_rank(0), copy, call("cudaMemcpyAsync", 180.0, 10.0, tid, correlation=8),
              call("cudaStreamSynchronize", 191.0, 25.0, 1, correlation=9)]
    (lane,) = read_traces([kineto(tmp_path / "t.json", events)]).lanes
    assert [(one.launching, one.uploading) for one in lane.calls if one.name == "cudaStreamSynchronize"] == [
        (1, uploading)]
