"""The composite action's steps, run as a runner runs them, with stand-ins that record what they are asked for."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from regress.history.store import open_history
from tests.github.jobs import job, pull_event
from tests.github.runner import ROOT, Finished, load_yaml, run_action
from tests.github.runs import quiet_json, recorded_json, recorded_run


class Stand:
    """A runner with a stand-in for pytest and regress; `result` is what the gate writes, `status` its status."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scripts = folder / "scripts"
        self.workspace, self.temp = folder / "work space", folder / "temp"
        for path in (self.scripts, self.workspace, self.temp):
            path.mkdir()
        self.result: bytes | None = quiet_json()
        self.status = 0
        self.doctor = 0

    def program(self, name: str, body: str) -> None:
        path = self.scripts / name
        path.write_text(f"#!{sys.executable}\nimport json, os, pathlib, sys\n"
                        f"log = pathlib.Path({str(self.folder)!r}, 'called.jsonl')\n"
                        "with log.open('a') as stream:\n"
                        f"    stream.write(json.dumps([{name!r}, *sys.argv[1:]]) + '\\n')\n{body}")
        path.chmod(0o755)

    def calls(self, name: str) -> list[list[str]]:
        path = self.folder / "called.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call[1:] for call in map(json.loads, lines) if call[0] == name]

    def run(self, **inputs: str) -> Finished:
        made = self.folder / "made.json"
        if self.result is not None:
            made.write_bytes(self.result)
        self.program("python3", f"print({str(self.scripts)!r})\n")
        self.program("pytest", "for word in sys.argv:\n"
                     "    if word.startswith('--comm-regress-json='):\n"
                     f"        made = pathlib.Path({str(made)!r})\n"
                     "        if made.exists(): pathlib.Path(word.split('=', 1)[1]).write_bytes(made.read_bytes())\n"
                     f"sys.exit({self.status})\n")
        self.program("regress", f"if sys.argv[1] == 'doctor': sys.exit({self.doctor})\n"
                     f"pathlib.Path({str(self.folder / 'published-in')!r}).write_text(os.getcwd())\n"
                     f"sys.path.insert(0, {str(ROOT)!r})\n"
                     "import argparse\n"
                     "from regress.forge.command import add_github_arguments, run_github\n"
                     "parser = argparse.ArgumentParser()\n"
                     "add_github_arguments(parser)\n"
                     "sys.exit(run_github(parser.parse_args(sys.argv[3:])))\n")
        environment = {**job(self.folder, "http://127.0.0.1:9", pull_event(), token=None), "HOME": str(self.folder),
                       "PATH": f"{self.scripts}:{os.environ['PATH']}"}
        named = {name.replace("_", "-"): value for name, value in inputs.items()}
        return run_action(ROOT, {"install": "false", **named}, environment, self.workspace, self.temp)


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


def test_a_green_run_gives_all_outputs_and_a_summary(stand: Stand) -> None:
    done = stand.run()
    assert done.status == 0, done.log
    assert done.outputs["verdict"] == "pass"
    assert done.outputs["exit-status"] == "0"
    assert Path(done.outputs["json-path"]).read_bytes() == quiet_json()
    assert done.outputs["report-path"] == ""
    assert "comm-regress: PASS" in done.summary


def test_a_regression_fails_the_job_after_everything_was_published(stand: Stand) -> None:
    stand.result, stand.status = recorded_json(), 1
    done = stand.run()
    assert done.status == 1
    assert list(done.statuses)[-1] == "Verdict"
    assert done.outputs["verdict"] == "regression"
    assert "::error title=allreduce" in done.log
    assert "REGRESSION" in done.summary


def test_fail_false_reports_and_stays_green(stand: Stand) -> None:
    stand.result, stand.status = recorded_json(), 1
    done = stand.run(fail="false")
    assert done.status == 0
    assert done.outputs["exit-status"] == "1"


@pytest.mark.parametrize("status", [2, 3, 4, 5, 10])
def test_every_other_status_fails_too_and_says_so_without_a_result(stand: Stand, status: int) -> None:
    stand.result, stand.status = None, status
    done = stand.run()
    assert done.status == status
    assert done.outputs["verdict"] == ""
    assert done.outputs["json-path"] == ""
    assert f"The gate ended with status {status} and no result" in done.summary


def test_a_result_of_an_earlier_job_is_not_taken_for_this_one(stand: Stand) -> None:
    assert stand.run().outputs["verdict"] == "pass"
    stand.result, stand.status = None, 4
    (stand.folder / "made.json").unlink()
    assert stand.run().outputs["verdict"] == ""


def test_a_machine_that_is_not_fit_ends_with_10_before_anything_is_measured(stand: Stand) -> None:
    stand.doctor = 10
    assert stand.run().status == 10
    assert stand.calls("pytest") == []


