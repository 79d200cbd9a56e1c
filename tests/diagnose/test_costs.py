"""What a finding costs is part of the window it is priced by, and never more than was lost; so causes stand once."""

from __future__ import annotations

from pathlib import Path

import pytest

from regress.diagnose import COST, SHARE, diagnose
from regress.record import Diagnosis
from regress.trace.analysis import Analysis
from regress.trace.read import read_traces
from tests.trace.made import Export, kineto, kineto_rank

MS, US = 1_000_000, 1000
STEPS = 10


def _read(made: Export, path: Path) -> Analysis:
    return read_traces([made.write(path)])


def _finding(rule: str, analysis: Analysis, against: Analysis | None = None) -> Diagnosis:
    everything = [one for found in diagnose(analysis, against) for one in (found, *found.consequences)]
    return next(one for one in everything if one.rule == rule)


def _figure(finding: Diagnosis, key: str) -> float:
    value = finding.evidence[key]
    assert isinstance(value, float)
    return value


def _all_reduces(transfer_us: int, *, stepped: bool = True, hidden: bool = False, warm_up: int = 0,
                 operation: str = "AllReduce") -> Export:
    """Two ranks: steps of 10 ms with 9 ms of compute and one all-reduce, alone or beside it; some before the steps."""
    made = Export()
    for rank, pid in enumerate((10, 11)):
        made.gpu(rank, rank, pid)
        for k in range(warm_up):
            made.all_reduce(pid, (1 + k) * MS, (1 + k) * MS + transfer_us * US, device=rank)
        for step in range(STEPS):
            begin = 100 * MS + step * 10 * MS
            if stepped:
                made.nvtx(pid, begin - 10 * US, begin + 9_900 * US, "step")
            made.kernel(pid, begin, begin + 9 * MS, device=rank)
            at = begin + (4 * MS if hidden else 9_100 * US)
            made.collective(pid, at, at + transfer_us * US, operation, device=rank)
    return made


def _over_one_channel(made: Export) -> Export:
    """Kernels with a single thread block."""
    columns, rows = made.tables["CUPTI_ACTIVITY_KIND_KERNEL"]
    made.tables["CUPTI_ACTIVITY_KIND_KERNEL"] = columns, [(*row[:-1], 1) for row in rows]
    return made


@pytest.mark.parametrize("operation", ["AllReduce", "AlltoAll"])
def test_a_slower_transfer_costs_the_seconds_it_lost(operation: str, tmp_path: Path) -> None:
    now = _read(_all_reduces(100, operation=operation), tmp_path / "now.sqlite")
    before = _read(_all_reduces(50, operation=operation), tmp_path / "old.sqlite")
    found = _finding("transfer_change", now, before)
    assert found.severity == "critical"
    assert _figure(found, "change") == pytest.approx(1.0)
    assert _figure(found, COST) == pytest.approx(50e-6)
    assert _figure(found, SHARE) == pytest.approx(0.005, rel=0.02)


def test_collectives_outside_of_steps_cost_no_step_anything(tmp_path: Path) -> None:
    now = _read(_all_reduces(100, warm_up=40), tmp_path / "now.sqlite")
    before = _read(_all_reduces(50, warm_up=40), tmp_path / "old.sqlite")
    assert _figure(_finding("transfer_change", now, before), COST) == pytest.approx(50e-6)


def test_a_transfer_that_computation_hides_costs_nothing(tmp_path: Path) -> None:
    now = _read(_all_reduces(100, hidden=True), tmp_path / "now.sqlite")
    before = _read(_all_reduces(50, hidden=True), tmp_path / "old.sqlite")
    assert _figure(_finding("transfer_change", now, before), COST) == 0.0


def test_without_steps_the_share_is_of_the_whole_trace(tmp_path: Path) -> None:
    now = _read(_all_reduces(100, stepped=False), tmp_path / "now.sqlite")
    before = _read(_all_reduces(50, stepped=False), tmp_path / "old.sqlite")
    found = _finding("transfer_change", now, before)
    assert COST not in found.evidence
    assert _figure(found, SHARE) == pytest.approx(0.005, rel=0.02)


def test_a_slower_transfer_stands_beneath_what_made_it_slower(tmp_path: Path) -> None:
    """Its share of the window is compared with its cause's, so both must be of the window."""
    now = _read(_over_one_channel(_all_reduces(70)), tmp_path / "now.sqlite")
    found = diagnose(now, _read(_all_reduces(50), tmp_path / "old.sqlite"))
    assert [(one.rule, [under.rule for under in one.consequences]) for one in found if one.rule != "step_change"] == [
        ("few_channels", ["transfer_change"])]


def _ahead(call: str, took_us: int) -> Export:
    """A host that is done with a step in 1 ms, of which one call takes a part, while the device needs 10 ms for it."""
    made = Export()
    for step in range(STEPS):
        begin = 100 * MS + step * 10 * MS
        made.nvtx(10, begin - 10 * US, begin + 990 * US, "step")
        made.kernel(10, begin, begin + 100 * US)
        made.call(10, begin + 100 * US, begin + (100 + took_us) * US, call)
        made.kernel(10, begin + 3 * MS, begin + 9_900 * US, launch=begin + 900 * US)
    return made


@pytest.mark.parametrize(("rule", "call"), [("allocations", "cudaMalloc_v3020"),
                                            ("host_sync", "cudaDeviceSynchronize_v3020")])
def test_a_call_costs_no_more_of_a_step_than_it_takes(rule: str, call: str, tmp_path: Path) -> None:
    """Half of the step's range on the host is a twentieth of the step."""
    found = _finding(rule, _read(_ahead(call, 500), tmp_path / "t.sqlite"))
    assert _figure(found, COST) == pytest.approx(500e-6, rel=0.01)


def test_collectives_on_the_host_cost_no_more_of_a_step_than_they_take(tmp_path: Path) -> None:
    def events(rank: int) -> list[dict[str, object]]:
        gloo: dict[str, object] = {
            "ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 40 + rank, "tid": 2, "ts": 310.0,
            "dur": 40.0, "args": {"Input Dims": [[1024]], "Input type": ["float"]}}
        late = [{**event, "ts": 4200.0, "dur": 300.0} if event["cat"] == "kernel" and event["name"] != "gemm" else event
                for event in kineto_rank(rank)]
        return [*late, gloo]

    made = [kineto(tmp_path / f"{rank}.json", events(rank), distributedInfo={"rank": rank, "world_size": 2})
            for rank in (0, 1)]
    assert _figure(_finding("mixed_backends", read_traces(made)), COST) == pytest.approx(40e-6, rel=0.01)
