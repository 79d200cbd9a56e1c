"""Rules that see more than a trace: NCCL's log, the ranks' output, health, environment, and the run before."""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from regress.diagnose import Circumstances, Need, diagnose_run, missing, rules
from regress.diagnose.slow_link import nominal_rate
from regress.record import Diagnosis, Environment
from regress.trace.analysis import Analysis
from regress.trace.nccl_log import ChannelCount, Choice, Link, Member, NcclLog, parse_log
from regress.trace.rank_output import trouble
from regress.trace.read import read_traces
from tests.trace.made import Export, kineto, kineto_rank
from tests.trace.samples import sample

LOG = Path(__file__).parents[1] / "data" / "nsys" / "nccl-2.28.9-2gpu-rank0.log.xz"


def _micro() -> Analysis:
    return read_traces([sample("nvlink/micro")])


def _found(rule: str, seen: Circumstances, against: Circumstances | None = None) -> Diagnosis | None:
    everything = [one for found in diagnose_run(seen, against) for one in (found, *found.consequences)]
    return next((one for one in everything if one.rule == rule), None)


def _log(transport: str = "P2P/CUMEM", **more: object) -> NcclLog:
    members = tuple(Member("a", rank, 2, rank, f"{rank}0", "node", 1 + rank) for rank in (0, 1))
    links = tuple(Link(rank, 1 - rank, transport, False, 24) for rank in (0, 1))
    log = NcclLog(versions=("2.28.9",), members=members, links=links)
    return replace(log, **more)  # type: ignore[arg-type]  # fields by name


def test_a_real_log_of_a_healthy_pair_gives_nothing() -> None:
    log = parse_log(lzma.decompress(LOG.read_bytes()).decode())
    seen = Circumstances(_micro(), nccl=log, messages=())
    for rule in ("fallback_transport", "logged_problems", "slow_link"):
        assert missing(rules()[rule], seen, None) == ()
        assert _found(rule, seen) is None
    assert "AllReduce 16MiB" in seen.chosen


def test_sockets_inside_a_machine_are_critical_and_say_why() -> None:
    log = _log("NET/Socket", settings=(("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")))
    found = _found("fallback_transport", Circumstances(_micro(), nccl=log))
    assert found is not None
    assert (found.severity, found.evidence["connections"]) == ("critical", 2)
    assert "NCCL_P2P_DISABLE=1 is set" in found.cause
    assert found.suggestion == "unset the variable"


def test_host_memory_is_a_warning_and_a_posed_node_is_none() -> None:
    found = _found("fallback_transport", Circumstances(_micro(), nccl=_log("SHM/direct")))
    assert found is not None
    assert (found.severity, found.confidence) == ("warning", "medium")
    posed = _log("NET/Socket", settings=(("NCCL_HOSTID", "comm-regress-0"),))
    assert _found("fallback_transport", Circumstances(_micro(), nccl=posed)) is None
    two_hosts = _log("NET/IB", members=(Member("a", 0, 2, 0, "0", "one", 1), Member("a", 1, 2, 0, "0", "two", 2)))
    assert _found("fallback_transport", Circumstances(_micro(), nccl=two_hosts)) is None


@pytest.mark.parametrize(("link", "rate"), [
    ("NVLink 4.0 x18", 450e9), ("NVLink 3.0 x12", 300e9), ("NVLink 5.0 x18", 900e9), ("PCIe 5 x16", 63.008e9),
    ("mixed", None), ("None", None), ("NVLink version 9 x4", None)])
def test_nominal_rates(link: str, rate: float | None) -> None:
    assert nominal_rate(link) == (None if rate is None else pytest.approx(rate))


def _linked(link: str, **more: bool) -> Environment:
    return Environment({"link_class": link, "node_count": 1, **more})


def test_a_real_nvlink_pair_is_as_fast_as_its_link() -> None:
    assert _found("slow_link", Circumstances(_micro(), environment=_linked("NVLink 4.0 x18"))) is None