def test_inputs_become_options_and_nothing_is_interpreted_by_the_shell(stand: Stand) -> None:
    hostile = "$(touch owned); `touch owned` \" ' \n x"
    stand.run(config=hostile, device="cpu", launches="3", budget="60", cases="allreduce and not 4KiB", base="HEAD^1",
              history="some where", trace="none")
    (options,) = stand.calls("pytest")
    assert f"--comm-regress-config={hostile}" in options
    assert {"--comm-regress-device=cpu", "--comm-regress-launches=3", "--comm-regress-budget=60",
            f"--comm-regress-history={stand.workspace}/some where", "--comm-regress-base=HEAD^1",
            "--comm-regress-trace=none"} <= set(options)
    assert options[options.index("-k") + 1] == "allreduce and not 4KiB"
    assert not list(stand.folder.rglob("owned"))


def test_the_history_stays_outside_the_workspace_and_is_one_for_each_repository(stand: Stand) -> None:
    done = stand.run()
    assert done.outputs["history-path"] == f"{stand.folder}/.local/state/comm-regress/org/project"


def test_a_relative_history_is_below_the_repository_under_test_for_every_step(stand: Stand) -> None:
    stand.result, stand.status = recorded_json(), 1
    (stand.workspace / "sub dir").mkdir()
    kept = stand.workspace / "sub dir" / "kept"
    with open_history(str(kept)) as history:
        for day in (1, 2, 3):
            started = f"2026-03-0{day}T10:00:00+00:00"
            history.add(replace(recorded_run(), run_id=f"run{day}", started_at=started, ended_at=started))
    done = stand.run(working_directory="sub dir", history="kept", fail="false")
    assert done.status == 0, done.log
    assert f"--comm-regress-history={kept}" in stand.calls("pytest")[0]
    (published,) = [call for call in stand.calls("regress") if call[0] == "publish"]
    assert published[published.index("--history") + 1] == str(kept)
    assert (stand.folder / "published-in").read_text() == str(kept.parent)  # git of that folder orders the trends
    assert "over 3 runs, oldest first" in done.summary
    assert done.outputs["history-path"] == str(kept)


@pytest.mark.parametrize("url", ["postgresql://host/db", "/var/lib/comm-regress"])
def test_a_history_that_is_a_url_or_absolute_stays_as_it_is(stand: Stand, url: str) -> None:
    stand.result, stand.status = None, 4  # so that nothing opens it
    assert stand.run(history=url).outputs["history-path"] == url
    assert f"--comm-regress-history={url}" in stand.calls("pytest")[0]


@pytest.mark.parametrize("base", ["", "0" * 40])
def test_a_first_push_has_no_base(stand: Stand, base: str) -> None:
    stand.run(base=base)
    assert not any(option.startswith("--comm-regress-base") for option in stand.calls("pytest")[0])


@pytest.mark.parametrize("name", ["install", "doctor", "fail"])
def test_a_switch_that_is_neither_true_nor_false_is_refused(stand: Stand, name: str) -> None:
    done = stand.run(**{name: "yes"})
    assert done.status == 4
    assert f"input {name} is 'yes'; accepted: 'true' or 'false'" in done.log


def test_no_expression_stands_inside_a_script() -> None:
    for path in [ROOT / "action.yml", *sorted((ROOT / ".github" / "workflows").glob("*.yml"))]:
        content = load_yaml(path)
        jobs = content.get("jobs", {}).values()
        steps = [*content.get("runs", {}).get("steps", []), *(step for job in jobs for step in job["steps"])]
        assert steps
        for step in steps:
            assert "${{" not in step.get("run", ""), path


def test_the_installation_keeps_the_torch_that_is_there(stand: Stand, tmp_path: Path) -> None:
    (stand.temp / "comm-regress-venv" / "bin").mkdir(parents=True)
    inner = stand.temp / "comm-regress-venv" / "bin" / "python"
    stand.program("inner", f"print({str(stand.scripts)!r})\n")
    inner.symlink_to(stand.scripts / "inner")
    stand.program("base", "print('False')\n")
    done = stand.run(install="true", python=str(stand.scripts / "base"), doctor="false")
    assert done.status == 0, done.log
    assert ["-m", "venv", "--system-site-packages", f"{stand.temp}/comm-regress-venv"] in stand.calls("base")
    installs = [call for call in stand.calls("inner") if "install" in call]
    assert installs == [["-m", "pip", "--disable-pip-version-check", "install", "-q", str(ROOT)]]


def test_every_input_and_output_is_described_and_documented() -> None:
    described = load_yaml(ROOT / "action.yml")
    page = (ROOT / "docs" / "runner.md").read_text()
    for name, entry in {**described["inputs"], **described["outputs"]}.items():
        assert entry["description"]
        assert re.search(rf"`{name}`", page), name
