"""Which collectives of several ranks are one, and what their ends say of clocks: made traces with known answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from regress.trace.analysis import Analysis
from regress.trace.budget import step_budgets
from regress.trace.names import OPERATIONS
from regress.trace.read import read_traces
from tests.trace.made import ALL_REDUCE, Export, kineto

Row = tuple[str, float, float]
"""Operation as torch.profiler names it, start and end in µs."""


def _event(rank: int, category: str, name: str, start: float, end: float, **args: object) -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "pid": 40 + rank, "tid": 1, "ts": start, "dur": end - start,
            "args": args}


def _group(rank: int, rows: Sequence[Row], members: Sequence[int], name: str = "0") -> list[dict[str, object]]:
    """Kernels of one process group on one rank, each launched 2 µs before it starts."""
    events = []
    for number, (operation, start, end) in enumerate(rows):
        code = number + 1000 * int(name)
        kernel = ALL_REDUCE if operation == "allreduce" else "ncclDevKernel_SendRecv"
        events += [
            _event(rank, "cuda_runtime", "cudaLaunchKernel", start - 2, start - 1, correlation=code),
            _event(rank, "kernel", kernel, start, end, device=rank, stream=9, correlation=code, **{
                "Collective name": operation, "In msg nelems": 256, "Out msg nelems": 256, "dtype": "Float",
                "Process Group Name": name, "Process Group Ranks": str(list(members))})]
    return events


def _read(folder: Path, ranks: Mapping[int, list[dict[str, object]]], world: int, **hosts: str) -> Analysis:
    return read_traces([
        kineto(folder / f"{rank}.json", events, host_name=hosts.get(f"host{rank}", "node"), baseTimeNanoseconds=10**18,
               distributedInfo={"backend": "nccl", "rank": rank, "world_size": world})
        for rank, events in ranks.items()])


def test_sends_and_receives_of_a_pipeline_do_not_shift_the_other_collectives(tmp_path: Path) -> None:
    """Three stages; the middle one has twice the messages, and each of three steps ends with an all-reduce."""
    rows: dict[int, list[Row]] = {0: [], 1: [], 2: []}
    for begin in (1_000.0, 3_000.0, 5_000.0):
        rows[0] += [("send", begin, begin + 10)]
        rows[1] += [("recv", begin, begin + 10), ("send", begin + 20, begin + 30)]
        rows[2] += [("recv", begin + 20, begin + 30)]
        for rank, late in ((0, 300.0), (1, 0.0), (2, 50.0)):
            rows[rank].append(("allreduce", begin + 100 + late, begin + 600))
    analysis = _read(tmp_path, {rank: _group(rank, mine, (0, 1, 2)) for rank, mine in rows.items()}, 3)
    group, = analysis.matching.groups
    assert [OPERATIONS[code] for code in group.operation] == ["AllReduce"] * 3
    assert (group.skew_ns.tolist(), group.transfer_ns.tolist()) == ([300_000] * 3, [200_000] * 3)
    assert group.last.tolist() == [0] * 3
    assert analysis.warnings == ("not matched: 12 sends and receives of 3 ranks, as the trace does not say which "
                                 "belong together; waiting in them counts as transfer",)


def test_of_two_ranks_a_send_is_matched_with_its_receive(tmp_path: Path) -> None:
    """One message each way; rank 1 launches its send before its receive, and both receivers wait."""
    rows: dict[int, list[Row]] = {0: [("send", 900.0, 1_000.0), ("recv", 1_100.0, 1_850.0)],
                                  1: [("send", 1_800.0, 1_850.0), ("recv", 100.0, 1_000.0)]}
    steps = {rank: [_event(rank, "user_annotation", "ProfilerStep#1", 50.0, 1_900.0)] for rank in rows}
    analysis = _read(tmp_path, {rank: steps[rank] + _group(rank, mine, (0, 1)) for rank, mine in rows.items()}, 2)
    group, = analysis.matching.groups
    assert [OPERATIONS[code] for code in group.operation] == ["Send", "Send"]
    assert (group.transfer_ns.tolist(), group.last.tolist()) == ([100_000, 50_000], [0, 1])
    first, second = step_budgets(analysis)
    assert first.waiting_for == {1: pytest.approx(700e-6)}
    assert second.waiting_for == {0: pytest.approx(800e-6)}
    assert [first.transfer, second.transfer] == pytest.approx([150e-6, 150e-6])
    assert analysis.warnings == ()


def test_sends_to_a_rank_without_a_trace_are_left_out(tmp_path: Path) -> None:
    rows: dict[int, list[Row]] = {0: [("send", 100.0, 200.0)], 1: [("recv", 120.0, 200.0), ("send", 210.0, 300.0)]}
    analysis = _read(tmp_path, {rank: _group(rank, mine, (0, 1, 2)) for rank, mine in rows.items()}, 3)
    assert analysis.matching.column("transfer_ns").tolist() == [80_000]
    assert any("not matched: 1 send or receive of 2 ranks" in text for text in analysis.warnings)


@pytest.mark.parametrize(("extra", "matched"), [(0, ["SendRecv", "AllReduce"]), (1, ["AllReduce"])])
def test_grouped_sends_and_receives_are_matched_where_all_ranks_make_as_many(
        extra: int, matched: list[str], tmp_path: Path) -> None:
    ranks = {}
    for rank in range(3):
        rows: list[Row] = [("coalesced", 100.0 + rank, 200.0)]
        rows += [("coalesced", 210.0, 220.0)] * extra if rank == 1 else []
        ranks[rank] = _group(rank, [*rows, ("allreduce", 300.0, 400.0)], (0, 1, 2))
    analysis = _read(tmp_path, ranks, 3)
    assert [OPERATIONS[code] for group in analysis.matching.groups for code in group.operation] == matched
    assert len(analysis.warnings) == extra


def _three_hosts(folder: Path, ahead: Mapping[str, float]) -> Analysis:
    """Tensor parallel inside hosts a, b and c (ten all-reduces), data parallel across a, b and b, c (one each).

    Host a comes to its data-parallel all-reduce 2 ms late, and host b, which waited for it, 1 ms late to its own with
    c: that wait is for host a as well. ahead: µs by host.
    """
    hosts = ("a", "a", "b", "b", "c", "c")
    ranks = {}
    for rank, host in enumerate(hosts):
        clock, index, events = ahead.get(host, 0.0), rank // 2, []
        inside: list[Row] = [("allreduce", clock + 100 + k * 100, clock + 140 + k * 100) for k in range(10)]
        events += _group(rank, inside, (2 * index, 2 * index + 1), str(1 + index))
        if index < 2:
            late = 2_000.0 if host == "a" else 0.0
            events += _group(rank, [("allreduce", clock + 2_000 + late, clock + 4_500)], (rank % 2, 2 + rank % 2),
                             str(4 + rank % 2))
        if index > 0:
            late = 1_000.0 if host == "b" else 0.0
            events += _group(rank, [("allreduce", clock + 5_000 + late, clock + 6_500)], (2 + rank % 2, 4 + rank % 2),
                             str(6 + rank % 2))
        events.append(_event(rank, "user_annotation", "ProfilerStep#1", clock + 50, clock + 6_600))
        ranks[rank] = events
    return _read(folder, ranks, len(hosts), **{f"host{rank}": host for rank, host in enumerate(hosts)})


@pytest.mark.parametrize("ahead", [{}, {"b": 5_000.0}, {"b": 5_000.0, "c": -3_000.0}], ids=["equal", "two", "three"])
def test_clocks_are_put_together_by_the_groups_that_span_them(ahead: dict[str, float], tmp_path: Path) -> None:
    """The many groups inside a host, whose ends agree, say nothing of its clock."""
    analysis = _three_hosts(tmp_path, ahead)
    of_host = [round(ahead.get(host, 0.0) * 1e3) for host in "aabbcc"]
    assert list(analysis.matching.clock_offsets_ns) == of_host
    waiting = {one.rank: {rank: round(seconds * 1e6) for rank, seconds in one.waiting_for.items()}
               for one in step_budgets(analysis)}
    assert waiting == {0: {}, 1: {}, 2: {0: 2_000}, 3: {1: 2_000}, 4: {0: 1_000}, 5: {1: 1_000}}
    assert max(analysis.matching.column("end_skew_ns").tolist()) == 0
    assert [text for text in analysis.warnings if "clocks differ: rank 2 is off by 5000 µs from rank 0" in text] == (
        [text for text in analysis.warnings if "clocks" in text])


MS = 1_000_000


def _unnamed_groups(steps: Sequence[int], late_ms: Mapping[int, int], extra: bool = False) -> Export:
    """Ranks 0, 1 and 2, 3 all-reduce in pairs, then all four; NCCL does not name communicators, all sizes are equal.

    A step takes 20 ms. steps: ms at which rank 0 comes to its pair's all-reduce. Rank 1 comes at 6 ms and both leave at
    7 ms, or 4 ms later where rank 0 does not come before 6 ms: then they leave with ranks 2 and 3, which are in theirs
    from 10 to 11 ms. All leave the last one at 16 ms, to which ranks come at 12 ms and late_ms later. extra: ranks 0
    and 1 reduce once more, inside the first step.
    """
    made = Export()
    for rank in range(4):
        pid = 10 + rank
        made.gpu(rank, rank, pid)
        made.nvtx(pid, 500, None, f"comm_regress.rank={rank}/4", kind=34)
        for number, first in enumerate(steps):
            begin = (1 + 20 * number) * MS
            left = 7 if rank < 2 and first < 6 else 11
            came = first if rank == 0 else left - 1
            made.nvtx(pid, begin, begin + 19 * MS, "step")
            made.kernel(pid, begin + 20_000, begin + 30_000, device=rank)
            made.all_reduce(pid, begin + came * MS, begin + left * MS, communicator=0, device=rank)
            if extra and rank < 2 and number == 0:
                made.all_reduce(pid, begin + 8 * MS, begin + 9 * MS, communicator=0, device=rank)
            made.all_reduce(pid, begin + (12 + late_ms.get(rank, 0)) * MS, begin + 16 * MS, communicator=0, device=rank)
    return made


def test_groups_that_the_trace_does_not_name_are_told_by_who_leaves_before_another_comes(tmp_path: Path) -> None:
    path = _unnamed_groups((1, 2, 9), {3: 2}).write(tmp_path / "t.sqlite")
    analysis = read_traces([path])
    found = {group.ranks: group.transfer_ns.tolist() for group in analysis.matching.groups}
    assert found == {(0, 1): [MS] * 3, (2, 3): [MS] * 3, (0, 1, 2, 3): [2 * MS] * 3}
    # In its pair rank 0 waits (5 + 4 + 1) / 3 ms a step for rank 1, and all wait 2 ms for rank 3.
    first, second, third, last = (one.waiting_for for one in step_budgets(analysis))
    assert first == {1: pytest.approx(10e-3 / 3), 3: pytest.approx(2e-3)}
    assert second == third == {3: pytest.approx(2e-3)}
    assert last == {}
    assert analysis.warnings == (
        "the trace does not say which ranks a collective is of: ranks that leave one before others come were taken to "
        "be of different groups (ranks 0, 1; 2, 3)",)


def test_what_cannot_be_told_apart_is_not_matched(tmp_path: Path) -> None:
    """Two ranks have one collective more, so the k-th of one is not the k-th of the other."""
    analysis = read_traces([_unnamed_groups((1, 2, 1), {}, extra=True).write(tmp_path / "t.sqlite")])
    assert analysis.matching.count == 0
    assert [one.waiting_for for one in step_budgets(analysis)] == [{}] * 4
    assert any(text.startswith("not matched: 6 of 6 collectives, which are of different groups of ranks")
               for text in analysis.warnings)
