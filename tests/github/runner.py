"""The part of a GitHub Actions runner that composite actions and shell steps need, to run their steps as it would.

Expressions are looked up, never guessed: one that this runner does not know fails the test.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


def load_yaml(path: Path) -> dict[str, Any]:
    """A workflow or an action; YAML 1.1 reads the key `on` as true."""
    content: dict[Any, Any] = yaml.safe_load(path.read_text())
    return {"on" if key is True else key: value for key, value in content.items()}


@dataclass
class Finished:
    """One run of an action: its outputs, the steps that ran with their statuses, and everything they printed."""

    outputs: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    log: str = ""
    summary: str = ""

    @property
    def status(self) -> int:
        return next((status for status in self.statuses.values() if status), 0)


def run_action(action: Path, inputs: Mapping[str, str], environment: Mapping[str, str], workspace: Path,
               temp: Path) -> Finished:
    """Every step in order until one fails, in `workspace`, with a fresh GITHUB_OUTPUT and GITHUB_STEP_SUMMARY each."""
    described = load_yaml(action / "action.yml")
    known = {f"inputs.{name}": str(entry.get("default", "")) for name, entry in described["inputs"].items()}
    assert {f"inputs.{name}" for name in inputs} <= set(known)
    known |= {f"inputs.{name}": value for name, value in inputs.items()} | {"github.action_path": str(action)}
    done = Finished()
    for step in described["runs"]["steps"]:
        if _holds(step.get("if", "true"), known):
            status = _step(step, known, done, environment=environment, workspace=workspace, temp=temp)
            done.statuses[step["name"]] = status
            if status:
                break
    for name, entry in described["outputs"].items():
        done.outputs[name] = evaluated(entry["value"], known)
    return done


def _step(step: dict[str, Any], known: dict[str, str], done: Finished, *, environment: Mapping[str, str],
          workspace: Path, temp: Path) -> int:
    assert step["shell"] == "bash"
    files = {name: temp / f"{name}-{len(done.statuses)}" for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "script")}
    for path in files.values():
        path.write_text("")
    files["script"].write_text(step["run"])
    variables = {**environment, **{name: evaluated(value, known) for name, value in step.get("env", {}).items()},
                 "RUNNER_TEMP": str(temp), "GITHUB_OUTPUT": str(files["GITHUB_OUTPUT"]),
                 "GITHUB_STEP_SUMMARY": str(files["GITHUB_STEP_SUMMARY"])}
    folder = workspace / evaluated(step.get("working-directory", "."), known)
    ran = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", str(files["script"])], cwd=folder,
                         env=variables, text=True, capture_output=True, timeout=300, check=False)
    done.log += ran.stdout + ran.stderr
    done.summary += files["GITHUB_STEP_SUMMARY"].read_text()
    for name, value in read_outputs(files["GITHUB_OUTPUT"].read_text()).items():
        known[f"steps.{step.get('id', '')}.outputs.{name}"] = value
    return ran.returncode


def read_outputs(text: str) -> dict[str, str]:
    """GITHUB_OUTPUT as the runner reads it: name=value lines and blocks between delimiters."""
    found: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        if (block := re.fullmatch(r"([\w-]+)<<(.+)", line)) is not None:
            content = []
            for inner in lines:
                if inner == block[2]:
                    break
                content.append(inner)
            found[block[1]] = "\n".join(content)
        elif line:
            name, _, value = line.partition("=")
            found[name] = value
    return found


def evaluated(text: str, known: Mapping[str, str]) -> str:
    """The text with its expressions replaced; an output of a step that set none is empty, as it is on the runner."""
    def value(match: re.Match[str]) -> str:
        name = match[1].strip()
        return known.get(name, "") if name.startswith("steps.") else known[name]

    return re.sub(r"\$\{\{(.+?)\}\}", value, str(text))


def _holds(condition: str, known: Mapping[str, str]) -> bool:
    inner = condition.removeprefix("${{").removesuffix("}}").strip()
    if inner == "true":
        return True
    match = re.fullmatch(r"([\w.-]+) == '(\w*)'", inner)
    assert match is not None, condition
    return known[match[1]] == match[2]
