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
