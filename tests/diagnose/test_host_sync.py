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
