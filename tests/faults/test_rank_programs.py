"""More that can happen to ranks, in real processes through torchrun's engine that need no torch themselves; and a base
whose Python cannot run it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import regress.gate_items
import regress.session
from regress.errors import EXIT_USAGE, EnvironmentUnfitError
from regress.measure.launch import Launcher, LaunchResult
from regress.measure.ranks import plan_ranks
from regress.measure.replay import ReplayLauncher
from regress.measure.torchrun import TorchrunLauncher
from regress.record import Case, LaunchSpec, TimingMode
from regress.session import GateRequest
from tests.acceptance import stage
from tests.acceptance.conftest import Theatre
from tests.acceptance.recordings import ALLREDUCE
from tests.measure import programs
from tests.measure.fakes import FakeDevices

SPEC = LaunchSpec((Case("allreduce", "float32", 2, "cpu", TimingMode.ISOLATED, 4096),), seed=7, backend="gloo",
                  results_dir="", case_seconds=0.1)
NO_MEMORY = """
import resource
if rank == 1:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
    bytearray(1 << 30)
time.sleep(60)
"""
NO_GPU_MEMORY = """
if rank == 1:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
time.sleep(60)
"""
PARTITIONED = """
if rank == 0:
    sys.exit("ncclUnhandledCudaError: Cuda failure 801 'operation not supported'")
time.sleep(60)
"""
FULL_FOLDER = """
if rank == 0:
    raise OSError(28, "No space left on device", str(folder / "rank0.case0.json"))
time.sleep(60)
"""
SLOW_TO_START = "time.sleep(4)\nrun()"
NEVER_STARTS = "time.sleep(300)"
HALF_A_RESULT = """
run()
if rank == 1:
    path = folder / "rank1.case0.json"
    path.write_text(path.read_text()[:20])
"""


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchrunLauncher]:
    with TorchrunLauncher(2, scratch=tmp_path_factory.mktemp("scratch")) as started:
        yield started


def launched(launcher: TorchrunLauncher, folder: Path, body: str, *, deadline: float = 60.0,
             case_deadline: float | None = None) -> LaunchResult:
    launcher.program = programs.write_program(folder, body)
    return launcher.launch(SPEC, index=0, role="head", deadline_seconds=deadline, case_deadline_seconds=case_deadline)


@pytest.mark.parametrize(("body", "words"), [
    (NO_MEMORY, ["rank 1 exited with status 1", "MemoryError"]),
    (NO_GPU_MEMORY, ["rank 1 exited with status 1", "the GPU's memory is full: end its other users (nvidia-smi)"]),
    (PARTITIONED, ["rank 0 exited with status 1", "the driver refuses this operation on a partitioned or old GPU"]),
    (FULL_FOLDER, ["rank 0 exited with status 1", "No space left on device"]),
    (HALF_A_RESULT, ["rank 1 left no result of allreduce[4KiB-float32-2xcpu]"]),
], ids=["host memory", "GPU memory", "MIG", "disk", "half a result"])
def test_a_rank_that_the_machine_refuses_something(launcher: TorchrunLauncher, tmp_path: Path, body: str,
                                                   words: list[str]) -> None:
    result = launched(launcher, tmp_path, body)
    assert result.error is not None
    for expected in words:
        assert expected in result.error
    assert any(rank is None for rank in result.results[0]), "no number comes of it"


def test_ranks_that_start_slowly_do_not_hang(launcher: TorchrunLauncher, tmp_path: Path) -> None:
    """A case's deadline is for cases: loading torch from a cold network disk takes longer."""
    result = launched(launcher, tmp_path, SLOW_TO_START, case_deadline=3.0)
    assert result.error is None


def test_ranks_that_never_start_end_with_the_launchs_deadline(launcher: TorchrunLauncher, tmp_path: Path) -> None:
    result = launched(launcher, tmp_path, NEVER_STARTS, deadline=3.0)
    assert result.error is not None
    assert "the launch did not end within 3 s" in result.error


