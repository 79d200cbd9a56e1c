"""What a trial makes of a gate that sees, of one that is blind and of one that cries wolf."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from regress.record import Diagnosis, Finding, Verdict
from regress.selftest.faults import FAULTS, INVALID, NOT_RED, RED, Cause, Fault, look, why_not
from regress.selftest.trials import (
    FAULT_VARIABLE,
    INJECT,
    Bench,
    FaultyLauncher,
    Trial,
    exit_status,
    try_faults,
    variables_for,
)
from regress.units import Unit
from tests.history.factory import run
from tests.selftest.played import PlayedLauncher, Silent

ALONE = Cause("the verdict alone")
UNCHANGED = Fault("none", "nothing", "", NOT_RED, cpu=ALONE, times=2)
SLOW = Fault("slow", "every step is slower", "ddp_step", RED, cpu=ALONE)
WRONG = Fault("wrong", "wrong values", "allreduce", INVALID, launches=1, cpu=Cause("values", words="wrong result"))
STRAGGLER = Diagnosis("straggler", "critical", {"rank": 1}, "they wait for rank 1", "look at it")


def tried(tmp_path: Path, launcher: PlayedLauncher, *faults: Fault) -> tuple[Trial, ...]:
    return tuple(try_faults(Bench(tmp_path, "cpu", Silent(), FaultyLauncher(launcher)), faults))


def test_a_gate_that_works_passes_its_selftest(tmp_path: Path) -> None:
    launcher = PlayedLauncher(slower={"slow": 3.0}, wrong=("wrong",))
    trials = tried(tmp_path, launcher, UNCHANGED, SLOW, WRONG)
    assert [(trial.fault.name, trial.seen.verdict if trial.seen else None, trial.passed) for trial in trials] == [
        ("none", Verdict.PASS, True), ("none", Verdict.PASS, True), ("slow", Verdict.REGRESSION, True),
        ("wrong", Verdict.INVALID, True)]
    assert exit_status(trials) == 0
    assert launcher.asked[:9] == ["none"] * 9, "three runs of two launches and a traced one come first"


def test_a_fault_that_is_not_seen_is_missed(tmp_path: Path) -> None:
    trials = tried(tmp_path, PlayedLauncher(), SLOW, WRONG)
    assert [trial.seen.verdict if trial.seen else None for trial in trials] == [Verdict.PASS, Verdict.NO_BASELINE]
    assert not any(trial.passed for trial in trials)
    assert exit_status(trials) == 1


def test_unchanged_code_that_is_called_worse_is_a_false_alarm(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "cpu", Silent(), FaultyLauncher(PlayedLauncher(slower={"again": 3.0})))
    (trial,) = try_faults(bench, (replace(UNCHANGED, name="again", times=1),))
    assert trial.seen is not None
    assert (trial.seen.verdict, trial.seen.caught) == (Verdict.REGRESSION, False)
    assert "against" in trial.note, "the reason of the verdict is shown"
    assert exit_status((trial,)) == 1


def test_the_right_verdict_without_the_cause_is_not_enough(tmp_path: Path) -> None:
    unnamed = replace(SLOW, cpu=Cause("something else", words="no such words"))
    (trial,) = tried(tmp_path, PlayedLauncher(slower={"slow": 3.0}), unnamed)
    assert trial.seen is not None
    assert trial.seen.verdict is Verdict.REGRESSION
    assert not trial.passed


def test_one_fault_does_not_become_the_baseline_of_the_next(tmp_path: Path) -> None:
    slow = replace(SLOW, times=3)
    trials = tried(tmp_path, PlayedLauncher(slower={"slow": 3.0}), slow)
    assert [trial.seen.verdict if trial.seen else None for trial in trials] == [Verdict.REGRESSION] * 3
    assert len(list((tmp_path / "baseline" / "runs").iterdir())) == 3


def test_faults_that_need_no_baseline_measure_none(tmp_path: Path) -> None:
    launcher = PlayedLauncher(wrong=("wrong",))
    tried(tmp_path, launcher, WRONG)
    assert launcher.asked == ["wrong"]


def test_what_this_machine_cannot_show_says_so_and_fails_nothing(tmp_path: Path) -> None:
    launcher = PlayedLauncher()
    only_gpus = [fault for fault in FAULTS if fault.cpu is None]
    trials = tried(tmp_path, launcher, *only_gpus)
    assert [trial.fault.name for trial in trials] == [
        "gpu-load", "pageable-copies", "one-channel", "small-nccl-buffer", "p2p-off"]
    assert all(trial.seen is None and trial.note == "not on this machine: needs a GPU" for trial in trials)
    assert (exit_status(trials), launcher.asked) == (0, [])


def test_faults_between_gpus_need_two() -> None:
    p2p = next(fault for fault in FAULTS if fault.name == "p2p-off")
    assert p2p.obstacle("cuda", 1) == "needs 2 GPUs that talk to each other directly; 1 here"
    assert p2p.obstacle("cuda", 2) is None
    load = next(fault for fault in FAULTS if fault.name == "cpu-load")
    assert load.obstacle("cuda", 2) == "shows with gloo on a CPU only"


def test_a_cause_is_found_among_consequences_and_only_on_its_rank() -> None:
    fault = Fault("f", "f", "", NOT_RED)
    outer = Diagnosis("exposed_comm", "warning", {}, "c", "t", consequences=(STRAGGLER,))
    found = replace(run(1), diagnoses=(outer,))
    seen = look(fault, Cause("straggler", ("straggler",), rank=1), found)
    assert (seen.caught, seen.cause) == (True, "straggler: they wait for rank 1")
    assert not look(fault, Cause("straggler", ("straggler",), rank=0), found).caught


def test_words_are_looked_for_in_reasons_warnings_and_health() -> None:
    fault = Fault("f", "f", "", NOT_RED)
    finding = Finding("c", "correctness", Unit.COUNT, "correctness", Verdict.INVALID, "value", "rank 1 is gone")
    for holder in (replace(run(1), findings=(finding,)), replace(run(1), warnings=("rank 1 is gone",))):
        assert look(fault, Cause("", words="rank 1 is gone"), holder).caught
    busy = replace(run(1), health={"cpu.busy_before_ratio": 1.0, "cpu.runnable_before_per_core": 4.0})
    assert look(fault, Cause("", words="of the CPU was busy"), busy).caught
    assert not look(fault, Cause("", words="of the CPU was busy"), run(1)).caught


def test_a_miss_is_explained_by_what_mattered_most_and_by_what_cut_it_short() -> None:
    small = Finding("c", "busbw", Unit.COUNT, "shift", Verdict.INCONCLUSIVE, "p25", "wide")
    big = Finding("c", "step_seconds", Unit.SECONDS, "shift", Verdict.INCONCLUSIVE, "p25", "because of the machine",
                  relevant=True)
    found = replace(run(1), verdict=Verdict.INCONCLUSIVE, findings=(small, big),
                    warnings=("no git", "the time budget ended before c could be decided"))
    assert why_not(found) == "step_seconds: because of the machine; the time budget ended before c could be decided"
    assert why_not(replace(found, findings=(), warnings=("no git",))) == "no git"


def test_ranks_get_the_fault_and_the_folder_that_injects_it_before_the_users_own() -> None:
    fault = replace(SLOW, variables={"NCCL_P2P_DISABLE": "1"})
    assert variables_for(fault, {"PYTHONPATH": "/mine"}) == {
        FAULT_VARIABLE: "slow", "PYTHONPATH": f"{INJECT}{os.pathsep}/mine", "NCCL_P2P_DISABLE": "1"}
    assert variables_for(fault, {})["PYTHONPATH"] == str(INJECT)


def test_every_fault_that_code_injects_is_on_the_list_and_the_other_way_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FAULT_VARIABLE, raising=False)
    from regress.selftest.inject import sitecustomize

    injected = {*sitecustomize.ONE_RANK, *sitecustomize.ALL_RANKS}
    assert injected == {fault.name for fault in FAULTS if not (fault.load or fault.variables)} - {"none"}
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
