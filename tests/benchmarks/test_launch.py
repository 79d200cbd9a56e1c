"""Real launches: two ranks, gloo."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from regress.record import Case, TimingMode
from tests.benchmarks.ranks import ROOT, Ended, collective, launch, step

CASES = (collective("allreduce", 4096), collective("allgather", 1000, TimingMode.PIPELINED, "bfloat16"),
         step(bucket_cap_mb=0.25, accumulation=2))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return launch(tmp_path_factory.mktemp("launch"), *CASES)


def test_every_rank_leaves_every_result(ended: Ended) -> None:
    assert ended.statuses == (0, 0), ended.stderr
    for rank in (0, 1):
        for index, case in enumerate(CASES):
            result = ended.result(rank, index)
            assert (result.rank, result.world_size, result.case) == (rank, 2, case)
            assert (result.error, result.warnings, result.wrong_elements) == (None, (), 0)
            assert result.init_seconds is not None
            assert result.init_seconds > 0
            assert result.warmup_iterations >= 5
    assert not list(ended.folder.glob("*.tmp"))


def test_collectives_are_counted_checked_and_timed(ended: Ended) -> None:
    reduced, gathered = ended.result(1, 0), ended.result(1, 1)
    assert (reduced.work_bytes, reduced.bus_factor, reduced.samples_per_step) == (4096, 1.0, None)
    assert reduced.checked_elements == 2 * 1024  # before and after timing
    assert set(reduced.seconds) == {"isolated", "pipelined"}
    assert (gathered.work_bytes, gathered.bus_factor, set(gathered.seconds)) == (992, 0.5, {"pipelined"})
    assert gathered.checked_elements == 2 * 496


def test_ranks_run_the_same_number_of_iterations(ended: Ended) -> None:
    for index in range(len(CASES)):
        first, second = (ended.result(rank, index) for rank in (0, 1))
        assert {mode: len(series) for mode, series in first.seconds.items()} == {
            mode: len(series) for mode, series in second.seconds.items()}
        assert first.warmup_iterations == second.warmup_iterations


def test_a_step_is_counted_and_its_parameters_compared(ended: Ended) -> None:
    result = ended.result(0, 2)
    assert (result.work_bytes, result.bus_factor, set(result.seconds)) == (None, None, {"step"})
    assert result.samples_per_step == 4 * 2 * 2  # batch, accumulation, ranks
    assert result.checked_elements > 1_000_000
    assert result.warmup_iterations >= 3 + 5


def test_progress_tells_what_begins_and_what_has_ended(ended: Ended) -> None:
    lines = ended.progress(1)
    assert [(line.case, line.operation, line.done) for line in lines[:2]] == [("", "init", False), ("", "init", True)]
    first = [(line.operation, line.done) for line in lines if line.case == CASES[0].id]
    phases = ["prepare", "verify", "warm-up", "isolated", "pipelined", "verify"]
    assert first == [(phase, done) for phase in phases for done in (False, True)]


def test_a_case_that_cannot_run_says_why_and_the_next_one_runs(tmp_path: Path) -> None:
    cases = (collective("alltoall", 4096), collective("allreduce", 4096, TimingMode.GRAPH), step(bucket_size=1),
             collective("allreduce", 4096, dtype="float8_e5m2"), step(step="no_such_module:build"),
             step(comm_hook="powersgd", bucket_cap_mb=1.0), collective("allgather", 4096))
    ended = launch(tmp_path, *cases)
    assert ended.statuses == (0, 0), ended.stderr
    errors = [ended.result(1, index).error for index in range(len(cases))]
    expected = ["no workload 'alltoall'; accepted: allgather, allreduce, ddp_step", "CUDA graphs need a GPU",
                "workload ddp_step has no option bucket_size", "dtype 'float8_e5m2'", "no module 'no_such_module'",
                "bucket_cap_mb with PowerSGD on gloo"]
    for error, words in zip(errors, expected, strict=False):
        assert error is not None
        assert words in error
    assert errors[-1] is None
    assert ended.result(1, 0).seconds == {}


SITECUSTOMIZE = """
import os
import torch.distributed as dist
right = dist.all_reduce
def wrapped(tensor, *args, **kwargs):
    with open(os.path.join({folder!r}, "calls" + os.environ["RANK"]), "a") as calls:
        calls.write(".")
    right(tensor, *args, **kwargs)
    if os.environ["RANK"] == "1":
        tensor[5] += 1
dist.all_reduce = wrapped
"""


def test_a_wrapped_collective_is_what_is_measured_and_nothing_else_goes_through_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE.format(folder=str(tmp_path)))
    others = launch(tmp_path / "others", collective("allgather", 4096), step(), path=(tmp_path,))
    assert others.statuses == (0, 0), others.stderr
    assert [others.result(1, index).error for index in (0, 1)] == [None, None]
    assert not (tmp_path / "calls0").exists()
    both = launch(tmp_path / "both", collective("allreduce", 4096), collective("allgather", 4096), path=(tmp_path,))
    assert both.statuses == (0, 0), both.stderr
    assert (tmp_path / "calls0").exists()
    wrong, told, right = both.result(1, 0), both.result(0, 0), both.result(1, 1)
    assert (wrong.checked_elements, wrong.wrong_elements, wrong.seconds) == (1024, 1, {})
    assert wrong.error == "verify: 1 of 1024 result elements are wrong: element 5 is 86, right is 85"
    assert (told.wrong_elements, told.error) == (0, "verify: given up because it failed on rank 1")
    assert (right.error, right.wrong_elements) == (None, 0)


STEPS = """
import os
import torch
import torch.distributed as dist
def drifting(context):
    weight = torch.full((10,), float(context.rank))
    def step():
        return torch.tensor(float("nan") if context.options["accumulation"] == 2 else 1.0)
    step.parameters = lambda: [weight]
    return step
