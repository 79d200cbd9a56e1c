"""`pytest --comm-regress` behaves as pytest users expect: selecting, listing, stopping, refusing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from regress.errors import EXIT_INTERRUPTED, EXIT_NO_CASES, EXIT_REGRESSION, EXIT_UNTRUSTED, EXIT_USAGE
from tests.acceptance.conftest import Theatre
from tests.acceptance.recordings import ALLGATHER, ALLREDUCE, CASES, STEP


def words(value: object) -> str:
    """The arguments, as a test's id."""
    return " ".join(value) if isinstance(value, list) else ""


def measured(theatre: Theatre) -> set[str]:
    """The cases of the newest stored run."""
    return set(theatre.runs()[-1].verdicts)


def refusal(done: pytest.RunResult) -> str:
    """The one line of a usage error; nothing was measured and no traceback shown."""
    assert done.ret == EXIT_USAGE
    (line,) = [line for line in done.stderr.lines if line]
    assert line.startswith("ERROR: ")
    return line.removeprefix("ERROR: ")


def test_collect_only_lists_the_cases_and_touches_no_history(theatre: Theatre) -> None:
    done = theatre.gate("--collect-only", "-q")
    assert done.ret == 0
    assert [line for line in done.stdout.lines if "::" in line] == [f"comm-regress::{case.id}" for case in CASES]
    assert not (theatre.folder / ".comm-regress").exists()
    assert "= comm-regress =" not in done.stdout.str()


@pytest.mark.parametrize(("arguments", "chosen"), [
    (["-k", "allgather"], {ALLGATHER}), (["-k", "not ddp_step"], {ALLREDUCE, ALLGATHER}),
    (["-m", "collective"], {ALLREDUCE, ALLGATHER}), (["-m", "step and cpu"], {STEP}),
    (["-m", "comm_regress"], {*CASES}),
    ([f"comm-regress::{STEP.id}", f"comm-regress::{ALLGATHER.id}"], {STEP, ALLGATHER}),
    (["--deselect", f"comm-regress::{STEP.id}"], {ALLREDUCE, ALLGATHER})], ids=words)
def test_only_selected_cases_are_measured(theatre: Theatre, arguments: list[str], chosen: set[object]) -> None:
    done = theatre.gate("--strict-markers", "--strict-config", *arguments)
    assert done.ret == 0
    assert measured(theatre) == {case.id for case in CASES if case in chosen}
    done.assert_outcomes(passed=len(chosen), deselected=0 if "::" in arguments[0] else 3 - len(chosen))


def test_nothing_selected_is_status_5_and_measures_nothing(theatre: Theatre) -> None:
    assert theatre.gate("-k", "alltoall").ret == EXIT_NO_CASES
    assert theatre.runs() == []


def test_an_unknown_node_id_names_the_cases(theatre: Theatre) -> None:
    done = theatre.gate("comm-regress::allreduce[2MiB-float32-2xcpu]")
    assert done.ret == EXIT_USAGE
    done.stderr.fnmatch_lines(["ERROR: no case 'comm-regress::allreduce[[]2MiB-float32-2xcpu]' here; cases on "
                               "this machine: comm-regress::allreduce[[]1MiB*, comm-regress::ddp_step*"])


def test_tests_of_the_repository_are_not_imported(theatre: Theatre) -> None:
    (theatre.folder / "test_mine.py").write_text("raise SystemExit('imported')\n")
    done = theatre.gate()
    assert done.ret == 0
    done.assert_outcomes(passed=3)


def test_stopping_at_the_first_failure(theatre: Theatre) -> None:
    theatre.baseline()
    theatre.play({ALLREDUCE: 1.6, STEP: 3.0})
    done = theatre.gate("-x")
    assert done.ret == EXIT_REGRESSION
    done.stdout.fnmatch_lines(["*stopping after 1 failures*"])
    assert "comm-regress: 2 regressions, 1 unchanged (status 1)" in done.stdout.lines


def test_quiet_leaves_progress_out_and_keeps_the_result(theatre: Theatre) -> None:
    done = theatre.gate("-q")
    assert "launch 1/3" not in done.stdout.str()
    assert "2 cores of Example CPU" not in done.stdout.str()
    done.stdout.fnmatch_lines(["comm-regress: 3 without baseline (status 0)"])


