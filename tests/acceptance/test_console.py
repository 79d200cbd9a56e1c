"""The console script: every command's text, its `--json`, and its exit status."""

from __future__ import annotations

import io
import json
import lzma
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from regress.cli import COMMANDS, main
from regress.errors import EXIT_INTERRUPTED, EXIT_REGRESSION, EXIT_UNTRUSTED, EXIT_USAGE
from tests.acceptance import stage
from tests.acceptance.conftest import Theatre
from tests.acceptance.recordings import ALLGATHER, ALLREDUCE, CASES, STEP, wrong_values


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed and ended with."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its stdout, which is JSON alone."""
        return json.loads(self.out)


@dataclass(slots=True)
class Shell:
    """A shell in the folder under test."""

    theatre: Theatre
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Said:
        with self.theatre.monkeypatch.context() as patch:
            stage.install(patch.setattr, self.theatre.scenario)
            self.capsys.readouterr()
            try:
                status = main(arguments)
            except SystemExit as end:
                status = int(end.code or 0)
            said = self.capsys.readouterr()
        return Said(status, said.out, said.err)


@pytest.fixture
def shell(theatre: Theatre, capsys: pytest.CaptureFixture[str]) -> Shell:
    """`regress`, with the launches of the theatre."""
    return Shell(theatre, capsys)


def matches(text: str, *lines: str) -> None:
    """Every line fits its pattern, in which * stands for anything and all else for itself."""
    patterns = [".*".join(map(re.escape, line.split("*"))) for line in lines]
    got = text.splitlines()
    assert len(got) == len(lines), text
    for line, pattern in zip(got, patterns, strict=True):
        assert re.fullmatch(pattern, line), f"{line!r} is not {pattern!r}"


# The script itself


def test_version(shell: Shell) -> None:
    assert shell("--version") == Said(0, f"comm-regress {version('comm-regress')}\n", "")


def test_no_command_shows_the_help_and_is_a_usage_error(shell: Shell) -> None:
    said = shell()
    assert (said.status, said.out) == (EXIT_USAGE, "")
    for name, summary in COMMANDS.items():
        assert re.search(rf"^ +{name} +{re.escape(summary[:40])}", said.err, re.MULTILINE)
    assert ("exit status: 0 pass, 1 regression, 2 interrupted, 3 internal error, 4 usage, "
            "10 the measurement cannot be trusted") in " ".join(said.err.split())


@pytest.mark.parametrize("arguments", [["measure"], ["history"], ["history", "lst"], ["schema", "nothing"], ["compare"],
                                       ["run", "--device", "tpu"], ["run", "--launches", "many"]], ids=" ".join)
def test_what_the_parser_does_not_know_is_a_usage_error(shell: Shell, arguments: Sequence[str]) -> None:
    said = shell(*arguments)
    assert (said.status, said.out) == (EXIT_USAGE, "")
    assert said.err.splitlines()[-1].startswith("regress")
    assert ": error: " in said.err.splitlines()[-1]


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help(shell: Shell, command: str) -> None:
    said = shell(command, "--help")
    assert said.status == 0
    assert said.out.startswith(f"usage: regress {command} ")


# run


def test_run_measures_judges_and_stores(shell: Shell) -> None:
    first = shell("run")
    assert first.status == 0
    assert "comm-regress: 2 ranks on 2 cores of Example CPU, gloo, torch 2.13.0\n" in first.err
    assert "[1/3] " in first.err
    matches(first.out, "case * metric * now  baseline  change  verdict",
            "allreduce[1MiB-float32-2xcpu]  allreduce_seconds * µs         –  –       NO BASELINE",
            " * busbw_bytes_per_second  * GB/s         –  –       NO BASELINE",
            "allgather[1MiB-float32-2xcpu]  allgather_seconds * NO BASELINE", " * busbw_bytes_per_second * NO BASELINE",
            "ddp_step[float32-2xcpu]        step_seconds * ms         –  –       NO BASELINE",
            "warning: no earlier run is stored: this one is the first",
            "run: .comm-regress/runs/*.json", "comm-regress: 3 without baseline (status 0)")
    shell.theatre.play()
    assert shell("run").out.endswith("comm-regress: 3 unchanged (status 0)\n")


def test_run_and_the_plugin_share_one_history(shell: Shell) -> None:
    shell.theatre.baseline()
    shell.theatre.play({ALLREDUCE: 1.6})
    said = shell("run")
    assert said.status == EXIT_REGRESSION
    assert said.out.startswith("allreduce[1MiB-float32-2xcpu]: REGRESSION\n  allreduce_seconds (p25): ")
    assert "  again: pytest --comm-regress 'comm-regress::allreduce[1MiB-float32-2xcpu]'\n\ncase " in said.out
    assert said.out.endswith("comm-regress: 1 regression, 2 unchanged (status 1)\n")


