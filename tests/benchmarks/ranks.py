"""Starts the ranks of one launch without torchrun's agent, which only costs time here."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from regress.record import Case, LaunchSpec, Progress, RankResult, Scalar, TimingMode, rank_result_from_json, to_json

ROOT = Path(__file__).resolve().parents[2]
WORLD_SIZE = 2


def collective(workload: str, size_bytes: int, timing: TimingMode = TimingMode.ISOLATED,
               dtype: str = "float32") -> Case:
    return Case(workload, dtype, WORLD_SIZE, "cpu", timing, size_bytes)


def step(dtype: str = "float32", **options: Scalar) -> Case:
    return Case("ddp_step", dtype, WORLD_SIZE, "cpu", TimingMode.STEP, options=tuple(sorted(options.items())))


@dataclass(frozen=True, slots=True)
class Ended:
    """What the ranks of a launch left, by rank."""

    folder: Path
    statuses: tuple[int, ...]
    stderr: tuple[str, ...]

    def result(self, rank: int, index: int) -> RankResult:
        path = self.folder / f"rank{rank}.case{index}.json"
        return rank_result_from_json(path.read_bytes(), str(path))

    def progress(self, rank: int) -> list[Progress]:
        lines = (self.folder / f"rank{rank}.progress.jsonl").read_bytes().splitlines()
        return [msgspec.json.decode(line, type=Progress) for line in lines]


def launch(folder: Path, *cases: Case, path: tuple[Path, ...] = (), root: Path = ROOT, tracer: str = "none",
           case_seconds: float = 0.05, variables: Mapping[str, str] | None = None) -> Ended:
    """Runs the cases in fresh rank processes. `path`: put before PYTHONPATH of the ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = LaunchSpec(cases, 1, "gloo", str(folder), case_seconds, tracer=tracer)
    spec_file = folder / "launch.json"
    spec_file.write_bytes(to_json(spec))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [_start(spec_file, rank, port, (*path, root), variables or {}) for rank in range(WORLD_SIZE)]
    stderr = tuple(rank.communicate(timeout=120)[1] for rank in ranks)
    return Ended(folder, tuple(rank.returncode for rank in ranks), stderr)


def _start(spec_file: Path, rank: int, port: int, path: tuple[Path, ...],
           variables: Mapping[str, str]) -> subprocess.Popen[str]:
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD_SIZE),
             "LOCAL_WORLD_SIZE": str(WORLD_SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
             "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "regress.measure.rank", str(spec_file)], cwd=spec_file.parent,
                            env={**os.environ, **place, **variables}, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)