def test_a_pair_at_a_third_of_its_link_is_slow() -> None:
    found = _found("slow_link", Circumstances(_micro(), nccl=_log("SHM/direct"),
                                              environment=_linked("NVLink 5.0 x18")))
    assert found is not None
    assert found.evidence["message_bytes"] == 256 << 20
    assert "SHM/direct" in found.cause
    under = next(one for one in diagnose_run(Circumstances(
        _micro(), nccl=_log("SHM/direct"), environment=_linked("NVLink 5.0 x18"))) if one.rule == "fallback_transport")
    assert [one.rule for one in under.consequences] == ["slow_link"]
    shared = Circumstances(_micro(), environment=_linked("NVLink 5.0 x18", shared_gpu=True))
    assert _found("slow_link", shared) is None


def _curve(microseconds: dict[int, int]) -> Export:
    """25 all-reduces of each size, of these durations."""
    made, at = Export(), 1_000_000
    for pid, device in ((10, 0), (11, 1)):
        made.gpu(device, device, pid)
    for size, duration in microseconds.items():
        for _ in range(25):
            for pid, device in ((10, 0), (11, 1)):
                made.all_reduce(pid, at, at + duration * 1000, size=size, device=device)
            at += duration * 1000 + 20_000
    return made


def test_a_hole_in_the_curve_is_found_and_a_smooth_curve_is_none(tmp_path: Path) -> None:
    smooth = {1 << 20: 30, 4 << 20: 60, 16 << 20: 200, 64 << 20: 700}
    assert _found("slow_link", Circumstances(read_traces([_curve(smooth).write(tmp_path / "a.sqlite")]))) is None
    holed = read_traces([_curve(smooth | {16 << 20: 600}).write(tmp_path / "b.sqlite")])
    found = _found("slow_link", Circumstances(holed))
    assert found is not None
    assert found.evidence["message_bytes"] == 16 << 20


def _chose(algorithm: str, channels: int = 24, nvls: int = 0) -> NcclLog:
    return _log(choices=(Choice("AllReduce", 16 << 20, algorithm, "SIMPLE", channels, 30),),
                channel_counts=(ChannelCount("coll", 24), ChannelCount("nvls", nvls)))


def test_a_changed_algorithm_is_named_with_what_it_cost(tmp_path: Path) -> None:
    before = read_traces([_curve({16 << 20: 200}).write(tmp_path / "a.sqlite")])
    now = read_traces([_curve({16 << 20: 300}).write(tmp_path / "b.sqlite")])
    found = diagnose_run(Circumstances(now, nccl=_chose("TREE")), Circumstances(before, nccl=_chose("RING")))
    assert (found[0].rule, found[0].severity) == ("algorithm_change", "critical")
    assert "AllReduce 16MiB as TREE SIMPLE, 24 channels, where it was RING SIMPLE, 24 channels" in found[0].cause
    assert [one.rule for one in found[0].consequences] == ["transfer_change"]


def test_sizes_that_look_alike_keep_their_own_choices(tmp_path: Path) -> None:
    """16 MiB and 32 KiB more: both are 16.0MiB in words, and NCCL takes another protocol for each."""
    sizes = (16 << 20) + (32 << 10), (16 << 20) + (64 << 10)
    log = _log(choices=tuple(Choice("AllReduce", size, "RING", protocol, 24, 30)
                             for size, protocol in zip(sizes, ("LL128", "SIMPLE"), strict=True)))
    assert log.decisions == {f"AllReduce {sizes[0]}B": "RING LL128, 24 channels",
                             f"AllReduce {sizes[1]}B": "RING SIMPLE, 24 channels"}


def test_the_same_choice_is_no_change_and_one_that_costs_nothing_is_a_note(tmp_path: Path) -> None:
    run = read_traces([_curve({16 << 20: 200}).write(tmp_path / "a.sqlite")])
    same = Circumstances(run, nccl=_chose("RING"))
    assert _found("algorithm_change", same, same) is None
    found = _found("algorithm_change", Circumstances(run, nccl=_chose("RING", 12)), same)
    assert found is not None
    assert found.severity == "info"


def test_nvls_that_went_away_silently_is_said(tmp_path: Path) -> None:
    run = read_traces([_curve({16 << 20: 200}).write(tmp_path / "a.sqlite")])
    found = _found("algorithm_change", Circumstances(run, nccl=_chose("RING")),
                   Circumstances(run, nccl=_chose("RING", nvls=16)))
    assert found is not None
    assert (found.severity, found.evidence["nvls_channels_before"]) == ("warning", 16)


