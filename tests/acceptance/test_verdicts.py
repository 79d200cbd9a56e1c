"""What a user sees of each verdict: words, figures, exit status, JUnit and JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from regress.cli import main
from regress.errors import EXIT_REGRESSION, EXIT_UNTRUSTED
from regress.measure.replay import read_recording, write_recording
from regress.record import Case
from tests.acceptance.conftest import Theatre
from tests.acceptance.recordings import ALLGATHER, ALLREDUCE, STEP, Change, failed, lost_rank, wrong_values


def junit(theatre: Theatre) -> tuple[dict[str, int], dict[str, ElementTree.Element]]:
    """Counts of the suite, and its test cases by name."""
    (suite,) = ElementTree.parse(theatre.folder / "junit.xml").getroot()  # noqa: S314 - our own text
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    return counts, {case.attrib["name"]: case for case in suite.iter("testcase")}


def properties(case: ElementTree.Element) -> dict[str, str]:
    """User properties of a JUnit test case."""
    return {item.attrib["name"]: item.attrib["value"] for item in case.iter("property")}


def test_the_first_run_has_no_baseline_and_passes(theatre: Theatre) -> None:
    done = theatre.gate("-v", "--comm-regress-json=result.json", "--junitxml=junit.xml")
    assert done.ret == 0
    done.stdout.fnmatch_lines([
        "comm-regress: 2 ranks on 2 cores of Example CPU, gloo, torch 2.13.0",
        f"comm-regress: no run of this environment yet in {theatre.folder}/.comm-regress",
        "collected 3 items",
        "[[]1/3] *[[]*] · launch 1/3 · about * left",
        "[[]3/3] *[[]*] · launch 3/3 · about * left",
        "comm-regress::allreduce[[]1MiB-float32-2xcpu] NO BASELINE *",
        "comm-regress::allgather[[]1MiB-float32-2xcpu] NO BASELINE *",
        "comm-regress::ddp_step[[]float32-2xcpu] NO BASELINE *",
        "*= comm-regress =*",
        "case * metric * now  baseline  change  verdict",
        "allreduce[[]1MiB-float32-2xcpu]  allreduce_seconds  * µs         –  –       NO BASELINE",
        "                               busbw_bytes_per_second  * GB/s         –  –       NO BASELINE",
        "allgather[[]1MiB-float32-2xcpu]  allgather_seconds  *",
        "ddp_step[[]float32-2xcpu]        step_seconds  * ms         –  –       NO BASELINE",
        "warning: no earlier run is stored: this one is the first",
        f"run: {theatre.folder}/.comm-regress/runs/*.json",
        f"json: {theatre.folder}/result.json",
        "comm-regress: 3 without baseline (status 0)",
        "*3 passed*"])
    assert (theatre.folder / ".comm-regress" / ".gitignore").read_text() == "*\n"
    assert theatre.result()["verdict"] == "no-baseline"
    assert junit(theatre)[0] == {"tests": 3, "failures": 0, "errors": 0, "skipped": 0}


def test_the_second_run_compares(theatre: Theatre) -> None:
    theatre.baseline()
    theatre.play()
    done = theatre.gate()
    assert done.ret == 0
    newest = theatre.runs()[-2]
    done.stdout.fnmatch_lines([
        f"comm-regress: newest run of this environment {newest.run_id}, {newest.started_at[:10]} ??:?? UTC, "
        f"commit unknown, in {theatre.folder}/.comm-regress",
        "comm-regress ...*",
        "allreduce[[]1MiB-float32-2xcpu]  allreduce_seconds * µs * µs  ?*.? % [[]-*, +*]  PASS",
        "comm-regress: 3 unchanged (status 0)"])


def test_a_regression_fails_with_the_whole_report(theatre: Theatre) -> None:
    theatre.baseline()
    theatre.play({ALLREDUCE: 1.6})
    theatre.set(torch="2.14.0")
    done = theatre.gate("--junitxml=junit.xml", "--comm-regress-json=result.json")
    assert done.ret == EXIT_REGRESSION
    number, percent = r"[\d.]+", r"[+-][\d.]+"
    report = "\n".join([
        r"allreduce\[1MiB-float32-2xcpu\]: REGRESSION",
        rf"  allreduce_seconds \(p25\): {number} µs now, {number} µs in the baseline, "
        rf"{percent} % \[{percent}, {percent}\]: REGRESSION by shift, 5 launches",
        rf"    p25 {number} µs against {number} µs: {percent} % \({percent} % to {percent} % with 95 % confidence\); "
        rf"5 launches against 3 earlier runs \(9 launches\); p = [\d.e-]+ \(significant\); "
        rf"a change matters from {number} µs \(30.0 %\)",
        rf"  busbw_bytes_per_second \(p75\): {number} GB/s now, {number} GB/s in the baseline, "
        rf"{percent} % \[{percent}, {percent}\]: REGRESSION by shift, 5 launches",
        r"    p75 .*",
        r"  different since the baseline: torch_version 2\.13\.0 → 2\.14\.0",
        r"  again: pytest --comm-regress 'comm-regress::allreduce\[1MiB-float32-2xcpu\]'"])
    assert re.search(rf"^{report}$", done.stdout.str(), re.MULTILINE), done.stdout.str()
    done.stdout.fnmatch_lines([
        "1 case in doubt: 5 fresh launches, about *",
        "comm-regress F..*",
        "*= FAILURES =*",
        "*_ allreduce[[]1MiB-float32-2xcpu] _*",
        "*= comm-regress =*",
        "allreduce[[]1MiB-float32-2xcpu] * REGRESSION",
        "comm-regress: 1 regression, 2 unchanged (status 1)",
        "FAILED comm-regress::allreduce[[]1MiB-float32-2xcpu] - REGRESSION: allreduce_s*..."])
    assert "Traceback" not in done.stdout.str()
    counts, cases = junit(theatre)
    assert counts == {"tests": 3, "failures": 1, "errors": 0, "skipped": 0}
    red = cases[ALLREDUCE.id]
    failure = next(red.iter("failure"))
    headline = rf"REGRESSION: allreduce_seconds {percent} % \[{percent}, {percent}\]"
    assert re.fullmatch(headline, failure.attrib["message"])
    assert re.fullmatch(report, str(failure.text))
    seen = properties(red)
    assert seen["verdict"] == "regression"
    assert float(seen["allreduce_seconds.change"]) == pytest.approx(
        float(seen["allreduce_seconds.now"]) / float(seen["allreduce_seconds.baseline"]) - 1, rel=1e-3)
    assert properties(cases[ALLGATHER.id])["verdict"] == "pass"
    assert theatre.result()["exit_status"] == EXIT_REGRESSION


def test_a_build_log_shows_one_line_a_case_in_the_short_summary(theatre: Theatre) -> None:
    theatre.baseline()
    theatre.play({ALLREDUCE: 1.6})
    theatre.monkeypatch.setenv("CI", "true")
    done = theatre.gate()
    lines = done.stdout.lines
    at = next(number for number, line in enumerate(lines) if line.startswith("FAILED comm-regress::"))
    assert "REGRESSION: allreduce_seconds +" in lines[at]
    assert lines[at + 1].startswith("=====")


def test_the_biggest_regression_comes_first(theatre: Theatre) -> None:
    theatre.baseline()
    theatre.play({ALLREDUCE: 1.6, STEP: 3.0})
    done = theatre.gate("--comm-regress-json=result.json")
    assert [case["case"] for case in theatre.result()["cases"]] == [STEP.id, ALLREDUCE.id, ALLGATHER.id]
    done.stdout.fnmatch_lines(["comm-regress: 2 regressions, 1 unchanged (status 1)"])


def test_a_change_that_does_not_matter_passes(theatre: Theatre) -> None:
    theatre.baseline()
    theatre.play({ALLREDUCE: 1.1})
    assert theatre.gate().ret == 0


def test_an_improvement_passes_and_says_how_to_hold_on_to_it(theatre: Theatre) -> None:
    theatre.baseline()
    theatre.play({ALLREDUCE: 0.5})
    done = theatre.gate("-v")
    assert done.ret == 0
    done.stdout.fnmatch_lines([
        "comm-regress::allreduce[[]1MiB-float32-2xcpu] IMPROVED *",
        "warning: allreduce_seconds of allreduce[[]1MiB-float32-2xcpu] improved by -??.? %; accept the run to hold "
        "later runs to it",
        "comm-regress: 1 improvement, 2 unchanged (status 0)"])


def test_doubt_is_skipped_with_the_reason(theatre: Theatre) -> None:
    """The budget has room for a launch of all cases at any time, and never for three of the doubtful one."""
    budget, recording = "--comm-regress-budget=350", Path(theatre.scenario.recording)

    def play(slower: dict[Case, float] | None = None) -> None:
        theatre.play(slower, spread=0.5)
        played = read_recording(recording).launches
        write_recording(recording, "made", [replace(launch, wall_seconds=200.0) for launch in played])

    for _ in range(3):
        play()
        theatre.gate("-q", budget)
    play({ALLREDUCE: 1.8})
    done = theatre.gate("-rs", budget, "--junitxml=junit.xml", "--comm-regress-json=result.json")
    assert done.ret == 0
    doubted = {case["case"] for case in theatre.result()["cases"] if case["verdict"] == "inconclusive"}
    assert ALLREDUCE.id in doubted
    counts, cases = junit(theatre)
    assert counts == {"tests": 3, "failures": 0, "errors": 0, "skipped": len(doubted)}
    assert str(next(cases[ALLREDUCE.id].iter("skipped")).get("message")).startswith("inconclusive: ")
    done.stdout.fnmatch_lines(["warning: the time budget ended before *allreduce*could be decided*"])
    done.stdout.fnmatch_lines(["SKIPPED*comm-regress*inconclusive: p25 *"])


@pytest.mark.parametrize(("case", "change", "reason"), [
    (ALLREDUCE, wrong_values, "launch 0: wrong result on rank 1: 3 of 1000 elements differ from the only right answer"),
    (ALLGATHER, lost_rank, "launch 0: rank 1 left no result of this case"),
    (STEP, failed, "launch 0: rank 1: the loss is nan at step 3")], ids=["wrong", "lost rank", "nan"])
def test_what_is_not_correct_is_invalid_before_any_speed(theatre: Theatre, case: Case, change: Change,
                                                         reason: str) -> None:
    theatre.baseline()
    theatre.play(change={case: change})
    done = theatre.gate("--junitxml=junit.xml", "--comm-regress-json=result.json")
    assert done.ret == EXIT_UNTRUSTED
    result = theatre.result()
    assert (result["verdict"], result["exit_status"]) == ("invalid", EXIT_UNTRUSTED)
    worst = result["cases"][0]
    assert (worst["case"], worst["verdict"]) == (case.id, "invalid")
    assert [row["reason"] for row in worst["metrics"] if row["metric"] == "correctness"] == [reason]
    counts, cases = junit(theatre)
    assert counts == {"tests": 3, "failures": 0, "errors": 1, "skipped": 0}
    assert reason in str(next(cases[case.id].iter("error")).text)
    text = done.stdout.str()
    assert (f"\n{case.id}: INVALID\n  correctness: {reason}\n"
            f"  again: pytest --comm-regress 'comm-regress::{case.id}'\n") in text
    assert "1 invalid, 2 unchanged (status 10)" in text
    assert f"ERROR comm-regress::{case.id} - INVALID: launch 0: " in text
    assert "gate_items.py" not in text


def test_a_regression_outweighs_an_invalid_case(theatre: Theatre) -> None:
    theatre.baseline()
    theatre.play({STEP: 3.0}, change={ALLREDUCE: wrong_values})
    done = theatre.gate()
    assert done.ret == EXIT_REGRESSION
    done.stdout.fnmatch_lines(["comm-regress: 1 invalid, 1 regression, 1 unchanged (status 1)"])


def test_a_sick_machine_turns_a_regression_into_doubt(theatre: Theatre) -> None:
    theatre.baseline()
    theatre.play({ALLREDUCE: 1.6})
    theatre.set(unfit=(("inconclusive", "cpu: load 9.0 on 2 cores"),))
    done = theatre.gate("-rs")
    assert done.ret == 0
    done.stdout.fnmatch_lines(["SKIPPED*inconclusive: *not held against the code, because of the machine: cpu: load*"])


def test_a_policy_that_only_warns_lets_the_build_pass(theatre: Theatre) -> None:
    thresholds = theatre.folder / "thresholds.yaml"
    thresholds.write_text(thresholds.read_text() + "metrics:\n  allreduce_seconds: {severity: warn}\n"
                                                   "  busbw_bytes_per_second: {severity: warn}\n")
    theatre.baseline()
    theatre.play({ALLREDUCE: 1.6})
    done = theatre.gate()
    assert done.ret == 0
    done.stdout.fnmatch_lines(["warning: allreduce_seconds of allreduce[[]1MiB-float32-2xcpu] regressed, which only "
                               "warns here: *"])


def test_a_limit_is_judged_without_any_history(theatre: Theatre) -> None:
    thresholds = theatre.folder / "thresholds.yaml"
    thresholds.write_text(thresholds.read_text() + "metrics:\n  step_seconds: {max: 5ms}\n")
    done = theatre.gate()
    assert done.ret == EXIT_REGRESSION
    done.stdout.fnmatch_lines(["    * ms is beyond the limit (at most 5.00 ms)*"])


@pytest.mark.parametrize("slower", [{}, {ALLREDUCE: 1.6}], ids=["unchanged", "regression"])
def test_the_json_keeps_to_the_published_schema(theatre: Theatre, slower: dict[Case, float],
                                                capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "result"]) == 0
    schema = json.loads(capsys.readouterr().out)
    theatre.baseline()
    theatre.play(slower)
    theatre.gate("--comm-regress-json=result.json")
    result: dict[str, Any] = theatre.result()
    jsonschema.Draft202012Validator(schema).validate(result)
    assert set(result) == {"schema", "verdict", "exit_status", "run", "environment", "cases", "warnings", "artifacts"}
    metric = result["cases"][0]["metrics"][0]
    assert {"metric", "unit", "statistic", "now", "baseline", "change", "interval", "launches", "verdict",
            "reason"} <= set(metric)
    assert result["run"]["id"] == theatre.runs()[-1].run_id


def test_another_machine_has_no_baseline_and_says_what_differs(theatre: Theatre) -> None:
    theatre.baseline()
    theatre.set(cpu="Other CPU")
    done = theatre.gate()
    assert done.ret == 0
    done.stdout.fnmatch_lines(["comm-regress: no run of this environment yet in *", "warning: *cpu_model*",
                               "comm-regress: 3 without baseline (status 0)"])


def test_a_metric_that_vanishes_is_invalid(theatre: Theatre) -> None:
    theatre.baseline()
    theatre.play(change={ALLREDUCE: lambda result: replace(result, bus_factor=None)})
    done = theatre.gate()
    assert done.ret == EXIT_UNTRUSTED
    done.stdout.fnmatch_lines(["allreduce[[]1MiB-float32-2xcpu]: INVALID",
                               "  busbw_bytes_per_second: busbw_bytes_per_second was measured in 3 baseline runs *"])


def test_a_report_that_cannot_be_written_is_a_warning(theatre: Theatre) -> None:
    (theatre.folder / "page").mkdir()
    done = theatre.gate("--comm-regress-html=page")
    assert done.ret == 0
    done.stdout.fnmatch_lines([f"warning: no report was written: {theatre.folder}/page: the report cannot be written: "
                               "Is a directory; accepted: a writable path"])
    assert "html: " not in done.stdout.str()


def test_the_report_is_written_beside_the_verdict(theatre: Theatre) -> None:
    theatre.baseline()
    done = theatre.gate("--comm-regress-html=report.html")
    done.stdout.fnmatch_lines([f"html: {theatre.folder}/report.html"])
    assert ALLREDUCE.id in (theatre.folder / "report.html").read_text()
