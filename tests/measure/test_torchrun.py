from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regress.errors import EnvironmentUnfitError, MeasurementError
from regress.measure.processes import alive, marked
from regress.measure.torchrun import TorchrunLauncher
from regress.measure.watch import Watch
from regress.record import Case, LaunchSpec, Progress, TimingMode
from tests.measure import programs

ROOT = Path(__file__).resolve().parents[2]
CASES = tuple(Case(name, "float32", 2, "cpu", TimingMode.ISOLATED, 4096) for name in ("allreduce", "allgather"))
SPEC = LaunchSpec(CASES, seed=7, backend="gloo", results_dir="", case_seconds=0.1)


def launcher(tmp_path: Path, body: str) -> TorchrunLauncher:
    return TorchrunLauncher(2, program=programs.write_program(tmp_path, body), scratch=tmp_path / "scratch")


def wait_until_gone(pids: list[int], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still running: {[pid for pid in pids if alive(pid)]}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchrunLauncher]:
    """One agent for the launches that end by themselves."""
    with TorchrunLauncher(2, scratch=tmp_path_factory.mktemp("scratch")) as started:
        yield started


def play(shared: TorchrunLauncher, tmp_path: Path, body: str) -> TorchrunLauncher:
    shared.program = programs.write_program(tmp_path, body)
    return shared


def test_results_come_by_case_and_rank_from_files(shared: TorchrunLauncher, tmp_path: Path) -> None:
    lines: list[Progress] = []
    result = play(shared, tmp_path, programs.CHATTY).launch(SPEC, index=3, role="head", deadline_seconds=60,
                                                            on_progress=lines.append)
    assert result.error is None
    assert (result.index, result.role, result.seed, result.cases) == (3, "head", 7, CASES)
    assert [[rank and rank.seconds for rank in ranks] for ranks in result.results] == [
        [{"isolated": (0.001,)}, {"isolated": (0.002,)}]] * 2
    assert [line.case for line in lines if line.done] == ["allreduce", "allgather"]
    assert 0 < result.rank_wall_seconds <= result.wall_seconds
    assert result.warnings == ()
    texts = {path.rpartition("attempt_0/")[2]: Path(path).read_text() for path in result.logs}
    assert texts == {"0/stdout.log": "out 0\n", "0/stderr.log": "err 0\n",
                     "1/stdout.log": "out 1\n", "1/stderr.log": "err 1\n"}