def test_run_json_alone_on_stdout_keeps_to_the_schema(shell: Shell) -> None:
    schema = shell("schema", "result").json
    said = shell("run", "--json", "--case", "ddp_*")
    assert said.status == 0
    jsonschema.Draft202012Validator(schema).validate(said.json)
    assert [case["case"] for case in said.json["cases"]] == [STEP.id]


def test_run_json_into_a_file(shell: Shell) -> None:
    assert "json: result.json\n" in shell("run", "--json", "result.json").out
    assert shell.theatre.result()["verdict"] == "no-baseline"


def test_run_list_measures_nothing(shell: Shell) -> None:
    said = shell("run", "--list")
    assert said == Said(0, "".join(f"{case.id}\n" for case in CASES), "")
    assert shell.theatre.runs() == []


def test_run_names_the_cases_when_none_matches(shell: Shell) -> None:
    said = shell("run", "--case", "alltoall*")
    assert said == Said(EXIT_USAGE, "", "regress run: --case: no case matches alltoall*; accepted: "
                                        f"{', '.join(case.id for case in CASES)}\n")


def test_run_ends_with_10_where_a_case_is_invalid(shell: Shell) -> None:
    shell.theatre.play(change={ALLREDUCE: wrong_values})
    said = shell("run")
    assert said.status == EXIT_UNTRUSTED
    assert said.out.startswith("allreduce[1MiB-float32-2xcpu]: INVALID\n  correctness: launch 0: wrong result on "
                               "rank 1: 3 of 1000 elements differ from the only right answer\n  again: ")


def test_run_interrupted_prints_what_was_kept(shell: Shell) -> None:
    shell.theatre.set(interrupt_at=1)
    said = shell("run")
    assert said.status == EXIT_INTERRUPTED
    assert "run: .comm-regress/runs/" in said.out
    assert shell.theatre.runs()[0].partial


def test_run_where_no_case_can_run_is_a_usage_error(shell: Shell) -> None:
    (shell.theatre.folder / "thresholds.yaml").write_text(
        "schema: 1\ncases:\n  - {workload: allreduce, devices: [cpu], sizes: [1MiB], ranks: [64]}\n")
    assert shell("run") == Said(EXIT_USAGE, "", "regress run: none of the 1 cases can run here: 64 ranks on 2 CPU "
                                "cores; accepted: at most 2; accepted: a machine that has what the cases need\n")


# compare


def test_compare_says_what_the_gate_would(shell: Shell) -> None:
    shell.theatre.baseline()
    shell.theatre.play({ALLREDUCE: 1.6})
    shell.theatre.set(torch="2.14.0")
    shell("run")
    before, now = shell.theatre.runs()[-2].run_id, shell.theatre.runs()[-1].run_id
    said = shell("compare", before[:8], now)
    assert said.status == EXIT_REGRESSION
    lines = said.out.splitlines()
    assert lines[:2] == [f"run {now} against run {before}", "allreduce[1MiB-float32-2xcpu]: REGRESSION"]
    assert "different: torch_version 2.13.0 → 2.14.0" in lines
    assert lines[-1] == "comm-regress: 1 regression, 2 unchanged (status 1)"
    parsed = shell("compare", before, now, "--json")
    jsonschema.Draft202012Validator(shell("schema", "result").json).validate(parsed.json)
    assert (parsed.status, parsed.json["verdict"], parsed.json["exit_status"]) == (EXIT_REGRESSION, "regression", 1)
    assert shell("compare", before, before).status == 0


def test_compare_names_a_run_that_is_not_there(shell: Shell) -> None:
    shell.theatre.baseline()
    said = shell("compare", "nothing", shell.theatre.runs()[0].run_id)
    assert said == Said(EXIT_USAGE, "", "regress compare: .comm-regress: no run 'nothing'; accepted: a run id, or the "
                                        "beginning of exactly one; `regress history list` shows them\n")


def test_runs_of_different_machines_are_not_compared(shell: Shell) -> None:
    shell.theatre.baseline()
    shell.theatre.set(cpu="Other CPU")
    shell("run")
    before, now = shell.theatre.runs()[-2].run_id, shell.theatre.runs()[-1].run_id
    assert shell("compare", before, now) == Said(EXIT_USAGE, "", (
        "regress compare: the two runs were measured in different environments: cpu_model: Example CPU there, Other "
        "CPU here; accepted: two runs whose must-match facts agree; `regress history list` shows each run's "
        "environment\n"))


# history


