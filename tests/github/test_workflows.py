"""The workflows: permissions, pins, who may reach the GPUs; and the linters of the trade, where they are installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from regress.catalog import open_shelves
from regress.config import load_config
from tests.github.runner import ROOT, load_yaml

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FOLDER = ROOT / "docs" / "examples"
EXAMPLES = [FOLDER / "gate.yml", FOLDER / "comment.yml"]
CALLABLE = re.compile(r"[\w-]+/[\w./-]+@[0-9a-f]{40}|\./")


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = load_yaml(path)["jobs"]
    return found


def tool(name: str) -> str:
    """A linter beside this Python or on PATH; without it the test is skipped."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{name} is not installed")
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_nothing_is_permitted_but_what_a_job_names(path: Path) -> None:
    assert load_yaml(path)["permissions"] == {}
    writes = {f"{path.stem}: {name}" for job in jobs(path).values() for name, level in job["permissions"].items()
              if level == "write"}
    assert writes == ({"comment: checks", "comment: pull-requests"} if path.stem == "comment" else set())


@pytest.mark.parametrize("path", [*WORKFLOWS, *EXAMPLES], ids=lambda path: path.name)
def test_actions_are_pinned_by_their_full_commit(path: Path) -> None:
    for job in jobs(path).values():
        for step in job["steps"]:
            if "uses" in step and not step["uses"].startswith("OWNER/comm-regress@"):
                assert CALLABLE.fullmatch(step["uses"]), step["uses"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_gpu_jobs_queue_for_the_same_machine_and_never_run_for_forks(path: Path) -> None:
    for job in jobs(path).values():
        assert job["timeout-minutes"] > 0
        if "self-hosted" in job["runs-on"]:
            assert job["concurrency"] == {"group": "comm-regress-gpu", "queue": "max"}
            if "pull_request" in load_yaml(path)["on"]:
                assert "github.event.pull_request.head.repo.full_name == github.repository" in job["if"]


def test_the_token_that_may_write_is_never_where_a_pull_request_is_checked_out() -> None:
    for path in WORKFLOWS:
        triggers = load_yaml(path)["on"]
        assert "pull_request_target" not in triggers
        for job in jobs(path).values():
            for step in job["steps"]:
                if "checkout" in step.get("uses", ""):
                    assert step["with"]["persist-credentials"] is False
                    if "workflow_run" in triggers:
                        assert "ref" not in step["with"]


def test_actionlint() -> None:
    files = [str(path) for path in [*WORKFLOWS, *EXAMPLES]]
    checked = subprocess.run([tool("actionlint"), "-config-file", str(ROOT / ".github" / "actionlint.yaml"), *files],
                             capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_zizmor_has_no_finding() -> None:
    audited = [str(path) for path in (ROOT / ".github", ROOT / "action.yml", *EXAMPLES)]
    checked = subprocess.run([tool("zizmor"), "--offline", "--no-progress", *audited], capture_output=True, text=True,
                             check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("path", [ROOT / "action.yml", *WORKFLOWS, *EXAMPLES], ids=lambda path: path.name)
def test_shellcheck_of_every_script(path: Path, tmp_path: Path) -> None:
    content = load_yaml(path)
    steps = [*content.get("runs", {}).get("steps", []), *(step for job in content.get("jobs", {}).values()
                                                          for step in job["steps"])]
    for number, step in enumerate(steps):
        if "run" in step:
            script = tmp_path / f"{number}.sh"
            script.write_text("#!/bin/bash\nset -eo pipefail\n" + step["run"])
            checked = subprocess.run([tool("shellcheck"), "-e", "SC2153,SC2154", str(script)], capture_output=True,
                                     text=True, check=False)
            assert checked.returncode == 0, checked.stdout


def test_the_scripts_and_values_of_the_other_examples_are_well_formed() -> None:
    checked = subprocess.run([tool("shellcheck"), str(FOLDER / "slurm-runner.sh")], capture_output=True, text=True,
                             check=False)
    assert checked.returncode == 0, checked.stdout
    (container,) = load_yaml(FOLDER / "arc-values.yaml")["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] > 1
    assert load_yaml(FOLDER / "gitlab-ci.yml")["gate"]["artifacts"]["reports"]["junit"] == \
        "comm-regress-result/junit.xml"


def test_the_nightly_thresholds_load_on_both_devices() -> None:
    config = load_config(ROOT / ".github" / "full-sweep.yaml", open_shelves().catalog())
    assert len(config.plan("cuda", 2)) > len(config.plan("cpu", 2)) > 0


def test_every_python_that_is_declared_is_tried_at_both_ends_of_its_range() -> None:
    declared = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    matrix = jobs(ROOT / ".github" / "workflows" / "checks.yml")["supported"]["strategy"]["matrix"]
    assert matrix == {"python": declared, "range": ["oldest", "newest"]}
