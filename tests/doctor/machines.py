"""Machines that exist only as facts."""

from __future__ import annotations

from dataclasses import replace

from regress.doctor.facts import (
    DriverFacts,
    Facts,
    GpuFacts,
    HostFacts,
    LinkFacts,
    MpsFacts,
    NsysFacts,
    ProjectFacts,
    TorchFacts,
)
from regress.measure.ranks import RankPlan
from tests.measure.fakes import WELL

GIB = 1 << 30
HOST = HostFacts(cpu_model="AMD EPYC", cores=32, busy_ratio=0.02, load_per_core=0.1, steal_ratio=0.0,
                 shm_total=64 * GIB, shm_free=64 * GIB, nofile=65536)
PROJECT = ProjectFacts(sha="0123456789abcdef", branch="main", main_branch="main", thresholds="the packaged thresholds",
                       cases=13, history=".comm-regress", history_runs=7, disk_free=90 * GIB)
CPU_TORCH = TorchFacts(version="2.13.0+cpu", distributed=True, gloo=True)
CUDA_TORCH = TorchFacts(version="2.13.0+cu130", cuda_build="13.0", distributed=True, gloo=True, nccl=True,
                        nccl_wanted="2.28.9", nccl_installed="2.28.9", nccl_loaded="2.28.9", cuda_works=True,
                        cuda_devices=2)

CPU_ONLY = Facts(plan=RankPlan(2, "cpu", "gloo", False, 16), torch=CPU_TORCH, host=HOST, project=PROJECT)
PAIR = Facts(
    plan=RankPlan(2, "cuda", "nccl", False, 16),
    gpus=tuple(GpuFacts(index, "NVIDIA H200", True, WELL) for index in range(2)),
    driver=DriverFacts(True, True, "580.159", "13.0"), links=LinkFacts("NVLink 4.0 x18", "NVLink"), torch=CUDA_TORCH,
    nsys=NsysFacts(path="/usr/local/bin/nsys", version="2025.3.1.90"), host=HOST, project=PROJECT)
SHARED = replace(
    PAIR, plan=RankPlan(2, "cuda", "nccl", True, 8), gpus=PAIR.gpus[:1], links=LinkFacts("NVLink 4.0 x18", "single"),
    torch=replace(CUDA_TORCH, cuda_devices=1), mps=MpsFacts("/usr/bin/nvidia-cuda-mps-control"))
SICK = replace(
    SHARED, mps=MpsFacts(),
    gpus=(GpuFacts(0, "NVIDIA H200", True, replace(
        WELL, pids=(71,), persistence=False, mig=True, compute_mode="exclusive process", nvlink_inactive=2,
        nvlink_active=16, remap_pending=True)),),
    torch=replace(CUDA_TORCH, cuda_devices=1, cuda_build="13.1", nccl_installed="2.27.3"),
    nsys=NsysFacts(path="/opt/nvidia/nsys", version="2024.2.3", payloads=False,
                   gpu_metrics_obstacle="the driver reserves GPU counters for administrators (RmProfilingAdminOnly: "
                                        "1): load it with NVreg_RestrictProfilingToAdminUsers=0, or run with "
                                        "CAP_SYS_ADMIN"),
    host=replace(HOST, cores=16, cpu_limit_cores=1.5, memory_limit=2 * GIB, busy_ratio=0.97, load_per_core=2.0,
                 shm_total=64 << 20, shm_free=60 << 20, stale_shm=3, stale_shm_bytes=29 << 20, memlock=64 << 10,
                 nofile=256, container="docker", reaps=False),
    project=replace(PROJECT, shallow=True, history_problems=("x.json: not JSON",), disk_free=1 << 20,
                    unfit=(("allreduce[1MiB-float32-4xcuda]", "4 ranks on 1 visible GPU"),),
                    lock_holder="process 12 (pytest --comm-regress) since 2026-01-01T00:00:00+00:00"),
    variables=(("NCCL_P2P_DISABLE", "1"),))