def test_history_list(shell: Shell) -> None:
    assert shell("history", "list") == Said(0, "no runs in .comm-regress\n", "")
    shell.theatre.baseline()
    newest = shell.theatre.runs()[-1]
    said = shell("history", "list", "--limit", "1")
    assert said == Said(0, f"{newest.run_id}  {newest.started_at[:16].replace('T', ' ')}  -           -  pass  3 "
                           "cases\n", "")
    rows = shell("history", "list", "--json").json
    assert [row["run"] for row in rows] == [run.run_id for run in reversed(shell.theatre.runs())]
    assert set(rows[0]) == {"run", "attempt", "started_at", "commit", "branch", "verdict", "partial", "environment",
                            "cases", "accepted"}


def test_history_names_files_that_are_no_runs(shell: Shell) -> None:
    shell.theatre.baseline()
    bad = Path(".comm-regress/runs/foreign.json")
    bad.write_text("[]")
    said = shell("history", "list", "--json")
    assert (said.status, len(said.json)) == (0, 3)
    assert said.err.startswith("not read: .comm-regress/runs/foreign.json: ")
    assert bad.read_text() == "[]"


def test_history_show(shell: Shell) -> None:
    shell.theatre.baseline()
    run = shell.theatre.runs()[-1]
    said = shell("history", "show", run.run_id[:8])
    lines = said.out.splitlines()
    assert lines[0] == f"run {run.run_id} of {run.started_at}, commit unknown (no subject)"
    assert "  cpu_model: Example CPU" in lines
    assert lines[-1] == "3 unchanged"
    stored = shell("history", "show", run.run_id, "--json").json
    jsonschema.Draft202012Validator(shell("schema", "run").json).validate(stored)
    assert (stored["run_id"], len(stored["launches"])) == (run.run_id, 3)


def test_history_export_and_import_through_pipes(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.theatre.baseline()
    exported = shell("history", "export")
    assert exported.err == "3 runs exported\n"
    assert [json.loads(line)["run_id"] for line in exported.out.splitlines()] == [
        run.run_id for run in shell.theatre.runs()]
    for told in ("3 runs added, 0 were there already\n", "0 runs added, 3 were there already\n"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(exported.out.encode())))
        assert shell("history", "import", "--history", "copy") == Said(0, told, "")
    assert len(list(Path("copy/runs").glob("*.json"))) == 3


def test_history_export_and_import_of_a_packed_file(shell: Shell) -> None:
    shell.theatre.baseline()
    assert shell("history", "export", "runs.ndjson.gz") == Said(0, "", "3 runs exported\n")
    assert Path("runs.ndjson.gz").read_bytes()[:2] == b"\x1f\x8b"
    said = shell("history", "import", "runs.ndjson.gz", "--history", "copy", "--json")
    assert (said.status, said.json) == (0, {"added": 3, "already": 0, "problems": []})


def test_an_import_names_the_lines_that_are_no_runs(shell: Shell) -> None:
    Path("runs.ndjson").write_text('{"schema": 1}\n\nno JSON\n')
    said = shell("history", "import", "runs.ndjson")
    assert said.out == "0 runs added, 0 were there already\n"
    matches(said.err, "not read: runs.ndjson:1: *", "not read: runs.ndjson:3: *")
    assert said.status == EXIT_UNTRUSTED
    assert shell("history", "import", "none.ndjson").status == EXIT_USAGE


def test_history_accept(shell: Shell) -> None:
    shell.theatre.baseline()
    run = shell.theatre.runs()[0].run_id
    assert shell("history", "accept", run) .status == EXIT_USAGE
    said = shell("history", "accept", run, "--reason", "a new switch", "--case", ALLGATHER.id)
    assert said == Said(0, f"run {run} is the anchor of {ALLGATHER.id}: later runs are compared from here on\n", "")
    assert shell("history", "accept", run, "--reason", "all of it", "--json").json["accepted"] == "all of it"
    assert "accepted: all of it" in shell("history", "list").out


def test_history_prune_and_reindex(shell: Shell) -> None:
    shell.theatre.baseline()
    freed = shell("history", "prune", "--keep", "1", "--json").json["freed_bytes"]
    assert freed > 0
    assert shell("history", "prune", "--keep", "1") == Said(0, "0 bytes freed\n", "")
    assert shell("history", "reindex") == Said(0, "3 runs indexed\n", "")
    assert shell("history", "reindex", "--json").json == {"runs": 3}


# schema, report, show, explain, backtest


@pytest.mark.parametrize("what", ["thresholds", "result", "run"])
def test_schemas_are_schemas(shell: Shell, what: str) -> None:
    said = shell("schema", what)
    assert said.status == 0
    jsonschema.Draft202012Validator.check_schema(said.json)
    assert shell("schema", what, "--json").out == said.out