def refuses(context):
    if context.rank == 1:
        raise ValueError("no data on this rank\\nsecond line")
    return lambda: None
def plain(context):
    total = torch.ones(4, dtype=context.dtype)
    return lambda: dist.all_reduce(total)
def dies(context):
    calls = []
    def step():
        calls.append(1)
        if context.rank == 1 and len(calls) == 5:
            os._exit(3)
        dist.all_reduce(torch.ones(4))
    return step
"""


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    (tmp_path / "my_steps.py").write_text(STEPS)
    return tmp_path


def test_steps_of_the_users_own(steps: Path) -> None:
    cases = (step(step="my_steps:refuses"), step(step="my_steps:drifting"), step(step="my_steps:plain"),
             step(step="my_steps:drifting", accumulation=2))
    ended = launch(steps / "launch", *cases, path=(steps,))
    assert ended.statuses == (0, 0), ended.stderr
    assert ended.result(1, 0).error == "prepare: ValueError: no data on this rank"
    assert ended.result(0, 0).error == "prepare: given up because it failed on rank 1"
    drifted = ended.result(1, 1)
    assert (drifted.checked_elements, drifted.wrong_elements) == (10, 10)
    assert drifted.error == ("verify: 10 of 10 result elements are wrong: parameters differ from those of rank 0 "
                             "after the last step")
    plain = ended.result(1, 2)
    assert (plain.error, plain.checked_elements, plain.samples_per_step) == (None, 0, None)
    assert plain.warnings == (
        "my_steps:plain names no parameters: whether ranks agree after the last step is not checked",)
    assert ended.result(0, 3).error == "verify: the loss is nan after the last step"


def test_a_rank_that_dies_leaves_a_last_line_on_the_other(steps: Path) -> None:
    ended = launch(steps / "launch", collective("allgather", 4096), step(step="my_steps:dies"), path=(steps,))
    assert ended.statuses == (10, 3)
    last = ended.stderr[0].strip().splitlines()[-1]
    assert last.startswith("comm-regress: rank 0 of 2, ddp_step[float32-2xcpu-step=my_steps:dies]: warm-up: ")
    assert last.endswith("the communicator is lost, this rank ends")
    assert ended.result(0, 0).error is None
    error = ended.result(0, 1).error
    assert error is not None
    assert error.startswith("warm-up: ")


def test_a_tracer_that_does_not_exist(tmp_path: Path) -> None:
    ended = launch(tmp_path, collective("allgather", 4096), tracer="vtune")
    assert ended.statuses == (4, 4)
    assert ended.stderr[0].strip().splitlines()[-1] == (
        "comm-regress: launch file: tracer 'vtune'; accepted: none, nsys, kineto")


REDUCE_SCATTER = '''
"""Each rank's part of a sum over all ranks."""
from benchmarks import NoOptions, Workload
from benchmarks.operation import COLLECTIVE_MODES, Check, Operation
from benchmarks.verify import compare_sum, dtype_named, fill


def message_bytes(wished_bytes, world_size, element_bytes):
    return max(1, wished_bytes // (world_size * 16)) * 16 * world_size


def prepare(context, case, options):
    import torch
    import torch.distributed
    dtype = dtype_named(case.dtype)
    size = message_bytes(case.message_size_bytes, case.world_size, dtype.itemsize)
    whole = torch.zeros(size // dtype.itemsize, dtype=dtype, device=context.device)
    part = torch.zeros(whole.numel() // case.world_size, dtype=dtype, device=context.device)
    fill(whole, case.dtype, context.rank, context.world_size)
    def run():
        torch.distributed.reduce_scatter_tensor(part, whole)
    def verify():
        run()
        right = torch.zeros_like(whole)
        for rank in range(case.world_size):
            one = torch.zeros_like(whole)
            fill(one, case.dtype, rank, case.world_size)
            right += one
        wrong = int((right.chunk(case.world_size)[context.rank] != part).sum())
        return Check(part.numel(), wrong)
    return Operation(run, verify, f"reducescatter/{size}", COLLECTIVE_MODES, work_bytes=size)


WORKLOAD = Workload("reducescatter", "sum, scattered", True, prepare,
                    bus_factor=lambda n: (n - 1) / n, message_bytes=message_bytes)
'''


def test_a_collective_is_added_with_one_file(tmp_path: Path) -> None:
    for package in ("regress", "benchmarks"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "benchmarks" / "reducescatter.py").write_text(REDUCE_SCATTER)
    ended = launch(tmp_path / "launch", collective("reducescatter", 4096), root=tmp_path)
    assert ended.statuses == (0, 0), ended.stderr
    result = ended.result(1, 0)
    assert (result.error, result.work_bytes, result.bus_factor, result.wrong_elements) == (None, 4096, 0.5, 0)
    assert result.checked_elements == 2 * 512


def test_options_are_what_a_case_carries() -> None:
    assert step(compile=True).id == "ddp_step[float32-2xcpu-compile=True]"
    assert isinstance(step(), Case)
