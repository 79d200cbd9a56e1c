"""A folder to run the gate in, with recorded launches."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from regress.measure.replay import write_recording
from regress.record import Case, Run, run_from_json
from tests.acceptance import stage
from tests.acceptance.recordings import THRESHOLDS, Change, launches

ROOT = Path(__file__).resolve().parents[2]
_CI = ("CI", "GITHUB_ACTIONS", "GITHUB_ACTOR", "GITHUB_REPOSITORY", "GITLAB_CI", "PYTEST_ADDOPTS", "NO_COLOR",
       "FORCE_COLOR", "COLUMNS")


stage.load_everything()


@dataclass(slots=True)
class Theatre:
    """Where the gate runs: a temporary folder, what its launches give, and the runs it left."""

    pytester: pytest.Pytester
    monkeypatch: pytest.MonkeyPatch
    scenario: stage.Scenario
    earlier: Path
    _seed: int = field(default=0, init=False)

    @property
    def folder(self) -> Path:
        """The folder under test."""
        return self.pytester.path

    def play(self, slower: Mapping[Case, float] | None = None, *, spread: float = 0.01,
             change: Mapping[Case, Change] | None = None) -> None:
        """What the launches of the next gate give; other noise each time."""
        self._seed += 1
        write_recording(Path(self.scenario.recording), "made", launches(self._seed, slower, spread=spread,
                                                                        change=change))

    def gate(self, *arguments: str, cache: bool = False) -> pytest.RunResult:
        """`pytest --comm-regress`, in this process. cache: with pytest's memory of what failed last."""
        with self.monkeypatch.context() as patch:
            stage.install(patch.setattr, self.scenario)
            without = ("hypothesispytest",) if cache else ("hypothesispytest", "cacheprovider")
            return self.pytester.runpytest_inprocess(
                *(f"-pno:{name}" for name in without), "--comm-regress", *arguments, no_reraise_ctrlc=True)

    def process(self, *arguments: str, interpreter: Sequence[str] = ()) -> pytest.RunResult:
        """`pytest ARGUMENTS` as a process of its own, with this scenario."""
        self.monkeypatch.setenv(stage.VARIABLE, msgspec.json.encode(self.scenario).decode())
        self.monkeypatch.setenv("PYTHONPATH", str(ROOT))
        return self.pytester.run(sys.executable, *interpreter, "-m", "pytest", "-p", "no:cacheprovider", "-p",
                                 "tests.acceptance.stage", *arguments)

    def baseline(self) -> None:
        """Three unchanged gates, each with other noise; measured once and then copied."""
        runs = self.folder / ".comm-regress" / "runs"
        if not self.earlier.exists():
            for _ in range(3):
                self.play()
                assert self.gate("-q").ret == 0
            shutil.copytree(runs, self.earlier)
            shutil.rmtree(runs.parent)
        shutil.copytree(self.earlier, runs, dirs_exist_ok=True)
        self._seed = 3

    def runs(self) -> list[Run]:
        """What the history holds, oldest first."""
        folder = self.folder / ".comm-regress" / "runs"
        files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        return [run_from_json(path.read_bytes(), str(path)) for path in files]

    def result(self) -> dict[str, Any]:
        """The JSON at result.json."""
        content: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return content

    def set(self, **changes: Any) -> None:
        """Another interrupt, torch version or fault of the machine."""
        self.scenario = replace(self.scenario, **changes)


@pytest.fixture
def theatre(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch,
            tmp_path_factory: pytest.TempPathFactory) -> Theatre:
    """A folder with a thresholds file of three cases; its launches are unchanged unless a test says otherwise."""
    for name in _CI:
        monkeypatch.delenv(name, raising=False)
    behind = tmp_path_factory.mktemp("behind")
    (pytester.path / "thresholds.yaml").write_text(THRESHOLDS)
    made = Theatre(pytester, monkeypatch, stage.Scenario(str(behind / "recording.json.gz"), str(behind / "lock")),
                   tmp_path_factory.getbasetemp() / "earlier runs")
    made.play()
    return made
