"""Where the seconds of a launch go: from the order to start ranks until the last one has ended.

    python -m perf.launch_cost [--device auto] [--launches 3]

Runs the packaged cases untraced and prints, for the slowest rank, the median over launches of every stage: starting the
process, what torch takes to import and the device to wake, the communicator, each case's phases, and leaving. Then what
single imports of a rank cost in fresh processes of their own.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import msgspec

from perf.spread import launches_for, spec_of
from regress.catalog import open_shelves
from regress.config import load_config
from regress.measure.guard import process_file
from regress.measure.progress import progress_file
from regress.measure.ranks import plan_ranks
from regress.record import Progress

PROGRAMS = {
    "python alone": "pass",
    "+ import torch": "import torch",
    "+ torch.distributed": "import torch.distributed as d; import torch.distributed.distributed_c10d",
    "+ DDP": "from torch.nn.parallel import DistributedDataParallel",
    "torch._dynamo": "import torch._dynamo",
    "+ a tensor on the GPU": "import torch; torch.ones(1, device='cuda')",
}


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--launches", type=int, default=3)
    arguments = parser.parse_args()
    stages(arguments.device, arguments.launches)
    imports(with_gpu=plan_ranks(arguments.device).device == "cuda")


def stages(device: str, count: int) -> None:
    """Prints the stages of so many launches."""
    plan = plan_ranks(device)
    config = load_config(None, open_shelves().catalog())
    cases = tuple(config.plan(plan.device, plan.world_size))
    seconds = config.device(plan.device).case_duration
    found: dict[str, list[float]] = defaultdict(list)
    with launches_for(plan) as (launcher, environment), tempfile.TemporaryDirectory() as folder:
        launcher.start()
        time.sleep(10)  # the agent's own import overlaps with other work of the gate, and is not of the launch
        for index in range(count):
            results = Path(folder, str(index))
            spec = spec_of(plan, cases, index, seconds, str(results))
            began = time.time()
            result = launcher.launch(spec, index=index, role="head", deadline_seconds=300, environment=environment)
            ended = time.time()
            print(f"launch {index}: {result.wall_seconds:.1f} s, {result.error or 'well'}", flush=True)
            for stage, value in stages_of(results, plan.world_size, began, ended).items():
                found[stage].append(value)
        closing = time.monotonic()
    closing = time.monotonic() - closing
    for stage, values in found.items():
        print(f"{statistics.median(values):8.2f} s  {stage}")
    print(f"{closing:8.2f} s  closing the launcher and the service")


def stages_of(folder: Path, world_size: int, began: float, ended: float) -> dict[str, float]:
    """Seconds of each stage by its name, the slowest rank's."""
    slowest: dict[str, float] = defaultdict(float)
    for rank in range(world_size):
        lines = [msgspec.json.decode(line, type=Progress)
                 for line in progress_file(folder, rank).read_bytes().splitlines()]
        started = process_file(folder, rank).stat().st_mtime
        of_rank: dict[str, float] = defaultdict(float)
        of_rank["order to rank process under guard"] = started - began
        of_rank["benchmarks' own imports"] = lines[0].unix_time - started
        for begin, end in itertools.pairwise(lines):
            if not begin.done and end.done and begin.operation == end.operation:
                key = begin.operation if not begin.case else f"{begin.case}: {begin.operation}"
            else:
                key = "between phases"
            of_rank[key] += end.unix_time - begin.unix_time
        of_rank["leaving, until the launcher knows"] = ended - lines[-1].unix_time
        for key, value in of_rank.items():
            slowest[key] = max(slowest[key], value)
    return dict(slowest)


def imports(*, with_gpu: bool) -> None:
    """Prints what fresh processes take, the median of three."""
    for name, program in PROGRAMS.items():
        if "GPU" in name and not with_gpu:
            continue
        walls = []
        for _ in range(3):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], check=True)
            walls.append(time.perf_counter() - began)
        print(f"{statistics.median(walls):8.2f} s  process: {name}")


if __name__ == "__main__":
    main()
