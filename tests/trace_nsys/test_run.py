from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from regress.errors import TraceInputError, TraceUnfitError
from regress.trace.nsys import Nsys, probe
from regress.trace.nsys_export import export_sqlite
from regress.trace.nsys_run import (
    collect,
    judge_report,
    new_session,
    node_output,
    node_reports,
    profile_command,
    run,
    shutdown_session,
)

from .fake import EXPORT_2023, PROFILE_2023, WRITE_REPORT, Fake

PATH_ONLY = {"PATH": os.environ["PATH"]}


def installed(folder: Path, fake: Fake | None = None) -> Nsys:
    nsys = probe((fake or Fake()).install(folder / "nsys"))
    assert nsys is not None
    return nsys


def test_the_command_on_gpus_traces_the_capture_range_and_lets_the_ranks_live(tmp_path: Path) -> None:
    command = profile_command(installed(tmp_path), tmp_path / "t", session="s1", environ=PATH_ONLY)
    assert command[1:] == (
        "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop", "--cuda-graph-trace=node", "--wait=primary", "--session-new=s1",
        "--force-overwrite=true", f"--output={tmp_path}/t.nsys-rep")


def test_the_command_without_gpus_has_no_capture_range(tmp_path: Path) -> None:
    command = profile_command(installed(tmp_path), tmp_path / "t.nsys-rep", cuda=False, environ=PATH_ONLY)
    assert "--trace=nvtx,osrt" in command
    assert not [word for word in command if "capture" in word or "cuda" in word]
    assert command[-1] == f"--output={tmp_path}/t.nsys-rep"


def test_gpu_metrics_are_asked_for_by_the_releases_own_name(tmp_path: Path) -> None:
    old = installed(tmp_path, Fake(profile_flags=PROFILE_2023))
    command = profile_command(old, tmp_path / "t", gpu_metrics=True, environ=PATH_ONLY)
    assert {"--gpu-metrics-device=all", "--gpu-metrics-frequency=1000"} <= set(command)


def test_secrets_are_unset_in_front_of_nsys_by_name_alone(tmp_path: Path) -> None:
    nsys = installed(tmp_path)
    environ = {**PATH_ONLY, "HF_TOKEN": "hunter2", "HF_HOME": "/data"}
    command = profile_command(nsys, tmp_path / "t", environ=environ, keep=("HF_HOME",))
    assert command[:4] == ("env", "--unset=HF_TOKEN", str(nsys.path), "profile")
    assert "hunter2" not in " ".join(command)


def test_session_names_are_never_the_same() -> None:
    names = {new_session() for _ in range(100)}
    assert len(names) == 100
    assert all(name.isalnum() for name in names)


def test_each_node_has_a_report_of_its_own(tmp_path: Path) -> None:
    assert node_output(tmp_path).name == "trace-%h.nsys-rep"
    for host in ("b.example", "a.example"):
        (tmp_path / f"trace-{host}.nsys-rep").write_text("x")
    assert [path.name for path in node_reports(tmp_path)] == ["trace-a.example.nsys-rep", "trace-b.example.nsys-rep"]


def test_a_good_launch_gives_report_export_and_no_error(tmp_path: Path) -> None:
    found = run(installed(tmp_path), ["true"], tmp_path / "out" / "t", environ=PATH_ONLY)
    assert (found.error, found.exit_status, found.warnings) == ("", 0, ())
    assert found.report == tmp_path / "out" / "t.nsys-rep"
    assert found.sqlite is not None
    assert b"hunter2" not in found.sqlite.read_bytes()


def test_a_trace_without_payloads_says_so(tmp_path: Path) -> None:
    found = run(installed(tmp_path, Fake(export_flags=EXPORT_2023)), ["true"], tmp_path / "t", environ=PATH_ONLY)
    assert found.error == ""
    assert "message sizes are not in its traces" in found.warnings[0]


@pytest.mark.parametrize(("script", "cause"), [
    ('printf "No reports were generated\\n"', "no process opened the capture range"),
    ('printf "Generated:\\n"', "no process opened the capture range"),
    ("""printf "unrecognised option '--gpu-metrics-devices=all'\\n"; exit 1""", "refused a flag: unrecognised option"),
    ("""printf "Illegal --trace argument 'cuda-sw'\\n"; exit 1""", "refused a flag: Illegal --trace argument"),
    ("""printf "Failed to create '$output': File exists.\\nGenerated:\\n    /tmp/nsys-report-1.nsys-rep\\n" """,
     "could not create it: File exists; the report went to /tmp/nsys-report-1.nsys-rep"),
    ('echo raw > "${output%.nsys-rep}.qdstrm"; printf "Importer error status: An unknown error occurred.\\n"',
     "left only the raw"),
    (': > "$output"', "the report is empty"),
    ('echo report > "$output"; touch -d "2001-01-01" "$output"', "older than the launch"),
    ("echo segmentation fault; exit 139", "the last it printed: segmentation fault"),
])
def test_a_missing_report_names_its_cause_whatever_the_status(tmp_path: Path, script: str, cause: str) -> None:
    found = run(installed(tmp_path, Fake(profile=script)), ["true"], tmp_path / "t", environ=PATH_ONLY)
    assert cause in found.error
    assert found.sqlite is None


