"""The checks over machines that exist only as facts; their whole output is kept under tests/data/doctor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from regress.doctor.facts import DriverFacts, Facts, Finding, GpuFacts, Level, NsysFacts, TorchFacts
from regress.doctor.report import Report, examine, report_json, report_lines
from regress.measure.devices import GpuReading
from tests.doctor import machines
from tests.measure.fakes import WELL

GOLDEN = Path(__file__).parents[1] / "data" / "doctor"
MACHINES = {"cpu_only": machines.CPU_ONLY, "pair": machines.PAIR, "shared": machines.SHARED, "sick": machines.SICK}


def text(report: Report) -> str:
    return "\n".join(line for line, _ in report_lines(report)) + "\n"


def line(facts: Facts, name: str) -> Finding:
    (found,) = [finding for finding in examine(facts).findings if finding.name == name]
    return found


@pytest.mark.parametrize("name", MACHINES)
def test_the_whole_text(name: str) -> None:
    assert text(examine(MACHINES[name])) == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", MACHINES)
def test_the_whole_json(name: str) -> None:
    assert report_json(examine(MACHINES[name])) == json.loads((GOLDEN / f"{name}.json").read_text())


def test_whatever_is_not_well_comes_with_a_fix() -> None:
    for facts in MACHINES.values():
        for finding in examine(facts).findings:
            assert (finding.level is Level.OK) == (finding.fix == ""), finding
            assert not (finding.doubtful and finding.level is Level.OK), finding


@pytest.mark.parametrize(("name", "status"), [("cpu_only", 0), ("pair", 0), ("shared", 0), ("sick", 10)])
def test_a_ci_job_starts_on_a_well_machine_only(name: str, status: int) -> None:
    assert examine(MACHINES[name]).ci_status == status


def test_a_gpu_of_which_the_driver_tells_nothing_is_not_well() -> None:
    mute = replace(machines.PAIR, gpus=(machines.PAIR.gpus[0], GpuFacts(1, None, True, GpuReading())))
    assert line(mute, "gpu0").level is Level.OK
    assert line(mute, "gpu1") == Finding(
        "gpu", "gpu1", Level.WARN, "the driver lists it and tells nothing about it",
        "run `nvidia-smi -q -i 1`: it says why; where the GPU fell off the bus, reset it or reboot the host",
        doubtful=True)


def test_a_doubtful_warning_stops_ci_and_does_not_block() -> None:
    report = examine(replace(machines.CPU_ONLY, host=replace(machines.HOST, busy_ratio=0.99, load_per_core=4.0)))
    assert report.ci_status == 10
    assert all(finding.level is not Level.BLOCKS for finding in report.findings)
    assert report.verdict == "a run would be inconclusive: 1 reason"


def test_a_job_that_began_seconds_ago_is_seen_before_the_load_average_shows_it() -> None:
    host = replace(machines.HOST, busy_ratio=0.99, load_per_core=0.2, runnable_per_core=3.5)
    report = examine(replace(machines.CPU_ONLY, host=host))
    assert report.ci_status == 10
    assert any("99% of the CPU was busy, 3.5 tasks wanted each core" in finding.seen for finding in report.findings)


@pytest.mark.parametrize(("built", "known", "level"), [
    ("12.8", "13.0", Level.OK), ("13.0", "13.0", Level.OK), ("13.2", "13.0", Level.WARN),
    ("13.0", "12.4", Level.BLOCKS), ("12.10", "12.9", Level.WARN)])
def test_cuda_of_torch_against_the_driver(built: str, known: str, level: Level) -> None:
    facts = replace(machines.PAIR, torch=replace(machines.CUDA_TORCH, cuda_build=built),
                    driver=DriverFacts(True, True, "550.1", known))
    assert line(facts, "driver").level is level


def test_nccl_that_is_not_the_one_torch_came_with() -> None:
    preloaded = replace(machines.PAIR, torch=replace(machines.CUDA_TORCH, nccl_loaded="2.21.5"))
    assert line(preloaded, "NCCL").seen == "torch loads NCCL 2.21.5, pip has 2.28.9"
    assert "LD_PRELOAD" in line(preloaded, "NCCL").fix


@pytest.mark.parametrize(("torch", "seen"), [
    (TorchFacts(error="PyTorch is not installed"), "PyTorch is not installed"),
    (TorchFacts(version="2.4", distributed=False), "torch 2.4 was built without torch.distributed")])
def test_without_a_usable_torch_nothing_can_be_measured(torch: TorchFacts, seen: str) -> None:
    facts = replace(machines.CPU_ONLY, plan=None, plan_error="no torch", torch=torch)
    assert (line(facts, "torch").level, line(facts, "torch").seen) == (Level.BLOCKS, seen)
    assert text(examine(facts)).startswith("comm-regress doctor: nothing can be measured here\n")


def test_a_cpu_build_of_torch_on_a_machine_with_gpus() -> None:
    found = line(replace(machines.PAIR, torch=machines.CPU_TORCH), "NCCL")
    assert (found.level, found.seen) == (Level.BLOCKS, "this torch has no NCCL backend")


@pytest.mark.parametrize(("facts", "level", "seen"), [
    (Facts(wish="cuda"), Level.BLOCKS, "no NVIDIA driver"),
    (Facts(driver=DriverFacts(present=True)), Level.BLOCKS, "an NVIDIA driver is loaded, but NVML does not answer"),
    (Facts(driver=DriverFacts(True, True)), Level.WARN, "the driver lists no GPU"),
    (Facts(wish="cuda", driver=DriverFacts(True, True), gpus=(GpuFacts(0, "A100", False, WELL),)), Level.BLOCKS,
     "1x A100, all hidden by CUDA_VISIBLE_DEVICES")])
def test_gpus_that_cannot_be_used(facts: Facts, level: Level, seen: str) -> None:
    assert (line(facts, "devices").level, line(facts, "devices").seen) == (level, seen)


@pytest.mark.parametrize(("ranks", "free_mib", "level"), [
    (2, 64, Level.WARN), (4, 64, Level.BLOCKS), (8, 64, Level.BLOCKS), (8, 900, Level.WARN), (8, 4096, Level.OK)])
def test_shared_memory_for_that_many_ranks(ranks: int, free_mib: int, level: Level) -> None:
    assert machines.PAIR.plan is not None
    facts = replace(machines.PAIR, plan=replace(machines.PAIR.plan, world_size=ranks), host=replace(
        machines.HOST, shm_total=free_mib << 20, shm_free=free_mib << 20))
    assert line(facts, "/dev/shm").level is level


@pytest.mark.parametrize(("container", "fix"), [
    (None, "mount -o remount,size=1g /dev/shm"), ("docker", "start the container with --ipc=host or --shm-size=1g"),
    ("kubernetes", "mount an emptyDir with `medium: Memory` at /dev/shm")])
def test_more_shared_memory_depends_on_where_we_are(container: str | None, fix: str) -> None:
    facts = replace(machines.PAIR, host=replace(machines.HOST, shm_free=1, container=container))
    assert line(facts, "/dev/shm").fix == fix


@pytest.mark.parametrize(("nsys", "name", "level"), [
    (NsysFacts(error="REGRESS_NSYS=/x is no nsys that runs"), "nsys", Level.BLOCKS),
    (NsysFacts(), "nsys", Level.WARN),
    (NsysFacts(path="/n", version="2025.3", importer_obstacle="the importer /i lacks libQt.so"), "nsys", Level.WARN),
    (NsysFacts(path="/n", version="2022.4", nvtx_warning="loses ranges: install nvtx<0.2.12"), "nvtx", Level.WARN)])
def test_what_stands_in_the_way_of_a_trace(nsys: NsysFacts, name: str, level: Level) -> None:
    assert line(replace(machines.PAIR, nsys=nsys), name).level is level


def test_an_idle_link_that_trained_down_is_well() -> None:
    gpu = GpuFacts(0, "NVIDIA H200", True, replace(WELL, pcie_generation=1))
    assert line(replace(machines.PAIR, gpus=(gpu,)), "gpu0").level is Level.OK


def test_memory_in_use_by_somebody_who_cannot_be_seen() -> None:
    gpu = GpuFacts(0, "NVIDIA H200", True, replace(WELL, memory_used=9 << 30))
    found = line(replace(machines.PAIR, gpus=(gpu,)), "gpu0")
    assert (found.level, found.doubtful) == (Level.WARN, True)
    assert "9.0 GiB of memory in use" in found.seen


@pytest.mark.parametrize(("change", "name", "level", "words"), [
    ({"git": False}, "git", Level.WARN, "git is not installed"),
    ({"sha": None}, "git", Level.WARN, "no repository"),
    ({"main_branch": None}, "git", Level.WARN, "which branch is the main one is not known"),
    ({"thresholds_error": "t.yaml:3: no"}, "thresholds", Level.BLOCKS, "t.yaml:3: no"),
    ({"history_error": "read-only"}, "history", Level.BLOCKS, "read-only"),
    ({"history_runs": None}, "history", Level.OK, "will be made"),
    ({"lock_error": "cannot open the lock"}, "lock", Level.BLOCKS, "cannot open")])
def test_the_project(change: dict[str, object], name: str, level: Level, words: str) -> None:
    facts = replace(machines.CPU_ONLY, project=replace(machines.PROJECT, **change))  # type: ignore[arg-type]
    assert line(facts, name).level is level
    assert words in line(facts, name).seen


def test_the_page_shows_a_machine_with_everything_wrong() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    assert (GOLDEN / "sick.txt").read_text() in page


def test_how_two_ranks_talk_on_one_gpu_is_said() -> None:
    posing = line(machines.SHARED, "multi-process service")
    assert posing.seen.endswith("side by side, and talk over sockets")
    assert machines.SHARED.plan is not None
    allowed = line(replace(machines.SHARED, plan=replace(machines.SHARED.plan, multi_rank_gpu=True)),
                   "multi-process service")
    assert allowed.seen.endswith("side by side, and talk as this NCCL lets them")