def test_xdist_is_refused_in_one_line(theatre: Theatre) -> None:
    for arguments, given, flag in ((["-n", "2"], "-n 2", "-n"), (["-d", "--tx", "2*popen"], "--tx", "--tx")):
        done = theatre.process("--comm-regress", *arguments)
        assert refusal(done) == (f"--comm-regress with {given}: cases would compete for the GPUs and time each other; "
                                 f"run it without xdist's {flag}")
    assert theatre.runs() == []


def test_switching_the_plugin_off_removes_its_options(theatre: Theatre) -> None:
    done = theatre.process("-p", "no:comm_regress", "--comm-regress")
    assert done.ret == EXIT_USAGE
    done.stderr.fnmatch_lines(["*unrecognized arguments: --comm-regress*"])


def test_it_runs_without_pytests_terminal(theatre: Theatre) -> None:
    done = theatre.process("--comm-regress", "-p", "no:terminal")
    assert (done.ret, done.stdout.str().strip(), done.stderr.str().strip()) == (0, "", "")
    assert measured(theatre) == {case.id for case in CASES}


def test_it_loads_by_name_where_autoloading_is_off(theatre: Theatre) -> None:
    theatre.monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    assert theatre.process("-p", "regress.plugin", "--comm-regress", "--collect-only", "-q").ret == 0


def test_help_shows_every_option_under_one_heading(theatre: Theatre) -> None:
    done = theatre.process("--help")
    done.stdout.fnmatch_lines(["comm-regress (performance gate for GPU communication):", "  --comm-regress *",
                               "  --comm-regress-config=PATH", "  --comm-regress-history=URL",
                               "  --comm-regress-device={auto,cuda,cpu}", "  --comm-regress-launches=N",
                               "  --comm-regress-budget=SECONDS", "  --comm-regress-trace={auto,nsys,kineto,none}",
                               "  --comm-regress-base=REF", "  --comm-regress-accept=REASON",
                               "  --comm-regress-json=PATH", "  --comm-regress-html=PATH"])


def test_an_option_without_the_gate_is_refused(theatre: Theatre) -> None:
    done = theatre.process("--comm-regress-launches=3")
    assert refusal(done) == "--comm-regress-launches without --comm-regress measures nothing; add --comm-regress"


@pytest.mark.parametrize(("arguments", "text"), [
    (["--comm-regress-launches=0"], "comm-regress: --comm-regress-launches: 0 launches; accepted: 1 or more"),
    (["--comm-regress-budget=0"], "comm-regress: --comm-regress-budget: a budget of 0 s; accepted: more than 0 s"),
    (["--comm-regress-budget=nan"], "comm-regress: --comm-regress-budget: a budget of nan s; accepted: more than 0 s"),
    (["--comm-regress-accept= "], "comm-regress: --comm-regress-accept: an empty reason; accepted: one sentence that "
                                  "says why"),
    (["--comm-regress-json=nowhere/result.json"], "comm-regress: --comm-regress-json: no folder {folder}/nowhere; "
                                                  "accepted: an existing folder"),
    (["--comm-regress-config=none.yaml"], "comm-regress: {folder}/none.yaml: No such file or directory; accepted: a "
                                          "readable thresholds file; leave the option out to use the packaged default"),
    (["--comm-regress-device=cuda"], "comm-regress: --comm-regress-device cuda: no usable NVIDIA GPU"),
    (["--comm-regress-history=s3://bucket/runs"],
     "comm-regress: a history cannot live at 's3://bucket/runs'; accepted: a folder, or postgresql://...; for an "
     "object store, move runs with `regress history export` and `import`"),
], ids=words)
def test_what_cannot_mean_anything_is_one_line_and_status_4(theatre: Theatre, arguments: list[str], text: str) -> None:
    assert refusal(theatre.gate(*arguments)) == text.format(folder=theatre.folder)


