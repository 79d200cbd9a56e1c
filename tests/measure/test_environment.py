from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regress.measure import environment as module
from regress.measure import host
from regress.measure.environment import collect, describe_devices, rank_gpus
from regress.measure.links import link_class, parse_matrix, topology_class
from regress.measure.ranks import RankPlan
from regress.measure.software import torch_cuda_version, torch_version
from regress.measure.variables import REDACTED, allowed_variables, conf_files, conf_variables, redact
from tests.measure.fakes import WELL, FakeDevices

PAIR = RankPlan(2, "cuda", "nccl", False, 1)
SHARED = RankPlan(2, "cuda", "nccl", True, 1)
CPU = RankPlan(2, "cpu", "gloo", False, 1)
MATRIX = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\tNODE\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tNODE\t0-47\t0\t\tN/A
GPU2\tPIX\tSYS\t X \tSYS\t48-95\t1\t\tN/A
NIC0\tNODE\tNODE\tSYS\t X \t\t\t

Legend:
  X    = Self
"""


@pytest.fixture(autouse=True)
def no_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_matrix", lambda: None)


def test_gpus_must_match_in_model_count_links_and_sharing() -> None:
    seen = collect(PAIR, FakeDevices(4), environment={})
    assert seen.must_match == {
        "device": "cuda", "backend": "nccl", "shared_gpu": False, "node_count": 1, "profiler_mode": "none",
        "gpu_model": "NVIDIA H200", "gpu_count": 2, "gpu_partitioning": "none", "gpu_sharing": None,
        "link_class": "NVLink 4.0 x18", "topology_class": "SYS"}
    assert seen.reported["driver_version"] == "580.1"


def test_ranks_that_share_a_gpu_by_nccls_leave_are_another_environment_than_ranks_that_pose_as_hosts() -> None:
    posing = collect(SHARED, FakeDevices(1), gpu_sharing="mps", environment={})
    allowed = collect(replace(SHARED, multi_rank_gpu=True), FakeDevices(1), gpu_sharing="mps", environment={})
    assert allowed.must_match == {**posing.must_match, "multi_rank_gpu": True}
    assert "multi_rank_gpu" not in posing.must_match


def test_the_cpu_must_match_in_model_and_cores_and_nothing_that_jitters() -> None:
    seen = collect(CPU, None, environment={})
    assert set(seen.must_match) == {"device", "backend", "shared_gpu", "node_count", "profiler_mode", "cpu_model",
                                    "cpu_cores_allowed"}
    assert seen.fingerprint == collect(CPU, None, environment={"NCCL_ALGO": "Ring"}).fingerprint


def test_a_link_that_is_down_is_no_other_machine() -> None:
    hurt = FakeDevices(2, readings=[replace(WELL, nvlink_active=17, nvlink_inactive=1, pcie_generation=1)])
    assert collect(PAIR, hurt, environment={}).fingerprint == collect(PAIR, FakeDevices(2), environment={}).fingerprint


def test_reported_facts_of_others_win_and_variables_are_redacted() -> None:
    variables = {"NCCL_ALGO": "Ring", "NCCL_API_TOKEN": "s3", "HOME": "/nowhere", "OMP_NUM_THREADS": "2"}
    reported = collect(PAIR, FakeDevices(2), environment=variables, reported={"nccl_version": "2.28.9"}).reported
    assert reported["nccl_version"] == "2.28.9"
    assert {name: value for name, value in reported.items() if name.startswith("variable.")} == {
        "variable.NCCL_ALGO": "Ring", "variable.NCCL_API_TOKEN": REDACTED, "variable.OMP_NUM_THREADS": "2"}


def test_ranks_use_the_visible_gpus_in_order() -> None:
    visible = {"CUDA_VISIBLE_DEVICES": "3,1"}
    assert rank_gpus(PAIR, FakeDevices(4), visible) == (3, 1)
    assert rank_gpus(SHARED, FakeDevices(4), visible) == (3,)
    assert rank_gpus(CPU, FakeDevices(4), visible) == ()


@pytest.mark.parametrize(("plan", "devices", "sharing", "line"), [
    (PAIR, FakeDevices(2), None,
     "2 ranks on 2x NVIDIA H200 (NVLink 4.0 x18), nccl 2.28.9, torch 2.11, driver 580.1"),
    (SHARED, FakeDevices(1, readings=[replace(WELL, nvlink_active=None)]), "mps",
     "2 ranks on 1x NVIDIA H200 (PCIe 5 x16), shared by the ranks (mps), nccl 2.28.9, torch 2.11, driver 580.1"),
])
def test_the_header_names_devices_link_backend_torch_and_driver(plan: RankPlan, devices: FakeDevices,
                                                                sharing: str | None, line: str) -> None:
    seen = collect(plan, devices, environment={}, gpu_sharing=sharing,
                   reported={"nccl_version": "2.28.9", "torch_version": "2.11"})
    assert describe_devices(plan, seen) == line


def test_links_that_differ_or_cannot_be_read() -> None:
    mixed = FakeDevices(2, readings=[WELL, replace(WELL, nvlink_active=None)])
    assert link_class(mixed, (0, 1)) == "mixed"
    blind = FakeDevices(2, path=None, readings=[replace(WELL, nvlink_active=None, pcie_generation_max=None)])
    assert link_class(blind, (0, 1)) is None
    assert topology_class(blind, (0, 1), None) is None
    assert topology_class(blind, (0,), None) == "single"


def test_the_topology_matrix_wins_over_nvml() -> None:
    assert parse_matrix(MATRIX)[0, 2] == "PIX"
    assert (2, 3) not in parse_matrix(MATRIX)
    assert topology_class(FakeDevices(3), (0, 1), MATRIX) == "NVLink"
    assert topology_class(FakeDevices(3), (0, 1, 2), MATRIX) == "NVLink+PIX+SYS"
    assert topology_class(FakeDevices(3), (0, 1), "nothing of use") == "SYS"


@pytest.mark.parametrize(("name", "value", "shown"), [
    ("NCCL_ALGO", "Tree", "Tree"), ("UCX_KEY_FILE", "x", REDACTED), ("FI_AUTH", "x", REDACTED),
    ("GLOO_STORE", "tcp://me:pw@host:1", f"tcp://{REDACTED}@host:1"),
])
def test_secrets_are_not_shown(name: str, value: str, shown: str) -> None:
    assert redact(name, value) == shown


@given(st.dictionaries(st.text(min_size=1, max_size=12), st.text(max_size=12)))
def test_only_allowed_variables_are_kept(environment: dict[str, str]) -> None:
    for name in allowed_variables(environment):
        assert name.startswith(("variable.NCCL_", "variable.TORCH_NCCL_", "variable.GLOO_", "variable.UCX_",
                                "variable.FI_", "variable.OMP_", "variable.CUDA_"))


def test_nccls_own_files_are_read_as_nccl_reads_them(tmp_path: Path) -> None:
    system, named = tmp_path / "nccl.conf", tmp_path / "own.conf"
    system.write_text("# site\nNCCL_DEBUG=WARN\nNCCL_IB_HCA = mlx5  # ours\nnonsense\n")
    named.write_text("NCCL_DEBUG=INFO\nNCCL_SECRET=1\n")
    assert conf_files({"NCCL_CONF_FILE": str(named), "HOME": "/h"}, system) == [system, named]
    assert conf_files({"HOME": "/h"}, system) == [system, Path("/h/.nccl.conf")]
    assert conf_variables([system, named, tmp_path / "absent"]) == {
        "nccl_conf.NCCL_DEBUG": "INFO", "nccl_conf.NCCL_IB_HCA": "mlx5", "nccl_conf.NCCL_SECRET": REDACTED}


def test_torch_versions_come_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text("from typing import Optional\n__version__ = '2.9.0+cu130'\n"
                                         "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n")
    assert (torch_version(tmp_path), torch_cuda_version(tmp_path)) == ("2.9.0+cu130", "13.0")
    (tmp_path / "version.py").write_text("__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\n")
    assert (torch_version(tmp_path), torch_cuda_version(tmp_path)) == ("2.9.0+cpu", None)
    assert torch_version(tmp_path / "absent") is None
    assert torch_version(None) is None


def _root(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_limits_of_the_container_in_both_cgroup_versions(tmp_path: Path) -> None:
    two = _root(tmp_path / "2", {"sys/fs/cgroup/cpu.max": "150000 100000\n", "sys/fs/cgroup/memory.max": "1048576\n"})
    free = _root(tmp_path / "f", {"sys/fs/cgroup/cpu.max": "max 100000\n", "sys/fs/cgroup/memory.max": "max\n"})
    one = _root(tmp_path / "1", {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000", "sys/fs/cgroup/cpu/cpu.cfs_period_us":
                                 "100000", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"})
    assert [host.cpu_limit_cores(root) for root in (two, free, one, tmp_path)] == [1.5, None, 2.0, None]
    assert [host.memory_limit_bytes(root) for root in (two, free, one, tmp_path)] == [1048576, None, None, None]


def test_processor_image_and_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _root(tmp_path, {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Fast CPU\n", "run/.containerenv": 'image="a"\nimageid="b1"\n',
        "proc/stat": "cpu  10 1 5 80 4 0 0 7 3 0\ncpu0 1\nprocs_running 6\nprocs_blocked 0\n",
        "sys/fs/cgroup/cpu.stat": "usage_usec 5\nnr_periods 9\nnr_throttled 2\n"})
    assert host.cpu_model(root) == "Fast CPU"
    assert host.image({}, root) == "b1"
    assert host.image({"COMM_REGRESS_IMAGE": "sha256:0"}, root) == "sha256:0"
    assert host.image({}, tmp_path / "absent") is None
    assert host.cpu_counters(root) == host.CpuCounters(107, 84, 7, 9, 2)
    assert host.cpu_counters(tmp_path / "absent") is None
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert host.runnable_per_core(root) == 1.5
    assert host.runnable_per_core(tmp_path / "absent") is None