def test_the_default_schema_is_that_of_the_thresholds(shell: Shell) -> None:
    assert shell("schema").json["title"] == "comm-regress thresholds"


def test_report(shell: Shell) -> None:
    shell.theatre.baseline()
    assert shell("report") == Said(0, "comm-regress.html: 3 runs\n", "")
    assert shell("report", "-o", "page.html", "--case", "ddp_*", "--json").json == {"path": "page.html", "runs": 3}
    assert ALLREDUCE.id not in Path("page.html").read_text()
    said = shell("report", "-o", "no/such/folder.html")
    assert said == Said(EXIT_UNTRUSTED, "", "regress report: no/such/folder.html: the report cannot be written: No "
                                            "such file or directory; accepted: a writable path\n")


def test_show(shell: Shell) -> None:
    assert shell("show", "--json").json is None
    shell.theatre.baseline()
    said = shell("show")
    assert said.status == 0
    for case in CASES:
        assert case.workload in said.out
    assert "\x1b[" not in said.out
    assert {case["case"] for case in shell("show", "--json").json["cases"]} == {case.id for case in CASES}
    assert shell("show", "--case", "alltoall*").err == (
        "regress show: --case: no stored case matches alltoall*; accepted: "
        f"{', '.join(sorted(case.id for case in CASES))}\n")


def test_explain(shell: Shell) -> None:
    packed = Path(__file__).resolve().parents[1] / "data" / "trace" / "nvlink" / "micro.sqlite.xz"
    Path("micro.sqlite").write_bytes(lzma.decompress(packed.read_bytes()))
    said = shell("explain", "micro.sqlite", "--json")
    assert said.status == 0
    assert {"ranks", "devices", "metrics", "findings", "warnings"} <= set(said.json)
    assert set(said.json["metrics"]["transfer_seconds"]) >= {"value", "unit", "better"}
    assert said.json["ranks"] == 2
    against = shell("explain", "micro.sqlite", "--against", "micro.sqlite", "--json").json
    assert against["metrics"]["transfer_seconds"]["change"] == 0
    text = shell("explain", "micro.sqlite")
    assert text.status == 0
    assert "transfer_seconds" in text.out
    missing = shell("explain", "nothing.json")
    assert missing.status == EXIT_USAGE
    assert missing.err.startswith("regress explain: nothing.json: ")


HISTORY = "timestamp,commit,metric,value,unit,better\n" + "".join(
    f"2026-01-{day:02}T00:00:00Z,c{day:02},step_seconds,{value * (2 if day > 20 else 1)},s,lower\n"
    for day in range(1, 29) for value in (0.100, 0.101, 0.102))


def test_backtest(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("history.csv").write_text(HISTORY)
    said = shell("backtest", "history.csv", "--json")
    assert said.status == 0
    assert said.json["runs"] == 25
    assert [(alarm["commit"], alarm["metric"]) for alarm in said.json["alarms"]] == [("c21", "step_seconds")]
    assert said.json["alarms"][0]["change"] == pytest.approx(1.0, rel=0.05)
    monkeypatch.setattr(sys, "stdin", io.StringIO(HISTORY))
    lines = shell("backtest", "-", "--min-effect", "5%").out.splitlines()
    assert lines[0] == "25 commits judged, 1 alarm (4.00 % of the commits)"
    assert lines[1].startswith("  worse: step_seconds at c21: +100.0 % (")
    missing = shell("backtest", "none.csv")
    assert missing == Said(EXIT_USAGE, "", "regress backtest: none.csv: No such file or directory; accepted: a "
                                           "readable CSV file in UTF-8\n")


def test_publish_without_sinks_names_them(shell: Shell) -> None:
    said = shell("publish", "sinks")
    assert (said.status, said.out) == (EXIT_USAGE, "")
    assert said.err.startswith("regress publish: thresholds.yaml: no sink is configured; accepted: a section publish; "
                               "choose among ")


def test_publish_sinks_pushes_stored_runs(shell: Shell) -> None:
    thresholds = shell.theatre.folder / "thresholds.yaml"
    shell.theatre.baseline()
    thresholds.write_text(thresholds.read_text() + "publish:\n  - {sink: file, path: gate.prom, all_branches: true}\n")
    run = shell.theatre.runs()[-1].run_id
    assert shell("publish", "sinks", run) == Said(0, "file gate.prom: gate.prom written\n", "")
    assert "allreduce" in Path("gate.prom").read_text()
    said = shell("publish", "sinks", run, "--json")
    assert set(said.json) == {"deliveries", "verified", "problems"}
