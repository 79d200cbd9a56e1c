"""What a history folder looks like on disk, and what it does about damage."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from regress import record
from regress.errors import EXIT_UNTRUSTED, EXIT_USAGE, HistoryError, HistoryWriteError, RecordError
from regress.history import index, runs
from regress.history.store import open_history
from regress.record import SCHEMA_VERSION, to_json, without_samples
from tests.history.factory import ALLREDUCE, moment, run
from tests.history.test_store import ids


def test_a_run_is_one_json_file_with_a_telling_name(tmp_path: Path) -> None:
    with open_history(str(tmp_path / "h")) as history:
        where = history.add(run(1, run_id="abc", sha="0123456789abcdef" * 2 + "01234567"))
    assert Path(where) == tmp_path / "h" / "runs" / "20260101T010000Z-01234567-abc-1.json"
    assert json.loads(Path(where).read_text())["run_id"] == "abc"
    assert (tmp_path / "h" / ".gitignore").read_text() == "*\n"
    assert sorted(p.name for p in (tmp_path / "h" / "runs").iterdir()) == ["20260101T010000Z-01234567-abc-1.json"]


def test_a_commit_that_is_no_hash_never_reaches_a_file_name() -> None:
    strange = replace(run(1), commit=record.Commit(sha="../../../etc"))
    assert runs.file_name(strange) == "20260101T010000Z-nocommit-run00001-1.json"
    without = replace(strange, commit=record.Commit())
    assert runs.file_name(without, compress=True).endswith("-nocommit-run00001-1.json.gz")


def test_files_may_be_compressed_and_mixed(tmp_path: Path) -> None:
    with open_history(str(tmp_path), compress=True) as history:
        where = history.add(run(1))
    assert record.run_from_json(gzip.decompress(Path(where).read_bytes()), where) == run(1)
    with open_history(str(tmp_path)) as history:
        history.add(run(2))
        assert ids(history.runs()) == ["run00002", "run00001"]
        assert history.get("run00001") == run(1)
        history.prune(0)
        assert history.get("run00001") == without_samples(run(1))


def test_files_that_come_and_go_are_followed(tmp_path: Path) -> None:
    with open_history(str(tmp_path / "a")) as first, open_history(str(tmp_path / "b")) as second:
        first.add(run(1))
        where = Path(second.add(run(2)))
        shutil.copy(where, tmp_path / "a" / "runs")
        assert ids(first.runs()) == ["run00002", "run00001"]
        (tmp_path / "a" / "runs" / where.name).unlink()
        assert ids(first.runs()) == ["run00001"]
        assert list(first.series(ALLREDUCE.id, "allreduce_seconds")["run_id"]) == ["run00001"]


def test_a_settled_folder_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_history(str(tmp_path)) as history:
        history.add(run(1))
        old = (tmp_path / "runs").stat().st_mtime - 10
        os.utime(tmp_path / "runs", (old, old))
        assert ids(history.runs()) == ["run00001"]
        monkeypatch.setattr(runs.RunFiles, "entries", lambda _: pytest.fail("the folder was listed"))
        assert ids(history.runs()) == ["run00001"]


def damaged() -> dict[str, bytes]:
    whole = to_json(run(7))
    newer = msgspec.json.decode(whole) | {"schema": SCHEMA_VERSION + 1}
    broken_rule = whole.replace(b'"value":0.001', b'"value":-0.001', 1)
    return {"truncated.json": whole[: len(whole) // 2], "foreign.json": b'{"name": "left-pad"}', "list.json": b"[]",
            "empty.json": b"", "newer.json": json.dumps(newer).encode(), "negative.json": broken_rule,
            "nan.json": whole.replace(b'"value":0.001', b'"value":NaN', 1), "latin.json": b'"\xff"',
            "cut.json.gz": gzip.compress(whole)[:-30], "plain.json.gz": whole}


@pytest.mark.parametrize("name", sorted(damaged()))
def test_a_damaged_file_is_named_skipped_and_kept(tmp_path: Path, name: str) -> None:
    with open_history(str(tmp_path)) as history:
        history.add(run(1))
        victim = tmp_path / "runs" / name
        content = damaged()[name]  # once: a gzip header holds the time
        victim.write_bytes(content)
        assert ids(history.runs()) == ["run00001"]
        assert ids(history.runs(samples=True)) == ["run00001"]
        assert [p.location for p in history.problems()] == [name]
        assert history.reindex() == 1
        assert history.prune(0) > 0
        assert victim.read_bytes() == content
        victim.write_bytes(to_json(run(7)) if name.endswith(".json") else gzip.compress(to_json(run(7))))
        assert history.problems() == []
        assert ids(history.runs()) == ["run00007", "run00001"]


def test_what_is_said_about_damage(tmp_path: Path) -> None:
    with open_history(str(tmp_path)) as history:
        for name, content in damaged().items():
            (tmp_path / "runs" / name).write_bytes(content)
        said = {p.location: p.reason for p in history.problems()}
    assert f"schema {SCHEMA_VERSION + 1}" in said["newer.json"]
    assert "upgrade to read it" in said["newer.json"]
    assert "not a comm-regress run" in said["foreign.json"]
    assert "values of at least 0" in said["negative.json"]
    assert "cut" in said["cut.json.gz"]


def test_two_files_of_one_run_are_a_problem_not_a_duplicate(tmp_path: Path) -> None:
    with open_history(str(tmp_path)) as history:
        where = Path(history.add(run(1)))
        shutil.copy(where, where.with_name("copy.json"))
        assert ids(history.runs()) == ["run00001"]
        assert [p.reason for p in history.problems()] == [f"holds run run00001 attempt 1, as {where.name} does"]


def test_a_damaged_acceptance_is_named_and_skipped(tmp_path: Path) -> None:
    with open_history(str(tmp_path)) as history:
        history.add(run(1))
        (tmp_path / "accepted" / "run00001-1-x.json").write_text("{")
        assert [p.location for p in history.problems()] == [str(tmp_path / "accepted" / "run00001-1-x.json")]
        assert list(history.runs(accepted_only=True)) == []
        history.accept("run00001", "fine", "ada", moment(2))
        assert ids(history.runs(accepted_only=True)) == ["run00001"]


@pytest.mark.parametrize("damage", ["missing", "garbage", "empty", "other schema", "malformed inside"])
def test_the_index_is_built_again(tmp_path: Path, damage: str) -> None:
    place = tmp_path / "index.sqlite"
    with open_history(str(tmp_path)) as history:
        for number in range(3):
            history.add(run(number))
        expected = history.medians()
    if damage == "missing":
        place.unlink()
    elif damage == "garbage":
        place.write_bytes(b"not a database at all" * 500)
    elif damage == "empty":
        place.write_bytes(b"")
    elif damage == "malformed inside":
        content = bytearray(place.read_bytes())
        content[100:4096] = b"\xff" * 3996
        place.write_bytes(content)
    else:
        with sqlite3.connect(place) as link:
            link.execute("UPDATE comm_regress_meta SET value = '1' WHERE name = 'schema'")
            link.execute("DROP TABLE comm_regress_result")
        link.close()
    with open_history(str(tmp_path)) as history:
        assert ids(history.runs()) == ["run00002", "run00001", "run00000"]
        assert history.medians().equals(expected)


def test_a_run_whose_copy_in_the_index_is_damaged_is_read_from_its_file(tmp_path: Path) -> None:
    with open_history(str(tmp_path)) as history:
        history.add(run(1))
        [expected] = history.runs()
    with sqlite3.connect(tmp_path / "index.sqlite") as link:
        link.execute("UPDATE comm_regress_slim SET content = X'789c00ff00ff'")
    link.close()
    with open_history(str(tmp_path)) as history:
        assert list(history.runs()) == [expected]


def test_an_older_schema_is_brought_up_to_date_on_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = msgspec.json.decode(to_json(run(1)))
    old["id"] = old.pop("run_id")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "old.json").write_bytes(msgspec.json.encode(old))

    def first_to_second(content: dict[str, Any]) -> dict[str, Any]:
        return {("run_id" if key == "id" else key): value for key, value in content.items()}

    monkeypatch.setattr(record, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    monkeypatch.setitem(record.MIGRATIONS, SCHEMA_VERSION, first_to_second)
    with open_history(str(tmp_path)) as history:
        found = history.get("run00001")
        assert found == replace(run(1), schema=SCHEMA_VERSION + 1)
        assert history.latest() is not None


def test_a_folder_that_cannot_be_written_is_refused_up_front(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(HistoryError, match="cannot be written") as caught:
        open_history(str(blocked))
    assert caught.value.exit_status == EXIT_USAGE
    assert str(blocked) in caught.value.text
    assert "--comm-regress-history" in caught.value.text
    with pytest.raises(HistoryError, match="cannot be written"):
        open_history("/proc/comm-regress")
    with pytest.raises(HistoryError, match="cannot live at 's3://bucket/x'"):
        open_history("s3://bucket/x")


def fail_to_flush(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """A full disk shows at the latest when the file is flushed."""
    real, left = os.fsync, [times]

    def full(descriptor: int) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)


def test_a_disk_that_is_full_at_the_end_loses_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuge = tmp_path / "tmp"
    refuge.mkdir()
    with open_history(str(tmp_path / "h")) as history:
        monkeypatch.setattr("tempfile.tempdir", str(refuge))
        fail_to_flush(monkeypatch, 1)
        with pytest.raises(HistoryWriteError, match="No space left on device") as caught:
            history.add(run(1))
        assert caught.value.exit_status == EXIT_UNTRUSTED
        kept = refuge / f"comm-regress-{runs.file_name(run(1))}"
        assert f"regress history import {kept}" in caught.value.text
        assert list((tmp_path / "h" / "runs").iterdir()) == []
        from regress.history import exchange

        assert exchange.import_(history, str(kept)).added == 1
        assert history.get("run00001") == run(1)


def test_when_nothing_takes_the_run_both_places_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_history(str(tmp_path / "h")) as history:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        fail_to_flush(monkeypatch, 2)
        with pytest.raises(HistoryWriteError, match="does not take it either"):
            history.add(run(1))
        assert not [p for p in tmp_path.rglob("*") if p.suffix == ".tmp"]


def test_a_full_disk_while_pruning_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_history(str(tmp_path)) as history:
        history.add(run(1))
        fail_to_flush(monkeypatch, 1)
        with pytest.raises(HistoryWriteError, match="nothing was lost"):
            history.prune(0)
        assert history.get("run00001") == run(1)


def test_an_index_that_is_full_does_not_lose_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with open_history(str(tmp_path)) as history:
        with monkeypatch.context() as patch:
            patch.setattr(index, "put", full)
            with pytest.raises(HistoryWriteError, match="the run is stored, but the index does not take it"):
                history.add(run(1))
        assert ids(history.runs()) == ["run00001"]


def test_a_file_cut_after_it_was_indexed_is_named_and_skipped(tmp_path: Path) -> None:
    with open_history(str(tmp_path)) as history:
        history.add(run(1))
        where = Path(history.add(run(2)))
        old = (tmp_path / "runs").stat().st_mtime - 10
        os.utime(tmp_path / "runs", (old, old))
        assert ids(history.runs()) == ["run00002", "run00001"]
        where.write_bytes(where.read_bytes()[:100])
        with pytest.raises(RecordError, match=where.name):
            history.get("run00002")
        assert ids(history.runs(samples=True)) == ["run00001"]
        assert [p.location for p in history.problems()] == [where.name]


def test_leftovers_of_a_killed_writer_are_not_looked_at(tmp_path: Path) -> None:
    with open_history(str(tmp_path)) as history:
        (tmp_path / "runs" / ".20260101T010000Z-x.json.abc.tmp").write_text("{")
        (tmp_path / "runs" / ".hidden.json").write_text("{")
        (tmp_path / "runs" / "README.md").write_text("hello")
        assert list(history.runs()) == []
        assert history.problems() == []