def test_an_unknown_device_is_refused_by_the_parser(theatre: Theatre) -> None:
    done = theatre.gate("--comm-regress-device=tpu")
    assert done.ret == EXIT_USAGE
    done.stderr.fnmatch_lines(["*argument --comm-regress-device: invalid choice: 'tpu' (choose from *auto*cuda*cpu*)"])


@pytest.mark.parametrize(("yaml", "text"), [
    ("schema: 1\ncases:\n  - {workload: allreduce, sizes: [16MB]}\n", ":3: cases[0].sizes[0]: '16MB'"),
    ("schema: 1\ngate:\n  windw: 3\n", ":3: gate.windw: unknown key 'windw'; accepted: "),
    ("schema: 1\nmetrics:\n  step_seconds: {effect: 10}\n", ":3: metrics.step_seconds"),
    ("schema: 1\ncases: [\n", ":3:1: not YAML: "),
    ("schema: 1\ncases:\n  - {workload: allreduce, devices: [cpu], sizes: [1MiB]}\n"
     "metrics:\n  step_seconds: {max: 1s}\n",
     ":5: metrics.step_seconds: no case of this file measures 'step_seconds'"),
    ("schema: 2\n", ":1: schema: 2; accepted: 1"),
], ids=["unit", "key", "percent", "broken", "metric", "schema"])
def test_a_thresholds_file_that_is_not_understood_names_the_line(theatre: Theatre, yaml: str, text: str) -> None:
    (theatre.folder / "thresholds.yaml").write_text(yaml)
    assert f"{theatre.folder}/thresholds.yaml{text}" in refusal(theatre.gate())


def test_without_a_thresholds_file_the_packaged_cases_run(theatre: Theatre) -> None:
    (theatre.folder / "thresholds.yaml").unlink()
    done = theatre.gate("--collect-only", "-q")
    done.stdout.fnmatch_lines(["comm-regress::allreduce[[]4KiB-float32-2xcpu-pipelined]",
                               "comm-regress::allreduce[[]16MiB-float32-2xcpu]",
                               "comm-regress::ddp_step[[]float32-2xcpu]"])


def test_the_thresholds_of_the_rootdir_count_from_any_folder_of_it(theatre: Theatre) -> None:
    (theatre.folder / "pytest.ini").write_text("[pytest]\n")
    inner = theatre.folder / "deep" / "down"
    inner.mkdir(parents=True)
    theatre.monkeypatch.chdir(inner)
    done = theatre.gate("--comm-regress-json=result.json")
    done.assert_outcomes(passed=3)
    assert (inner / "result.json").is_file()
    assert (theatre.folder / ".comm-regress").is_dir()


def test_a_named_config_wins_over_the_one_of_the_rootdir(theatre: Theatre) -> None:
    (theatre.folder / "other.yaml").write_text("schema: 1\ncases:\n  - {workload: ddp_step, devices: [cpu]}\n")
    theatre.gate("--comm-regress-config=other.yaml").assert_outcomes(passed=1)


TOO_MANY = "schema: 1\ncases:\n  - {workload: allreduce, devices: [cpu], sizes: [1MiB], ranks: [2, 64]}\n"
LARGE = "allreduce[1MiB-float32-64xcpu]"


def test_a_case_that_cannot_run_here_is_skipped_on_a_desk(theatre: Theatre) -> None:
    (theatre.folder / "thresholds.yaml").write_text(TOO_MANY)
    done = theatre.gate("-rs")
    assert done.ret == 0
    done.assert_outcomes(passed=1, skipped=1)
    done.stdout.fnmatch_lines(["SKIPPED [[]1] comm-regress::allreduce[[]1MiB-float32-64xcpu]: 64 ranks on 2 CPU cores; "
                               "accepted: at most 2"])


def test_a_case_that_cannot_run_here_is_an_error_in_ci(theatre: Theatre) -> None:
    (theatre.folder / "thresholds.yaml").write_text(TOO_MANY)
    theatre.monkeypatch.setenv("CI", "true")
    done = theatre.gate()
    assert done.ret == EXIT_UNTRUSTED
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(["allreduce[[]1MiB-float32-64xcpu]: 64 ranks on 2 CPU cores; accepted: at most 2; "
                               "CI is set, so this is no skip"])
    assert "Traceback" not in done.stdout.str()
    assert "gate_items.py" not in done.stdout.str()