def test_refused_gpu_counters_are_left_out_and_said(tmp_path: Path) -> None:
    script = f"""if [ -n "$gpu" ]; then echo "Illegal --gpu-metrics-devices arguments."; exit 1; fi; {WRITE_REPORT}"""
    found = run(installed(tmp_path, Fake(profile=script)), ["true"], tmp_path / "t", gpu_metrics=True,
                environ=PATH_ONLY)
    assert found.error == ""
    assert found.warnings[0].startswith("GPU counters left out: ")


def test_the_launchers_status_is_kept_beside_its_trace(tmp_path: Path) -> None:
    found = run(installed(tmp_path, Fake(profile=f"{WRITE_REPORT}; exit 7")), ["true"], tmp_path / "t",
                environ=PATH_ONLY)
    assert (found.exit_status, found.error) == (7, "")
    assert "ended with status 7" in found.warnings[0]


def test_a_launch_that_hangs_is_ended_and_its_report_kept(tmp_path: Path) -> None:
    script = f"trap '{WRITE_REPORT.replace(chr(34), '')}; exit 143' TERM; sleep 30 & wait"
    found = run(installed(tmp_path, Fake(profile=script)), ["true"], tmp_path / "t", environ=PATH_ONLY, timeout=0.5)
    assert found.error == ""
    assert "had not ended after" in found.warnings[0]


def test_one_that_ignores_the_end_is_shut_down_by_its_session(tmp_path: Path) -> None:
    fake = Fake(profile=f'echo "$session" > {tmp_path}/session; trap "" TERM; sleep 30',
                sessions=f"cat {tmp_path}/session")
    nsys = installed(tmp_path, fake)
    found = run(nsys, ["true"], tmp_path / "t", environ=PATH_ONLY, timeout=0.5, grace=0.2)
    assert "was shut down" in found.warnings[0]
    assert "--kill=sigkill" in (tmp_path / "nsys" / "calls").read_text()
    assert found.error


def test_a_session_that_is_not_listed_is_left_alone(tmp_path: Path) -> None:
    assert shutdown_session(installed(tmp_path), "nobody") == ""
    assert "shutdown" not in (tmp_path / "nsys" / "calls").read_text()


def test_a_report_that_cannot_be_exported_is_still_named(tmp_path: Path) -> None:
    fake = Fake(export='echo "Exportation error: Version number is invalid: 2026@2@1"; exit 1')
    found = run(installed(tmp_path, fake), ["true"], tmp_path / "t", environ=PATH_ONLY)
    assert found.report == tmp_path / "t.nsys-rep"
    assert "written by nsys 2026.2, which nsys 2025.3.1" in found.error


def test_nsys_that_is_gone_is_an_error_and_no_exception(tmp_path: Path) -> None:
    nsys = installed(tmp_path)
    nsys.path.unlink()
    found = run(nsys, ["true"], tmp_path / "t", environ=PATH_ONLY)
    assert "could not be launched" in found.error


def test_an_older_report_is_not_taken_for_this_launchs(tmp_path: Path) -> None:
    nsys = installed(tmp_path)
    report = tmp_path / "t.nsys-rep"
    report.write_text("old")
    with pytest.raises(TraceUnfitError, match="older than the launch"):
        judge_report(nsys, report, "", time.time() + 60)
    assert collect(nsys, report, log="", started=time.time() + 60, exit_status=0).error


@pytest.mark.parametrize(("name", "content", "cause"), [
    ("gone.nsys-rep", None, "no such file"), ("empty.nsys-rep", "", "the file is empty"),
    ("raw.qdstrm", "x", "a raw .qdstrm is no report yet"),
])
def test_what_cannot_be_exported_is_refused_before_nsys_is_asked(tmp_path: Path, name: str, content: str | None,
                                                                 cause: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(TraceInputError, match=cause):
        export_sqlite(installed(tmp_path), tmp_path / name)


@pytest.mark.parametrize("export", ["true", 'echo nonsense > "$output"', "exit 1"])
def test_an_export_is_believed_only_when_it_is_there(tmp_path: Path, export: str) -> None:
    (tmp_path / "t.nsys-rep").write_text("x")
    with pytest.raises(TraceInputError, match="could not export it"):
        export_sqlite(installed(tmp_path, Fake(export=export)), tmp_path / "t.nsys-rep")
    assert not (tmp_path / "t.sqlite").exists()
