"""A repository with a README and one workflow file: its steps, run as a runner would, with the real gate on the CPU.

Green and NO BASELINE, green again, red after a delay in every allreduce; and each time every output tells the same.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.github.jobs import job
from tests.github.runner import ROOT, Finished, load_yaml, run_action
from tests.github.test_consistency import by_case, compare_outputs, of_json, of_junit, of_markdown, of_report

THRESHOLDS = """\
schema: 1
devices: {cpu: {launches: 3, case_duration: 60ms}}
cases:
  - {workload: allreduce, devices: [cpu], sizes: [1MiB], timing: isolated}
"""
DELAY = """\
import importlib.abc, importlib.machinery, os, sys, time

class Delaying(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch.distributed.distributed_c10d":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def run_and_delay(module):
            run(module)
            swift = module.all_reduce
            def all_reduce(*args, **kwargs):
                time.sleep(0.05)
                return swift(*args, **kwargs)
            module.all_reduce = all_reduce
        spec.loader.exec_module = run_and_delay
        return spec

if "RANK" in os.environ:
    sys.meta_path.insert(0, Delaying())
"""
COMMAND = """\
#!{python}
import argparse, sys
from regress.cli import main
from regress.forge.command import add_github_arguments, run_github
if sys.argv[1:3] == ["publish", "github"]:
    parser = argparse.ArgumentParser()
    add_github_arguments(parser)
    sys.exit(run_github(parser.parse_args(sys.argv[3:])))
sys.exit(main())
"""


class Runner:
    """A self-hosted runner's machine: its home outlives the jobs, the workspace and temporary folder do not."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.repository = folder, folder / "home", folder / "repository"
        for path in (self.home, self.repository, folder / "scripts"):
            path.mkdir()
        (folder / "thresholds.yaml").write_text(THRESHOLDS)
        for name, text in (("pytest", f"#!{sys.executable}\nimport sys\nfrom pytest import console_main\n"
                                      "sys.exit(console_main())\n"),
                           ("regress", COMMAND.format(python=sys.executable)),
                           ("python3", f"#!/bin/sh\necho {folder}/scripts\n")):
            path = folder / "scripts" / name
            path.write_text(text)
            path.chmod(0o755)
        (self.repository / "README.md").write_text("# Nothing but this\n")
        workflows = self.repository / ".github" / "workflows"
        workflows.mkdir(parents=True)
        shutil.copy(ROOT / "docs" / "examples" / "gate.yml", workflows)
        self.git("init", "-q", "-b", "main")
        self.commit("The README")

    def git(self, *words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words], cwd=self.repository,
                       check=True, capture_output=True)

    def commit(self, subject: str) -> None:
        with (self.repository / "README.md").open("a") as stream:
            stream.write(f"{subject}\n")
        self.git("add", ".")
        self.git("commit", "-q", "-m", subject)

    def run(self, name: str) -> tuple[Finished, Path]:
        """One job: a fresh clone, the action's steps; returns what it did and where its result lies."""
        job_folder = self.folder / name
        workspace, temp = job_folder / "workspace", job_folder / "temp"
        temp.mkdir(parents=True)
        subprocess.run(["git", "clone", "-q", str(self.repository), str(workspace)], check=True)
        (step,) = [step for step in load_yaml(workspace / ".github/workflows/gate.yml")["jobs"]["gate"]["steps"]
                   if step.get("uses", "").startswith("OWNER/comm-regress@")]
        inputs = {**step["with"], "base": "", "install": "false", "doctor": "false", "device": "cpu", "trace": "none",
                  "config": str(self.folder / "thresholds.yaml"), "budget": "120"}
        environment = {**job(job_folder, "http://127.0.0.1:9", None, token=None), "HOME": str(self.home), "CI": "true",
                       "PATH": f"{self.folder}/scripts:{os.environ['PATH']}",
                       "PYTHONPATH": os.pathsep.join([str(workspace), str(ROOT)]), "GITHUB_REF_NAME": "main"}
        return run_action(ROOT, inputs, environment, workspace, temp), workspace / "comm-regress-result"


def everything_agrees(done: Finished, result: Path, folder: Path) -> None:
    """Summary of the job, JUnit of pytest itself and the report against the JSON; then comment, check, annotations."""
    content = (result / "result.json").read_bytes()
    assert of_markdown(done.summary) == of_json(content)
    assert of_junit((result / "junit.xml").read_bytes(), json.loads(content)) == by_case(content)
    assert of_report((result / "report.html").read_text(), of_json(content)) == of_json(content)
    folder.mkdir()
    compare_outputs(content, folder)
    assert done.outputs["json-path"] == str(result / "result.json")
    assert done.outputs["report-path"] == str(result / "report.html")


@pytest.mark.slow
def test_green_without_baseline_then_green_then_red(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    first, result = runner.run("first")
    assert first.status == 0, first.log
    assert first.outputs["verdict"] == "no-baseline"
    assert "NO BASELINE" in first.summary
    everything_agrees(first, result, tmp_path / "first outputs")

    runner.commit("Words")
    second, result = runner.run("second")
    assert second.status == 0, second.log
    assert second.outputs["verdict"] in ("pass", "inconclusive", "improvement")
    everything_agrees(second, result, tmp_path / "second outputs")

    (runner.repository / "sitecustomize.py").write_text(DELAY)
    runner.commit("A delay")
    third, result = runner.run("third")
    if third.outputs["verdict"] == "inconclusive" and "because of the machine" in third.summary:
        everything_agrees(third, result, tmp_path / "third outputs")
        pytest.skip("this machine is busy, so the gate rightly blames nobody: run it on an idle one")
    assert third.status == 1, third.log
    assert third.outputs["verdict"] == "regression"
    assert third.outputs["exit-status"] == "1"
    assert "::error title=allreduce[1MiB-float32-2xcpu]%3A REGRESSION" in third.log
    everything_agrees(third, result, tmp_path / "third outputs")
