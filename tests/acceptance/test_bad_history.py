"""A history that cannot be used, or only in part: what is said, what is kept, how the gate ends."""

from __future__ import annotations

import errno
import fcntl
import tempfile
from pathlib import Path

import pytest

import regress.history.runs
import regress.whole_file
from regress.errors import EXIT_REGRESSION, EXIT_UNTRUSTED, EXIT_USAGE
from regress.record import run_from_json
from tests.acceptance.conftest import Theatre
from tests.acceptance.recordings import ALLREDUCE


def test_a_folder_that_cannot_be_made_is_one_line_before_anything_is_measured(theatre: Theatre) -> None:
    (theatre.folder / ".comm-regress").write_text("in the way")
    done = theatre.gate()
    assert done.ret == EXIT_USAGE
    assert [line for line in done.stderr.lines if line] == [
        f"ERROR: comm-regress: {theatre.folder}/.comm-regress: the history folder cannot be written: Not a directory; "
        "accepted: a folder on a local disk that this user may write, or postgresql://...; give another one with "
        "--comm-regress-history"]
    assert (theatre.folder / ".comm-regress").read_text() == "in the way"


def test_another_folder_can_be_named(theatre: Theatre) -> None:
    assert theatre.gate("--comm-regress-history=elsewhere/runs of this machine").ret == 0
    assert len(list((theatre.folder / "elsewhere" / "runs of this machine" / "runs").glob("*.json"))) == 1
    assert not (theatre.folder / ".comm-regress").exists()


def full_disk(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No run file can be written any more; returns the temporary folder, which still takes them."""
    refuge = theatre.folder / "refuge"
    refuge.mkdir()
    written = regress.whole_file.write_whole

    def write_whole(target: Path, content: bytes, *, overwrite: bool = True, mode: int | None = None) -> None:
        if target.parent.name == "runs":
            raise OSError(errno.ENOSPC, "No space left on device")
        written(target, content, overwrite=overwrite, mode=mode)

    monkeypatch.setattr(regress.history.runs, "write_whole", write_whole)
    monkeypatch.setattr(tempfile, "tempdir", str(refuge))
    return refuge


def test_a_full_disk_costs_the_memory_and_not_the_verdict(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    theatre.baseline()
    refuge = full_disk(theatre, monkeypatch)
    done = theatre.gate("--comm-regress-json=result.json")
    assert done.ret == EXIT_UNTRUSTED
    (kept,) = refuge.glob("comm-regress-*.json")
    done.stdout.fnmatch_lines([
        f"warning: {theatre.folder}/.comm-regress/runs/*.json: the run could not be stored: No space left on device; "
        f"its JSON is kept in {kept}: make room, then `regress history import {kept}`",
        "comm-regress: 3 unchanged (status 10)"])
    assert "run: " not in done.stdout.str()
    assert run_from_json(kept.read_bytes(), str(kept)).run_id == theatre.result()["run"]["id"]
    assert (theatre.result()["verdict"], theatre.result()["exit_status"]) == ("pass", EXIT_UNTRUSTED)


def test_a_regression_stays_one_on_a_full_disk(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    theatre.baseline()
    theatre.play({ALLREDUCE: 1.6})
    full_disk(theatre, monkeypatch)
    assert theatre.gate().ret == EXIT_REGRESSION


def test_a_result_file_that_cannot_be_written_is_a_warning_and_status_10(theatre: Theatre) -> None:
    (theatre.folder / "result").mkdir()
    done = theatre.gate("--comm-regress-json=result")
    assert done.ret == EXIT_UNTRUSTED
    done.stdout.fnmatch_lines([f"warning: {theatre.folder}/result: the result cannot be written: Is a directory",
                               "comm-regress: 3 without baseline (status 10)"])
    assert len(theatre.runs()) == 1


def test_files_that_are_no_runs_are_named_skipped_and_kept(theatre: Theatre) -> None:
    theatre.baseline()
    folder = theatre.folder / ".comm-regress" / "runs"
    whole = sorted(folder.glob("*.json"))[0]
    bad = {"cut.json": whole.read_bytes()[:-100], "foreign.json": b'{"name": "somebody else"}', "empty.json": b"",
           "future.json": whole.read_bytes().replace(b'"schema":1', b'"schema":99')}
    for name, content in bad.items():
        (folder / name).write_bytes(content)
    done = theatre.gate()
    assert done.ret == 0
    done.stdout.fnmatch_lines(["comm-regress: 3 unchanged (status 0)"])
    for name in bad:
        done.stdout.fnmatch_lines([f"warning: not read: {folder}/{name}: *"])
    done.stdout.fnmatch_lines(["warning: not read: *future.json: *a newer comm-regress wrote it: upgrade to read it"])
    assert {name: (folder / name).read_bytes() for name in bad} == bad


def test_an_index_that_is_gone_or_foreign_is_rebuilt(theatre: Theatre) -> None:
    theatre.baseline()
    assert theatre.gate().ret == 0
    (index,) = (theatre.folder / ".comm-regress").glob("*.sqlite")
    index.write_bytes(b"no database")
    done = theatre.gate()
    assert done.ret == 0
    done.stdout.fnmatch_lines(["comm-regress: 3 unchanged (status 0)"])


def test_another_gate_on_this_host_is_waited_for_and_named(theatre: Theatre) -> None:
    thresholds = theatre.folder / "thresholds.yaml"
    thresholds.write_text(thresholds.read_text() + "gate: {lock_wait: 50ms}\n")
    with Path(theatre.scenario.lock).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        done = theatre.gate()
    assert done.ret == EXIT_UNTRUSTED
    done.stdout.fnmatch_lines([
        "waiting up to 0.05 s: the devices of this host: in use by another process",
        f"*comm-regress: {theatre.scenario.lock}: the devices of this host: in use by another process; waited 0.05 s; "
        "run the gate again when the other has ended*"])
