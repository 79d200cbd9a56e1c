"""Cases of several world sizes in one gate: each world size has launches of its own."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from regress.errors import EXIT_REGRESSION, EXIT_UNTRUSTED
from regress.measure.replay import write_recording
from regress.record import Case
from tests.acceptance.conftest import ROOT, Theatre
from tests.acceptance.recordings import ALLREDUCE, ALONE, Change, launches

THRESHOLDS = """\
schema: 1
cases:
  - {workload: allreduce, devices: [cpu], sizes: [1MiB], ranks: [1, 2]}
"""


def play(theatre: Theatre, seed: int, slower: Mapping[Case, float] | None = None,
         change: Mapping[Case, Change] | None = None) -> None:
    """What the launches of the next gate give, of either world size."""
    write_recording(Path(theatre.scenario.recording), "made", launches(
        seed, slower, change=change, cases=(ALONE, ALLREDUCE)))


@pytest.fixture
def sizes(theatre: Theatre) -> Theatre:
    """A gate with one and with two ranks, and three unchanged runs before."""
    (theatre.folder / "thresholds.yaml").write_text(THRESHOLDS)
    for seed in range(3):
        play(theatre, seed)
        done = theatre.gate("-q")
        assert done.ret == 0, done.stdout.str()
    return theatre


def test_an_unchanged_gate_passes(sizes: Theatre) -> None:
    play(sizes, 3)
    done = sizes.gate("--comm-regress-json=result.json")
    assert done.ret == 0
    assert {case["case"]: case["verdict"] for case in sizes.result()["cases"]} == {
        ALONE.id: "pass", ALLREDUCE.id: "pass"}
    assert [{outcome.case.world_size for outcome in launch.outcomes} for launch in sizes.runs()[-1].launches] == [
        {1}, {2}] * 3


@pytest.mark.parametrize(("slow", "other"), [(ALONE, ALLREDUCE), (ALLREDUCE, ALONE)])
def test_a_regression_of_one_world_size_is_found(sizes: Theatre, slow: Case, other: Case) -> None:
    play(sizes, 3, {slow: 1.8})
    done = sizes.gate("--comm-regress-json=result.json")
    assert done.ret == EXIT_REGRESSION
    assert {case["case"]: case["verdict"] for case in sizes.result()["cases"]} == {
        slow.id: "regression", other.id: "pass"}


def test_a_world_size_that_loses_its_results_is_invalid_and_the_other_is_not(sizes: Theatre) -> None:
    play(sizes, 3, change={ALONE: lambda _result: None})
    done = sizes.gate("--comm-regress-json=result.json")
    assert done.ret == EXIT_UNTRUSTED
    assert {case["case"]: case["verdict"] for case in sizes.result()["cases"]} == {
        ALONE.id: "invalid", ALLREDUCE.id: "pass"}


def test_real_ranks(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo, one launch of each world size."""
    pytest.importorskip("torch")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two ranks need two cores")
    for name in ("CI", "GITHUB_ACTIONS", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (pytester.path / "thresholds.yaml").write_text(
        THRESHOLDS.replace("1MiB", "4KiB") + "devices:\n  cpu: {case_duration: 50ms}\n")
    done = pytester.runpytest_subprocess("--comm-regress", "--comm-regress-device=cpu", "--comm-regress-launches=1",
                                         "--comm-regress-trace=none", timeout=300)
    assert done.ret == 0, done.stdout.str()
    done.stdout.fnmatch_lines(["comm-regress: 2 without baseline (status 0)"])
    assert dataclasses.replace(ALONE, message_size_bytes=4096).id in done.stdout.str()