def test_choices_of_a_stored_run_stand_in_for_its_log(tmp_path: Path) -> None:
    run = read_traces([_curve({16 << 20: 200}).write(tmp_path / "a.sqlite")])
    stored = Circumstances(run, decisions={"AllReduce 16MiB": "NVLS SIMPLE, 16 channels"})
    found = _found("algorithm_change", Circumstances(run, nccl=_chose("RING")), stored)
    assert found is not None
    assert found.evidence["before"] == "NVLS SIMPLE, 16 channels"


OUTPUT = """\
epoch 3 loss 0.1
[rank1]:[E1129 14:00:01.1 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(...)
[rank0]:[W1129 14:00:01.2 reducer.cpp:69] Warning: Grad strides do not match bucket view strides.
[rank1]:[W1129 14:00:01.2 reducer.cpp:69] Warning: Grad strides do not match bucket view strides.
"""


def test_output_of_ranks_is_read_for_trouble() -> None:
    lines = trouble(OUTPUT.splitlines())
    assert len(lines) == 2
    assert lines[0].startswith("Watchdog caught") or "Watchdog caught" in lines[0]
    found = _found("logged_problems", Circumstances(_micro(), messages=lines))
    assert found is not None
    assert (found.severity, found.evidence["grave"], found.evidence["lines"]) == ("critical", 1, 2)
    slow = _found("logged_problems", Circumstances(_micro(), messages=lines[1:]))
    assert slow is not None
    assert (slow.severity, "gradient_as_bucket_view" in slow.suggestion) == ("warning", True)
    assert _found("logged_problems", Circumstances(_micro(), messages=())) is None


def test_nccl_warnings_and_two_versions_are_said() -> None:
    log = _log(versions=("2.27.3", "2.28.9"), problems=("NCCL warns on node: Failed to bind NVLink SHARP memory",))
    found = _found("logged_problems", Circumstances(_micro(), nccl=log))
    assert found is not None
    assert found.evidence["lines"] == 2
    assert "NVLS" in found.suggestion


def test_health_is_a_finding_by_its_gravest_note() -> None:
    facts = {"gpu0.throttle_ratio.hardware thermal slowdown": 0.8, "cpu.steal_ratio": 0.02}
    found = _found("machine_health", Circumstances(_micro(), health=facts))
    assert found is not None
    assert (found.severity, found.evidence["notes"]) == ("critical", 2)
    foreign = _found("machine_health", Circumstances(_micro(), health={"gpu0.processes_before": 2}))
    assert foreign is not None
    assert foreign.severity == "warning"
    assert "2 other processes" in foreign.cause
    assert _found("machine_health", Circumstances(_micro(), health={"cpu.steal_ratio": 0.0})) is None


def test_gloo_in_the_steps_of_a_gpu_rank_is_found(tmp_path: Path) -> None:
    def gloo(rank: int) -> dict[str, object]:
        return {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 40 + rank, "tid": 2, "ts": 310.0,
                "dur": 120.0, "args": {"Input Dims": [[1024]], "Input type": ["float"]}}

    made = [kineto(tmp_path / f"{rank}.json", [*kineto_rank(rank), gloo(rank)],
                   distributedInfo={"rank": rank, "world_size": 2}) for rank in (0, 1)]
    found = _found("mixed_backends", Circumstances(read_traces(made)))
    assert found is not None
    assert (found.severity, found.evidence["host_collectives_per_step"]) == ("critical", 1.0)
    plain = [kineto(tmp_path / f"p{rank}.json", kineto_rank(rank), distributedInfo={"rank": rank, "world_size": 2})
             for rank in (0, 1)]
    assert _found("mixed_backends", Circumstances(read_traces(plain))) is None


def test_a_rule_says_what_it_lacks() -> None:
    seen = Circumstances(_micro())
    assert missing(rules()["fallback_transport"], seen, None) == (Need.NCCL_LOG,)
    assert missing(rules()["straggler"], seen, None) == (Need.STEPS,)
    assert missing(rules()["algorithm_change"], seen, None) == (Need.BEFORE, Need.CHOICES)
    assert missing(rules()["measurement_faults"], seen, None) == ()
