"""Profiles that a traced launch might have left, without a profiler."""

from __future__ import annotations

from pathlib import Path

from regress.record import LaunchSpec
from tests.trace.made import kineto, kineto_rank


def write_profiles(spec: LaunchSpec) -> None:
    """A profile of each rank, in the launch's folder: one step of 400 µs a case, one case after the other."""
    ranks = spec.cases[0].world_size
    for rank in range(ranks):
        events: list[dict[str, object]] = []
        for number, case in enumerate(spec.cases):
            at = number * 1000.0
            events += [{**event, "ts": float(str(event["ts"])) + at} for event in kineto_rank(rank, ranks)]
            events.append({"ph": "X", "cat": "user_annotation", "name": f"case:{case.id}", "pid": 40 + rank,
                           "tid": 1, "ts": at + 80.0, "dur": 420.0, "args": {}})
        kineto(Path(spec.results_dir, f"rank{rank}.kineto.json.gz"), events,
               distributedInfo={"rank": rank, "world_size": ranks, "backend": "nccl"})