@pytest.mark.parametrize("hidden", ["", "-1", "7", "GPU-of-another-machine"])
def test_gpus_that_are_hidden(hidden: str) -> None:
    """Asked for by name that is an error before anything is measured; else the ranks run on the CPU and say so."""
    with pytest.raises(EnvironmentUnfitError, match=r"no usable NVIDIA GPU.*CUDA_VISIBLE_DEVICES does not hide"
                       ) as caught:
        plan_ranks("cuda", devices=FakeDevices(2), environment={"CUDA_VISIBLE_DEVICES": hidden})
    assert caught.value.exit_status == EXIT_USAGE
    assert plan_ranks("auto", devices=FakeDevices(2), environment={"CUDA_VISIBLE_DEVICES": hidden}).device == "cpu"


class WithoutTorch:
    """Plays launches of head; the base's Python has no torch."""

    def __init__(self, player: Launcher) -> None:
        self._player = player

    def launch(self, *arguments: Any, role: str, **settings: Any) -> LaunchResult:
        if role == "base":
            raise EnvironmentUnfitError("torch's launcher cannot be imported by /old/python: No module named 'torch'")
        return self._player.launch(*arguments, role=role, **settings)


class WithoutModule:
    """Plays launches of head; the base's commit has no such module."""

    def __init__(self, player: Launcher) -> None:
        self._player = player

    def launch(self, *arguments: Any, role: str, **settings: Any) -> LaunchResult:
        played = self._player.launch(*arguments, role=role, **settings)
        error = "ModuleNotFoundError: No module named 'steps'"
        return played if role == "head" else replace(played, results=tuple(
            tuple(None if rank is None else replace(rank, seconds={}, error=error) for rank in ranks)
            for ranks in played.results))


def test_a_base_whose_python_has_no_torch(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    """What head showed is judged against the window, and stored; why there was no base is said."""
    confirm_against(theatre, monkeypatch, WithoutTorch)
    done = theatre.gate("--comm-regress-base=main")
    done.stdout.fnmatch_lines(["warning: no base to confirm against: torch's launcher cannot be imported by "
                               "/old/python: No module named 'torch'", "comm-regress: *"])
    assert done.ret == 1, done.stdout.str()
    assert len(theatre.runs()) == 4


def test_a_base_that_cannot_measure_a_case(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commit lacks the module: ranks end well, each with an error. Said once, and the window decides."""
    confirm_against(theatre, monkeypatch, WithoutModule)
    done = theatre.gate("--comm-regress-base=main")
    done.stdout.fnmatch_lines([
        f"warning: no base to confirm {ALLREDUCE.id.replace('[', '[[]')} against: all 5 launches of the base failed "
        "(rank 0: ModuleNotFoundError: No module named 'steps'), so that only earlier runs are left to judge it by",
        "comm-regress: *"])
    assert done.ret == 1, done.stdout.str()
    roles = [launch.role for launch in theatre.runs()[-1].launches]
    assert roles.count("base") == 5, "what failed is not tried for ever"


def confirm_against(theatre: Theatre, monkeypatch: pytest.MonkeyPatch, kind: Callable[[Launcher], Launcher]) -> None:
    """A slower head, to be confirmed against a commit whose launches are of that kind."""
    theatre.baseline()
    for words in (["init", "--quiet", "-b", "main"], ["commit", "--quiet", "--allow-empty", "-m", "one"],
                  ["checkout", "--quiet", "-b", "topic"], ["commit", "--quiet", "--allow-empty", "-m", "two"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=theatre.folder, check=True)
    theatre.play({ALLREDUCE: 1.6})
    install = stage.install

    def with_base(patch: Any, scenario: stage.Scenario) -> None:
        install(patch, scenario)
        staged: Any = regress.gate_items.open_session_gate  # type: ignore[attr-defined]

        def open_gate(request: GateRequest) -> regress.session.Gate:
            gate: regress.session.Gate = staged(request)
            gate.factory = lambda _: kind(ReplayLauncher.from_files([Path(scenario.recording)]))
            return gate

        patch(regress.gate_items, "open_session_gate", open_gate)

    monkeypatch.setattr(stage, "install", with_base)
