"""The collector on whatever machine this is, and its readers on made folders."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from regress.cli import main
from regress.doctor.collect import Question, collect_facts
from regress.doctor.container import container_kind, stale_shared_memory
from regress.doctor.facts import Level
from regress.doctor.report import examine
from regress.doctor.torch_probe import probe_torch
from regress.errors import MeasurementError
from regress.measure.commit import find_main_branch, is_shallow
from regress.measure.devices import NvmlDevices
from regress.measure.lock import who_holds
from tests.measure.test_devices import WHOLE, FakeNvml


def test_facts_of_this_machine(tmp_path: Path) -> None:
    facts = collect_facts(Question(tmp_path, None, str(tmp_path / "history"), "cpu"), {"PATH": os.environ["PATH"],
                                                                                       "NCCL_DEBUG": "INFO"})
    assert facts.plan is not None and facts.plan.device == "cpu"
    assert facts.torch.error is None and facts.torch.gloo
    assert facts.project.cases > 0
    assert facts.project.history_runs is None
    assert not (tmp_path / "history").exists(), "a doctor makes nothing"
    assert facts.variables == (("NCCL_DEBUG", "INFO"),)
    assert facts.host.cores >= 1 and facts.host.shm_total is not None


def test_a_machine_whose_gpu_fell_off_the_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(**WHOLE)
    nvml.gone = {1: 15}
    for module in ("regress.doctor.collect", "regress.measure.ranks"):
        monkeypatch.setattr(f"{module}.open_devices", lambda: NvmlDevices(nvml))
    facts = collect_facts(Question(tmp_path, None, str(tmp_path / "history")), {"PATH": os.environ["PATH"]})
    assert [(gpu.name, gpu.reading.lost) for gpu in facts.gpus] == [("NVIDIA H200", None), (None, True)]
    (lost,) = [found for found in examine(facts).findings if found.name == "gpu1"]
    assert (lost.level, lost.seen) == (Level.BLOCKS, "lost: the driver says that it is gone (it fell off the bus)")
    assert lost.fix.startswith("read `dmesg`")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thresholds.yaml").write_text("schema: 1\ncasse: []\n")
    assert main(["doctor", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fit"] is False
    (thresholds,) = [line for line in found["findings"] if line["name"] == "thresholds"]
    assert thresholds["level"] == "blocks"
    assert "casse" in thresholds["seen"]
    assert main(["doctor", "--device", "cpu", "--ci"]) == 10
    said = capsys.readouterr()
    assert "regress doctor: thresholds: thresholds.yaml" in said.err
    assert "mend the file" in said.err
    assert said.out.splitlines()[0] == "comm-regress doctor: 2 ranks on the CPU, through gloo"


def test_a_history_with_a_broken_file_and_one_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "history" / "runs").mkdir(parents=True)
    (tmp_path / "history" / "runs" / "x.json").write_text("{")
    (tmp_path / "file").write_text("")
    good = collect_facts(Question(tmp_path, None, str(tmp_path / "history"), "cpu")).project
    assert good.history_runs == 0
    assert len(good.history_problems) == 1 and "x.json" in good.history_problems[0]
    bad = collect_facts(Question(tmp_path, None, str(tmp_path / "file" / "history"), "cpu")).project
    assert bad.history_error == f"{tmp_path / 'file'} is a file, and the history needs a folder"


def test_a_torch_that_breaks_while_it_is_imported(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'Traceback' >&2\necho 'OSError: libcudart.so.13: cannot open' >&2\nexit 1\n")
    broken.chmod(0o755)
    assert probe_torch(str(broken)).error == "torch cannot be imported: OSError: libcudart.so.13: cannot open"


@pytest.mark.parametrize(("file", "content", "environment", "kind"), [
    (None, "", {}, None), (".dockerenv", "", {}, "docker"), ("run/.containerenv", "", {}, "podman"),
    ("proc/1/cgroup", "0::/kubepods/x", {}, "kubernetes"), ("proc/1/cgroup", "0::/init.scope", {}, None),
    (".dockerenv", "", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
    (None, "", {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer")])
def test_which_container(tmp_path: Path, file: str | None, content: str, environment: dict[str, str],
                         kind: str | None) -> None:
    if file is not None:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
    assert container_kind(environment, tmp_path) == kind


def test_a_first_process_that_never_reaps() -> None:
    """A process that adopts orphans and never waits for them, as process 1 of many containers is."""
    code = ("import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
            "from regress.doctor.container import orphans_are_reaped; print(orphans_are_reaped(0.5))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_left_overs_are_those_that_nobody_maps(tmp_path: Path) -> None:
    shared, proc = tmp_path / "shm", tmp_path / "proc"
    (proc / "77").mkdir(parents=True)
    shared.mkdir()
    assert stale_shared_memory(shared, proc) == (0, 0)
    for name in ("nccl-old", "nccl-held", "torch_old", "else"):
        (shared / name).write_text("12345")
    (proc / "77" / "maps").write_text(f"7f-8f rw-s 0 00:01 3 {shared}/nccl-held\n")
    assert stale_shared_memory(shared, proc) == (2, 10)


def test_who_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert who_holds(path) is None
    path.write_text('{"pid": 12, "command": "pytest", "since": "now"}')
    assert who_holds(path) is None
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert who_holds(path) == "process 12 (pytest) since now"
    assert who_holds(path) is None
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(MeasurementError, match="cannot open the lock"):
        who_holds(tmp_path / "link")


def test_main_branch_and_depth_of_a_clone(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words], cwd=tmp_path,
                       check=True, capture_output=True)

    git("init", "-q", "-b", "trunk", "source")
    for _ in range(2):
        git("-C", "source", "commit", "-q", "--allow-empty", "-m", "x")
    git("clone", "-q", "--depth", "1", f"file://{tmp_path}/source", "clone")
    assert (find_main_branch(tmp_path / "source"), is_shallow(tmp_path / "source")) == (None, False)
    assert (find_main_branch(tmp_path / "clone"), is_shallow(tmp_path / "clone")) == ("trunk", True)
    assert not is_shallow(tmp_path)


def test_the_doctor_loads_no_torch_itself() -> None:
    code = "import sys, regress.commands.doctor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
