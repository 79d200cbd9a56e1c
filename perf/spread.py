"""Spread between launches of the same code: each collective at each size in all three timing modes.

    python perf/spread.py collect spread.jsonl --launches 15 [--device cuda] [--sizes 4KiB,1MiB] [--seconds 600]
    python perf/spread.py table spread.jsonl

Collecting appends one JSON line a launch (metrics with their quantiles, no samples), so that it can be stopped and gone
on with. The table says for each case the median over launches of each launch's mean, median and lower quartile, their
spread (standard deviation of the logarithms), and how much longer a call takes in this mode than in a CUDA graph or,
where there is none, back to back.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from regress.catalog import open_shelves
from regress.measure.mps import own_mps
from regress.measure.ranks import RankPlan, plan_ranks
from regress.measure.torchrun import TorchrunLauncher
from regress.outcomes import fold_launch
from regress.record import Case, Launch, LaunchSpec, TimingMode, to_json
from regress.units import parse_size

STATISTICS = ("mean", "p50", "p25")
MODES = (TimingMode.GRAPH, TimingMode.PIPELINED, TimingMode.ISOLATED)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("collect", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--launches", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sizes", default="4KiB,256KiB,1MiB,16MiB")
    parser.add_argument("--case-seconds", type=float, default=0.1)
    arguments = parser.parse_args()
    if arguments.what == "collect":
        plan = plan_ranks(arguments.device)
        collect(arguments.file, plan, cases_of(plan, arguments.sizes.split(",")), arguments)
    table(arguments.file)


def cases_of(plan: RankPlan, sizes: list[str]) -> tuple[Case, ...]:
    """Both collectives at every size in every mode that the device has, a mode's cases apart from each other."""
    modes = MODES if plan.device == "cuda" else MODES[1:]
    return tuple(Case(workload, "float32", plan.world_size, plan.device, mode, parse_size(size, "--sizes"))
                 for mode in modes for workload in ("allreduce", "allgather") for size in sizes)


def spec_of(plan: RankPlan, cases: tuple[Case, ...], seed: int, case_seconds: float, results: str = "") -> LaunchSpec:
    """What the ranks of that plan are told of one launch, as the gate tells them."""
    return LaunchSpec(cases, seed, plan.backend, results, case_seconds, plan.threads_per_rank, plan.shared_gpu,
                      multi_rank_gpu=plan.multi_rank_gpu)


@contextmanager
def launches_for(plan: RankPlan) -> Iterator[tuple[TorchrunLauncher, dict[str, str | None]]]:
    """A launcher, and what its ranks need to share a GPU."""
    with TorchrunLauncher(plan.world_size) as launcher:
        if not plan.shared_gpu:
            yield launcher, {}
            return
        with own_mps(mark=launcher.mark) as service:
            yield launcher, dict(service.environment)


def collect(path: Path, plan: RankPlan, cases: tuple[Case, ...], arguments: argparse.Namespace) -> None:
    """Appends launches until there are as many as wished or the time is over."""
    shelves = open_shelves()
    metrics = {case.workload: shelves.metrics_of(case.workload) for case in cases}
    end = time.monotonic() + arguments.seconds
    index = len(path.read_bytes().splitlines()) if path.exists() else 0
    with launches_for(plan) as (launcher, environment), path.open("ab") as out:
        while index < arguments.launches and time.monotonic() < end:
            spec = spec_of(plan, cases, index, arguments.case_seconds)
            result = launcher.launch(spec, index=index, role="head", deadline_seconds=180, environment=environment)
            out.write(to_json(without_samples(fold_launch(result, metrics, 0))) + b"\n")
            out.flush()
            index += 1
            print(f"launch {index}: {result.wall_seconds:.1f} s", flush=True)


def without_samples(launch: Launch) -> Launch:
    """The launch with the quantiles of each metric only, a tenth of its size."""
    return replace(launch, outcomes=tuple(
        replace(outcome, measurements=tuple(replace(m, samples=()) for m in outcome.measurements))
        for outcome in launch.outcomes))


def table(path: Path) -> None:
    """Prints the spread of every case, a Markdown row each."""
    launches = [msgspec.json.decode(line, type=Launch) for line in path.read_bytes().splitlines()]
    values: dict[Case, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for launch in launches:
        for outcome in launch.outcomes:
            measured = outcome.get(f"{outcome.case.workload}_seconds")
            if measured is not None:
                for name in STATISTICS:
                    values[outcome.case][name].append(measured.statistics[name])
    print(f"{len(launches)} launches\n\n| case | timing | mean | median | lower quartile | spread of mean | of median "
          "| of lower quartile | against the quickest mode |\n|---|---|---|---|---|---|---|---|---|")
    for case in sorted(values, key=lambda c: (c.workload, c.message_size_bytes or 0, MODES.index(c.timing))):
        found = values[case]
        middle = {name: statistics.median(found[name]) for name in STATISTICS}
        quickest = min(statistics.median(values[other]["mean"]) for other in values
                       if (other.workload, other.message_size_bytes) == (case.workload, case.message_size_bytes))
        cells = [f"{middle[name] * 1e6:.1f} µs" for name in STATISTICS]
        cells += [f"{100 * log_deviation(found[name]):.1f} %" for name in STATISTICS]
        print(f"| {case.workload} {(case.message_size_bytes or 0) // 1024} KiB | {case.timing.value} | "
              f"{' | '.join(cells)} | +{100 * (middle['mean'] / quickest - 1):.0f} % |")


def log_deviation(values: list[float]) -> float:
    """Standard deviation of the logarithms: a spread as a fraction of the value."""
    return statistics.stdev([math.log(value) for value in values]) if len(values) > 1 else math.nan


if __name__ == "__main__":
    main()