def test_a_file_without_cases_for_this_device_says_so(theatre: Theatre) -> None:
    (theatre.folder / "thresholds.yaml").write_text(
        "schema: 1\ncases:\n  - {workload: allreduce, devices: [cuda], sizes: [1MiB]}\n")
    done = theatre.gate("-rs")
    assert done.ret == 0
    done.assert_outcomes(skipped=1)
    done.stdout.fnmatch_lines(["SKIPPED*needs an NVIDIA GPU, and there is none here"])


def test_accepting_in_ci_is_refused_unless_the_file_allows_it(theatre: Theatre) -> None:
    theatre.monkeypatch.setenv("CI", "true")
    assert refusal(theatre.gate("--comm-regress-accept=a new switch")) == (
        "comm-regress: --comm-regress-accept: accepting a new anchor while CI is set; accepted: `gate: {accept_in_ci: "
        "true}` in the thresholds file; accept on a desk instead: regress history accept RUN --reason ...")
    thresholds = theatre.folder / "thresholds.yaml"
    thresholds.write_text(thresholds.read_text() + "gate: {accept_in_ci: true}\n")
    assert theatre.gate("--comm-regress-accept=a new switch").ret == 0


def test_an_accepted_run_is_the_anchor_of_its_cases(theatre: Theatre) -> None:
    theatre.baseline()
    theatre.play({ALLREDUCE: 1.6})
    assert theatre.gate("--comm-regress-accept=the new switch is slower", "-k", "allreduce").ret == EXIT_REGRESSION
    accepted = theatre.runs()[-1].accepted
    assert accepted is not None
    assert (accepted.reason, accepted.cases) == ("the new switch is slower", (ALLREDUCE.id,))
    theatre.play({ALLREDUCE: 1.6})
    assert theatre.gate().ret == 0


def test_an_unknown_base_is_refused_before_anything_is_measured(theatre: Theatre) -> None:
    for words in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q",
                                   "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *words], cwd=theatre.folder, check=True)
    done = theatre.gate("--comm-regress-base=origin/main")
    assert done.ret == EXIT_USAGE
    assert "no commit 'origin/main'; accepted: a branch, tag or commit of this repository" in (
        done.stdout.str() + done.stderr.str())
    assert theatre.runs() == []


def test_ctrl_c_keeps_what_was_finished_as_partial(theatre: Theatre) -> None:
    theatre.baseline()
    theatre.set(interrupt_at=2)
    done = theatre.gate()
    assert done.ret == EXIT_INTERRUPTED
    kept = theatre.runs()[-1]
    assert (kept.partial, len(kept.launches)) == (True, 2)
    done.stdout.fnmatch_lines([
        "warning: interrupted: what was finished is kept as a partial run, which is no baseline", "run: *.json",
        "comm-regress: 3 unchanged (status 2)", "*KeyboardInterrupt*"])


def test_ctrl_c_before_the_first_launch_keeps_nothing(theatre: Theatre) -> None:
    theatre.set(interrupt_at=0)
    done = theatre.gate()
    assert done.ret == EXIT_INTERRUPTED
    done.stdout.fnmatch_lines(["warning: interrupted before anything was finished",
                               "comm-regress: no case was measured (status 2)"])
    assert theatre.runs() == []


def test_a_partial_run_is_no_baseline(theatre: Theatre) -> None:
    theatre.set(interrupt_at=1)
    theatre.gate()
    theatre.set(interrupt_at=None)
    done = theatre.gate("-q")
    done.stdout.fnmatch_lines(["comm-regress: 3 without baseline (status 0)"])


def test_real_recorded_launches_play_too(theatre: Theatre) -> None:
    """A recording of two gloo ranks on a busy host, under the packaged thresholds."""
    theatre.set(recording=str(Path(__file__).resolve().parents[1] / "data" / "measure" / "gloo_2ranks_cpu.json.gz"))
    (theatre.folder / "thresholds.yaml").unlink()
    assert theatre.gate().ret == 0
    done = theatre.gate()
    assert done.ret == 0
    done.stdout.fnmatch_lines(["comm-regress: * (status 0)"])
