"""One new file on every shelf, in a copy of the product, and nothing else changed: all of them are there and work."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "tests" / "data" / "trace" / "nvlink" / "micro.sqlite.xz"

ADDED = {
    "benchmarks/broadcast.py": '''\
"""Rank 0's buffer in every rank's buffer."""

from __future__ import annotations

from regress.record import Case

from . import NoOptions, Workload
from .operation import COLLECTIVE_MODES, Check, Operation, RankContext
from .verify import compare_gathered, dtype_named, fill


def prepare(context: RankContext, case: Case, _options: NoOptions) -> Operation:
    """A buffer of the case's size, filled on rank 0."""
    import torch
    import torch.distributed

    dtype = dtype_named(case.dtype)
    size_bytes = case.message_size_bytes or 0
    buffer = torch.zeros(size_bytes // dtype.itemsize, dtype=dtype, device=context.device)

    def run() -> None:
        torch.distributed.broadcast(buffer, 0)

    def verify() -> Check:
        buffer.zero_()
        if context.rank == 0:
            fill(buffer, case.dtype, 0, 1)
        run()
        return compare_gathered(buffer, case.dtype, 1)

    return Operation(run, verify, f"broadcast/{size_bytes}", COLLECTIVE_MODES, work_bytes=size_bytes)


WORKLOAD = Workload(name="broadcast", summary="rank 0's buffer in every rank's buffer", collective=True,
                    prepare=prepare, bus_factor=lambda _world_size: 1.0,
                    message_bytes=lambda wished_bytes, _world_size, _element_bytes: wished_bytes)
''',
    "regress/metrics/steadiness.py": '''\
"""How far the calls of one launch lie apart."""

from __future__ import annotations

from regress.metrics import Metric, slowest_rank
from regress.record import Case, Measurement, RankResult
from regress.units import Better, Unit


def _range(metric: Metric, case: Case, results: tuple[RankResult, ...]) -> Measurement | None:
    samples = slowest_rank(results, case.timing)
    if not samples:
        return None
    return Measurement(metric.name, metric.unit, metric.better, max(samples) - min(samples))


RANGE = Metric("range_seconds", Unit.SECONDS, Better.LOWER, "Slowest minus fastest iteration.", "its definition",
               from_ranks=_range)
''',
    "regress/judge/detectors/roundness.py": '''\
"""roundness: is the figure a round number of microseconds?"""

from __future__ import annotations

from dataclasses import dataclass

from regress.judge.detectors import Detector, Series
from regress.options import option
from regress.record import Finding, Verdict


@dataclass(frozen=True, slots=True)
class RoundnessOptions:
    """How round."""

    round_to: int | None = option(None, minimum=1, help="microseconds")


def judge(series: Series, options: RoundnessOptions) -> Finding | None:
    """Always a pass, with an opinion."""
    if options.round_to is None or not series.now:
        return None
    return Finding(series.case.id, series.metric, series.unit, "roundness", Verdict.PASS, "value",
                   f"held against multiples of {options.round_to} us", series.now[0].value, launches=len(series.now))


ROUNDNESS = Detector("roundness", "round numbers", RoundnessOptions, judge)
''',
    "regress/publish/notebook.py": '''\
"""notebook: one line a run, at the end of a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regress.delivery import Payload
from regress.options import option
from regress.publish import Result, Sink


@dataclass(frozen=True, slots=True)
class NotebookOptions:
    """Where."""

    path: str = option(help="the file")


def render(result: Result, _options: NotebookOptions) -> tuple[Payload, ...]:
    """The verdict and the names of all figures."""
    names = sorted({figure.metric for group in result.cases() for figure in group.figures})
    line = f"{result.run.run_id} {result.run.verdict.value} {' '.join(names)}"
    return (Payload(line.encode(), "text/plain", result.run.run_id),)


def send(payload: Payload, options: NotebookOptions) -> str:
    """Write it."""
    Path(options.path).write_bytes(payload.body)
    return "written down"


NOTEBOOK = Sink("notebook", "one line a run", NotebookOptions, render, send, lambda options: options.path)
''',
    "regress/diagnose/anything.py": '''\
"""A trace was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.diagnose import INFO, Rule
from regress.record import Diagnosis

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis


def _check(analysis: Analysis, _against: Analysis | None) -> list[Diagnosis]:
    return [Diagnosis("anything", INFO, {"ranks": len(analysis.lanes)}, "there is a trace", "read it")]


RULE = Rule("anything", "that there is a trace", "its definition", _check)
'''}

THRESHOLDS = """\
schema: 1
gate: {confirm: false}
devices: {cpu: {launches: 1, case_duration: 20ms}}
cases:
  - {workload: broadcast, devices: [cpu], sizes: [64KiB]}
metrics:
  broadcast_seconds: {round_to: 5}
  range_seconds: {round_to: 7}
publish:
  - {sink: notebook, path: notebook.txt}
"""
PROGRAM = """\
import sys
from pathlib import Path

import regress.session
from regress.cli import main

regress.session.host_lock_path = lambda: Path("lock")  # other gates of this host are no part of the test
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Copy:
    """The product with the added files, and an empty folder to work in."""

    product: Path
    folder: Path

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`regress ARGUMENTS` of the copy."""
        environment = {**os.environ, "PYTHONPATH": str(self.product), "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("CI", None)
        return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], cwd=self.folder, env=environment,
                              capture_output=True, text=True, check=False)

    def json(self, *arguments: str) -> Any:
        """What a command that ends well prints."""
        done = self(*arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """The copy; only new files are written into it."""
    product, folder = tmp_path_factory.mktemp("product"), tmp_path_factory.mktemp("work")
    for name in ("regress", "benchmarks"):
        shutil.copytree(ROOT / name, product / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in ADDED.items():
        with (product / name).open("x") as stream:
            stream.write(text)
    (folder / "thresholds.yaml").write_text(THRESHOLDS)
    return Copy(product, folder)


def test_the_schema_knows_them(copy: Copy) -> None:
    schema = copy.json("schema")["properties"]
    assert "broadcast" in schema["cases"]["items"]["properties"]["workload"]["enum"]
    metrics = schema["metrics"]["properties"]
    assert {"broadcast_seconds", "broadcast_p50_seconds", "broadcast_p95_seconds", "range_seconds"} <= set(metrics)
    assert metrics["broadcast_seconds"]["properties"]["round_to"]["description"] == "microseconds"
    assert "notebook" in schema["publish"]["items"]["properties"]["sink"]["enum"]


def test_the_pages_of_the_documentation_know_them(copy: Copy) -> None:
    program = "from regress.reference import pages; print('\\n'.join(pages().values()))"
    text = subprocess.run([sys.executable, "-c", program], cwd=copy.folder, capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(copy.product), "PYTHONDONTWRITEBYTECODE": "1"}).stdout
    for words in ("`broadcast`: rank 0's buffer", "`range_seconds`", "roundness: round numbers",
                  "`notebook`: one line a run"):
        assert words in text


def test_a_gate_runs_measures_judges_and_publishes_them(copy: Copy) -> None:
    done = copy("run", "--device", "cpu", "--trace", "none", "--json", "result.json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((copy.folder / "result.json").read_text())
    (case,) = result["cases"]
    assert case["case"] == "broadcast[64KiB-float32-2xcpu]"
    assert {"broadcast_seconds", "busbw_bytes_per_second", "range_seconds"} <= {
        row["metric"] for row in (*case["metrics"], *case["measured"])}
    stored = copy.json("history", "show", result["run"]["id"], "--json")
    opinions = {(finding["metric"], finding["reason"]) for finding in stored["findings"]
                if finding["detector"] == "roundness"}
    assert opinions == {("broadcast_seconds", "held against multiples of 5 us"),
                        ("range_seconds", "held against multiples of 7 us")}
    written = (copy.folder / "notebook.txt").read_text().split()
    assert written[:2] == [result["run"]["id"], result["verdict"]]
    assert {"broadcast_seconds", "range_seconds"} <= set(written)


def test_the_new_rule_looks_at_traces(copy: Copy) -> None:
    (copy.folder / "micro.sqlite").write_bytes(lzma.decompress(TRACE.read_bytes()))
    found = copy.json("explain", "micro.sqlite", "--json")["findings"]
    assert [finding["evidence"] for finding in found if finding["rule"] == "anything"] == [{"ranks": 2}]


def test_two_files_with_one_name_are_an_error(copy: Copy) -> None:
    twin = copy.product / "regress" / "metrics" / "twin.py"
    shutil.copy(copy.product / "regress" / "metrics" / "steadiness.py", twin)
    done = copy("schema")
    twin.unlink()
    assert done.returncode == 3
    assert done.stderr == ("regress schema: shelf regress.metrics: 'range_seconds' is declared by steadiness and by "
                           "twin; accepted: one variant for each name\n")
