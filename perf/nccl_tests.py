"""Our back-to-back figures beside those of nccl-tests, launch by launch in one run.

    python -m perf.nccl_tests FOLDER [--rounds 5] [-b 1MiB] [-e 256MiB] [-f 16] [-n 20] [--mpiexec PATH] [--json FILE]

FOLDER holds all_reduce_perf and all_gather_perf of nccl-tests 2.17 or newer (their JSON is read). Sizes go from -b to
-e by the factor -f, as there; allgather sizes are the gathered total, as there. On several GPUs theirs is one process
for all (-g). Two ranks on the only GPU need nccl-tests built with MPI=1 and an mpiexec: each process gets what the gate
gives its ranks, under the same multi-process service.

Every round runs theirs and ours in turn, the order changing. Printed for each case: the median over rounds of both, and
the ratio ours / theirs: its median over rounds, smallest and largest. Compared is what is alike: torch's all_reduce
works in place, its all_gather_into_tensor out of place.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from perf.spread import launches_for, spec_of
from regress.catalog import open_shelves
from regress.measure.ranks import RankPlan, plan_ranks
from regress.measure.torchrun import TorchrunLauncher
from regress.outcomes import fold_launch
from regress.record import Case, TimingMode
from regress.units import format_seconds, format_size, parse_size

PROGRAMS = {"allreduce": ("all_reduce_perf", "in_place"), "allgather": ("all_gather_perf", "out_of_place")}
MODES = (TimingMode.PIPELINED, TimingMode.ISOLATED, TimingMode.GRAPH)
Figures = dict[tuple[str, int, str], float]
"""Seconds a call by workload, message size in bytes, and how it was timed."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where both are measured. environment: what ranks need to share a GPU. sizes: in bytes."""

    plan: RankPlan
    launcher: TorchrunLauncher
    environment: Mapping[str, str | None]
    sizes: list[int]
    arguments: argparse.Namespace


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-b", dest="begin", default="1MiB")
    parser.add_argument("-e", dest="end", default="256MiB")
    parser.add_argument("-f", dest="factor", type=int, default=16)
    parser.add_argument("-n", dest="iterations", type=int, default=20)
    parser.add_argument("--mpiexec", default=shutil.which("mpiexec"))
    parser.add_argument("--case-seconds", type=float, default=0.3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    plan = plan_ranks("cuda")
    sizes = list(sizes_between(parse_size(arguments.begin, "-b"), parse_size(arguments.end, "-e"), arguments.factor))
    rounds = []
    with launches_for(plan) as (launcher, environment):
        setting = Setting(plan, launcher, environment, sizes, arguments)
        for index in range(arguments.rounds):
            order = (ours, theirs) if index % 2 else (theirs, ours)
            made = {measure: measure(setting, index) for measure in order}
            rounds.append((made[theirs], made[ours]))
            print(f"round {index + 1} of {arguments.rounds}", flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps([[_named(their), _named(our)] for their, our in rounds]))
    table(rounds)


def sizes_between(begin: int, end: int, factor: int) -> Iterator[int]:
    """Message sizes in bytes as nccl-tests' -b, -e and -f make them."""
    while begin <= end:
        yield begin
        begin *= factor


def theirs(setting: Setting, _index: int) -> Figures:
    """One run of each of their programs, all sizes in it."""
    arguments, sizes = setting.arguments, setting.sizes
    found: Figures = {}
    for workload, (program, place) in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.json")
            flags = [str(arguments.folder / program), "-b", str(sizes[0]), "-e", str(sizes[-1]),
                     "-f", str(arguments.factor), "-n", str(arguments.iterations), "-w", "5", "-J", str(report)]
            known = {name: value for name, value in setting.environment.items() if value is not None}
            done = subprocess.run(command(setting.plan, flags, arguments.mpiexec), env={**os.environ, **known},
                                  check=False, capture_output=True, text=True, timeout=300)
            if done.returncode != 0 or not report.exists():
                raise SystemExit(f"{program} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
            found |= {(workload, row["size"], "nccl-tests"): row[place]["time"] * 1e-6
                      for row in json.loads(report.read_text())["results"]}
    return found


def command(plan: RankPlan, flags: list[str], mpiexec: str | None) -> list[str]:
    """How their program is started: one process for all GPUs, or two that share the only one."""
    if not plan.shared_gpu:
        return [*flags, "-g", str(plan.world_size)]
    if mpiexec is None:
        raise SystemExit("two ranks on one GPU need an mpiexec: --mpiexec PATH")
    parts: list[str] = [mpiexec]
    for rank in range(plan.world_size):
        sharing = [] if plan.multi_rank_gpu else [
            "-env", "NCCL_HOSTID", f"comm-regress-{rank}", "-env", "NCCL_SOCKET_IFNAME", "lo"]
        parts += [*([":"] if rank else []), "-n", "1", "-env", "NCCL_TESTS_DEVICE", "0", *sharing, *flags]
    return parts


def ours(setting: Setting, index: int) -> Figures:
    """The means of one launch of ours, every size in every timing mode."""
    plan, shelves = setting.plan, open_shelves()
    cases = tuple(Case(workload, "float32", plan.world_size, "cuda", mode, size)
                  for mode in MODES for workload in PROGRAMS for size in setting.sizes)
    spec = spec_of(plan, cases, index, setting.arguments.case_seconds)
    result = setting.launcher.launch(spec, index=index, role="head", deadline_seconds=300,
                                     environment=setting.environment)
    launch = fold_launch(result, {case.workload: shelves.metrics_of(case.workload) for case in cases}, 0)
    found: Figures = {}
    for outcome in launch.outcomes:
        case, measured = outcome.case, outcome.get(f"{outcome.case.workload}_seconds")
        if measured is None or case.message_size_bytes is None:
            raise SystemExit(f"{case.id}: {outcome.error or launch.error or 'nothing was measured'}")
        found[case.workload, case.message_size_bytes, case.timing.value] = measured.statistics["mean"]
    return found


def _named(figures: Figures) -> dict[str, float]:
    return {" ".join(str(part) for part in key): value for key, value in figures.items()}


def table(rounds: list[tuple[Figures, Figures]]) -> None:
    """Prints a Markdown row for every case and timing mode."""
    ratios: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for their, our in rounds:
        for (workload, size, mode), seconds in our.items():
            ratios[workload, size, mode].append(seconds / their[workload, size, "nccl-tests"])
    print("| case | timing | nccl-tests | ours | ratio: median (smallest to largest) |\n|---|---|---|---|---|")
    for key in sorted(ratios):
        workload, size, mode = key
        there = statistics.median(their[workload, size, "nccl-tests"] for their, _ in rounds)
        here = statistics.median(our[key] for _, our in rounds)
        print(f"| {workload} {format_size(size)} | {mode} | {format_seconds(there)} | {format_seconds(here)} | "
              f"{statistics.median(ratios[key]):.3f} ({min(ratios[key]):.3f} to {max(ratios[key]):.3f}) |")


if __name__ == "__main__":
    main()