def test_ranks_run_in_the_launch_folder_with_the_overrides(shared: TorchrunLauncher, tmp_path: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    result = play(shared, tmp_path, programs.ENVIRONMENT).launch(
        SPEC, index=0, role="head", deadline_seconds=60, environment={"NCCL_BUFFSIZE": "1", "HOME": None})
    seen = json.loads(Path(result.folder, "env1.json").read_text())
    assert seen["cwd"] == str(Path(result.folder).resolve())
    assert seen["NCCL_BUFFSIZE"] == "1"
    assert seen["OMP_NUM_THREADS"] == "1"
    assert "HOME" not in seen
    assert seen["MASTER_ADDR"] == "127.0.0.1"
    after = shared.launch(SPEC, index=1, role="head", deadline_seconds=60)
    assert "HOME" in json.loads(Path(after.folder, "env1.json").read_text())


def test_a_users_own_regress_folder_does_not_shadow_ours(tmp_path: Path) -> None:
    (tmp_path / "regress").mkdir()
    (tmp_path / "regress" / "__init__.py").write_text("raise SystemExit('the wrong regress')")
    program = programs.write_program(tmp_path, programs.WELL)
    with TorchrunLauncher(2, program=program, scratch=tmp_path / "scratch",
                          environment={"PYTHONPATH": str(tmp_path)}) as started:
        assert started.launch(SPEC, index=0, role="head", deadline_seconds=60).error is None


def test_a_relative_pythonpath_means_the_gates_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks run elsewhere, and a user's `PYTHONPATH=src` must still find what it finds for the gate."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    monkeypatch.setenv("PYTHONPATH", f"src{os.pathsep}/elsewhere")
    program = programs.write_program(tmp_path, programs.ENVIRONMENT)
    with TorchrunLauncher(2, program=program, scratch=Path("scratch")) as started:
        inherited = started.launch(SPEC, index=0, role="head", deadline_seconds=60)
        replaced = started.launch(SPEC, index=1, role="base", deadline_seconds=60, environment={"PYTHONPATH": "base"})
    assert inherited.error is None
    seen = json.loads(Path(inherited.folder, "env0.json").read_text())
    assert seen["PYTHONPATH"] == f"{tmp_path}/src{os.pathsep}/elsewhere"
    assert f"{tmp_path}/src" in seen["path"]
    assert json.loads(Path(replaced.folder, "env0.json").read_text())["PYTHONPATH"] == f"{tmp_path}/base"


def test_a_folder_that_holds_a_launch_is_not_used_again(shared: TorchrunLauncher, tmp_path: Path) -> None:
    ready = play(shared, tmp_path, programs.WELL)
    spec = LaunchSpec(CASES, 1, "gloo", str(tmp_path / "here"), 0.1)
    folders = [ready.launch(spec, index=0, role="head", deadline_seconds=60).folder for _ in range(2)]
    assert folders == [str(tmp_path / "here"), str(tmp_path / "here-2")]


@pytest.mark.parametrize(("body", "expected"), [
    (programs.DIES_BEFORE, ["rank 1 exited with status 1 (finished no operation)", "no device for me"]),
    (programs.DIES_DURING, ["rank 1 was ended by signal 9 (SIGKILL) (last finished warm-up of allreduce, "
                            "in isolated of allreduce)"]),
    (programs.DIES_AFTER, ["rank 0 exited with status 3 (last finished isolated of allgather)", "teardown failed"]),
    (programs.LEAVES_EARLY, ["rank 1 left no result of allreduce[4KiB-float32-2xcpu] and 1 more"]),
    (programs.SHM, ["rank 0 exited with status 1", "--shm-size=1g"]),
])
def test_a_rank_that_fails_is_named(shared: TorchrunLauncher, tmp_path: Path, body: str, expected: list[str]) -> None:
    result = play(shared, tmp_path, body).launch(SPEC, index=0, role="head", deadline_seconds=60)
    assert result.error is not None
    for words in expected:
        assert words in result.error
    assert "did not end" not in result.error


def test_finished_cases_survive_a_rank_that_dies_after_them(shared: TorchrunLauncher, tmp_path: Path) -> None:
    result = play(shared, tmp_path, programs.DIES_AFTER).launch(SPEC, index=0, role="head", deadline_seconds=60)
    assert all(rank is not None for ranks in result.results for rank in ranks)


def test_a_taken_port_is_tried_once_more(shared: TorchrunLauncher, tmp_path: Path) -> None:
    result = play(shared, tmp_path, programs.PORT_TAKEN_ONCE).launch(SPEC, index=5, role="head", deadline_seconds=60)
    assert result.error is None
    assert result.warnings == ("repeated, because its port had been taken by another process meanwhile",)


def test_processes_that_ranks_leave_behind_are_ended(shared: TorchrunLauncher, tmp_path: Path) -> None:
    result = play(shared, tmp_path, programs.LITTERS).launch(SPEC, index=0, role="head", deadline_seconds=60)
    assert result.error is None
    assert result.warnings == ("the ranks left 2 process(es) running; they were ended",)
    wait_until_gone([int(path.read_text()) for path in Path(result.folder).glob("child*")])


def late_when(monkeypatch: pytest.MonkeyPatch, condition: Callable[[Watch], bool]) -> None:
    """A deadline that passes when the ranks have come as far as the test needs, however loaded the host is."""
    def overdue(watch: Watch, deadline: float, case_deadline: float | None) -> str | None:
        assert (deadline, case_deadline) == (60, 30)
        return "too late" if condition(watch) else None
    monkeypatch.setattr(Watch, "overdue", overdue)


def test_a_hang_ends_every_process_and_names_where_each_rank_was(tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    late_when(monkeypatch, lambda watch: sum(state.finished is not None for state in watch.reader.states) == 2
              and "isolated" in watch.where[1].partition(",")[0] and len(list(watch.folder.glob("child*"))) == 2)
    with launcher(tmp_path, programs.HANGS) as started:
        result = started.launch(SPEC, index=0, role="head", deadline_seconds=60, case_deadline_seconds=30)
        assert result.error is not None
        assert result.error.startswith("too late; rank 0: last finished warm-up of allreduce, in isolated of "
                                       "allreduce; rank 1: last finished isolated of allreduce")
        assert "stuck_in_collective" in result.error
        assert result.results == ((None, None), (None, None))
        assert not any(alive(int(path.read_text())) for path in Path(result.folder).glob("child*"))
        assert marked(started._gate) == []
        started.program = programs.write_program(tmp_path, programs.WELL)
        monkeypatch.undo()
        assert started.launch(SPEC, index=1, role="head", deadline_seconds=60).error is None


def test_a_rank_that_left_while_its_peer_waits_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late_when(monkeypatch, lambda watch: watch.ended.keys() == {1} and watch.reader.states[0].begun is not None)
    with launcher(tmp_path, programs.LEAVES_A_PEER_WAITING) as started:
        result = started.launch(SPEC, index=0, role="head", deadline_seconds=60, case_deadline_seconds=30)
    assert result.error is not None
    assert "not running any more: rank 1" in result.error
    assert "where rank 0 was:" in result.error


def test_each_deadline_is_named_when_it_has_passed(tmp_path: Path) -> None:
    watch = Watch(tmp_path, 2)
    assert watch.overdue(60, 30) is None
    watch.last_progress = time.monotonic() - 31
    assert watch.overdue(60, 30) == "no rank made progress for 30 s"
    assert watch.overdue(60, None) is None
    watch.began -= 61
    assert watch.overdue(60, 30) == "the launch did not end within 60 s"


def test_ctrl_c_ends_the_ranks_and_goes_on(tmp_path: Path) -> None:
    def interrupt(line: Progress) -> None:
        if not line.done:
            raise KeyboardInterrupt
    started = launcher(tmp_path, programs.HANGS)
    with started, pytest.raises(KeyboardInterrupt):
        started.launch(SPEC, index=0, role="head", deadline_seconds=60, on_progress=interrupt)
    assert marked(started._gate) == []


def test_the_agent_that_dies_takes_its_ranks_along(tmp_path: Path) -> None:
    with launcher(tmp_path, programs.HANGS) as started:
        def kill(line: Progress) -> None:
            if not line.done:
                os.kill(started.start().process.pid, signal.SIGKILL)
        result = started.launch(SPEC, index=0, role="head", deadline_seconds=60, on_progress=kill)
        assert result.error is not None
        assert "the launching process was ended by signal 9 (SIGKILL) before the ranks had ended" in result.error
        assert marked(started._gate) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_no_rank_outlives_a_gate_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    program = programs.write_program(tmp_path, programs.HANGS)
    code = textwrap.dedent(f"""
        from pathlib import Path
        from regress.measure.torchrun import TorchrunLauncher
        from regress.record import LaunchSpec
        launcher = TorchrunLauncher(2, program={program!r}, scratch=Path({str(tmp_path / "scratch")!r}))
        print(launcher._gate, flush=True)
        launcher.launch(LaunchSpec((), 1, "gloo", "", 0.1), index=0, role="head", deadline_seconds=60)
    """)
    gate = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert gate.stdout is not None
    mark = gate.stdout.readline().strip()
    assert mark
    folder, deadline = tmp_path / "scratch" / "launch000-head", time.monotonic() + 60
    while len(list(folder.glob("child*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = marked(mark)
    assert len(pids) == 5  # the agent, two ranks, a child of each
    gate.send_signal(number)
    gate.wait()
    gate.stdout.close()
    wait_until_gone(pids)


def test_a_command_wraps_the_launch_and_its_status_is_kept(tmp_path: Path) -> None:
    wrapper = tmp_path / "tracer"
    wrapper.write_text('#!/bin/sh\necho "$LEVEL" > wrapped\n"$@"\nsleep 0.3\nexit 143\n')
    wrapper.chmod(0o755)
    with launcher(tmp_path, programs.WELL) as started:
        result = started.launch(SPEC, index=0, role="traced", deadline_seconds=60, environment={"LEVEL": "3"},
                                command_prefix=(str(wrapper),))
    assert result.error is None
    assert result.command_exit == 143
    assert Path(result.folder, "agent", "wrapped").read_text() == "3\n"


def test_a_wrapping_command_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = tmp_path / "tracer"
    wrapper.write_text('#!/bin/sh\n"$@"\nsleep 300\n')
    wrapper.chmod(0o755)
    limits: list[float | None] = []

    def overdue(watch: Watch, _: float, case_deadline: float | None) -> str | None:
        if (watch.folder / "answer.json").exists():
            limits.append(case_deadline)
            return "too late"
        return None
    monkeypatch.setattr(Watch, "overdue", overdue)
    with launcher(tmp_path, programs.WELL) as started:
        result = started.launch(SPEC, index=0, role="traced", deadline_seconds=60, case_deadline_seconds=5,
                                command_prefix=(str(wrapper),))
        assert result.error is not None
        assert result.error.startswith("too late")
        assert limits == [None]  # a tracer that writes its report makes no progress with any case
        assert all(rank is not None for ranks in result.results for rank in ranks)
        assert marked(started._gate) == []


def test_a_command_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with (launcher(tmp_path, programs.WELL) as started,
          pytest.raises(MeasurementError, match="cannot run '/nowhere/nsys': No such file or directory")):
        started.launch(SPEC, index=0, role="traced", deadline_seconds=60, command_prefix=("/nowhere/nsys",))


@pytest.mark.parametrize("content", [None, "def is_available(): return False"])
def test_without_torch_distributed_the_machine_is_unfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                        content: str | None) -> None:
    torch = tmp_path / "path" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("" if content else "raise ImportError(\"No module named 'torch'\")")
    if content:
        (torch / "distributed.py").write_text(content)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    with launcher(tmp_path, programs.WELL) as started, pytest.raises(EnvironmentUnfitError) as caught:
        started.launch(SPEC, index=0, role="head", deadline_seconds=60)
    assert "torch's launcher cannot be imported" in str(caught.value)
    assert "pip install torch" in str(caught.value)


def test_the_launcher_works_outside_the_main_thread(shared: TorchrunLauncher, tmp_path: Path) -> None:
    errors: list[str | None] = []
    ready = play(shared, tmp_path, programs.WELL)
    thread = threading.Thread(target=lambda: errors.append(
        ready.launch(SPEC, index=0, role="head", deadline_seconds=60).error))
    thread.start()
    thread.join()
    assert errors == [None]


def test_real_ranks_measure_and_verify_a_real_collective(tmp_path: Path) -> None:
    with TorchrunLauncher(2, scratch=tmp_path) as started:
        result = started.launch(LaunchSpec(CASES, 7, "gloo", "", 0.05), index=0, role="head", deadline_seconds=240)
    assert result.error is None
    for ranks in result.results:
        for rank in ranks:
            assert rank is not None
            assert rank.error is None
            assert rank.wrong_elements == 0 < rank.checked_elements
            assert len(rank.seconds["isolated"]) >= 3
    assert all(state.finished is not None for state in result.states)
