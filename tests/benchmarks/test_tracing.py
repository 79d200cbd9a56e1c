from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.communicator import Place, place_from, set_variables
from regress.errors import UsageError
from regress.record import LaunchSpec, TimingMode
from tests.benchmarks.ranks import collective, launch, step


def test_a_kineto_launch_names_rank_cases_steps_and_collectives(tmp_path: Path) -> None:
    cases = (collective("allreduce", 4096), collective("allgather", 4096, TimingMode.PIPELINED), step())
    ended = launch(tmp_path, *cases, tracer="kineto")
    assert ended.statuses == (0, 0), ended.stderr
    for rank in (0, 1):
        with gzip.open(tmp_path / f"rank{rank}.kineto.json.gz") as file:
            trace = json.load(file)
        names = [event.get("name") for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
        assert names.count(f"comm_regress.rank={rank}/2") == 1
        assert [names.count(f"case:{case.id}") for case in cases] == [1, 1, 1]
        assert (names.count("allreduce/4096"), names.count("allgather/4096"), names.count("step")) == (12, 12, 12)
        assert trace["distributedInfo"]["rank"] == rank
    assert {mode: len(series) for mode, series in ended.result(0, 0).seconds.items()} == {"isolated": 12}
    assert ended.result(0, 0).wrong_elements == 0
    assert ended.result(0, 0).checked_elements == 2048


def test_nsys_without_cuda_says_what_the_trace_lacks(tmp_path: Path) -> None:
    (tmp_path / "nvtx.py").write_text("raise ImportError('not here')\n")
    ended = launch(tmp_path / "launch", collective("allreduce", 4096), tracer="nsys", path=(tmp_path,))
    assert ended.statuses == (0, 0), ended.stderr
    assert ended.result(1, 0).warnings == (
        "no ranges in this trace: torch was built without CUDA and the nvtx package is not installed",
        "nsys traced the whole launch: only a CUDA process can open the capture window")


def spec(shared_gpu: bool) -> LaunchSpec:
    return LaunchSpec((), 1, "nccl", "", 0.1, shared_gpu=shared_gpu)


def test_ranks_that_share_a_gpu_pose_as_nodes() -> None:
    environment = {"NCCL_HOSTID": "mine"}
    set_variables(spec(shared_gpu=True), Place(1, 1, 2, 2), environment)
    assert environment == {"NCCL_HOSTID": "comm-regress-1", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}


def test_ranks_that_nccl_lets_share_a_gpu_stay_one_host() -> None:
    environment: dict[str, str] = {}
    set_variables(LaunchSpec((), 1, "nccl", "", 0.1, shared_gpu=True, multi_rank_gpu=True), Place(1, 1, 2, 2),
                  environment)
    assert environment == {"GLOO_SOCKET_IFNAME": "lo"}


def test_an_interface_that_the_user_chose_stays_and_several_hosts_get_none() -> None:
    chosen = {"GLOO_SOCKET_IFNAME": "eth1"}
    set_variables(spec(shared_gpu=False), Place(0, 0, 2, 2), chosen)
    assert chosen == {"GLOO_SOCKET_IFNAME": "eth1"}
    hosts: dict[str, str] = {}
    set_variables(spec(shared_gpu=False), Place(0, 0, 4, 2), hosts)
    assert hosts == {}


def test_a_process_that_torchrun_did_not_start() -> None:
    with pytest.raises(UsageError) as caught:
        place_from({"RANK": "0"})
    assert caught.value.text == (
        "environment of the rank process: no place in a launch: 'WORLD_SIZE'; accepted: RANK, LOCAL_RANK, WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT as torchrun sets them; start it with torchrun")
