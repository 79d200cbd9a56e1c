"""Nothing that is read may be of any size, and no name in it chooses where something is written."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regress.errors import ConfigError, HistoryError, RecordError
from regress.history import exchange
from regress.history.runs import RunFiles
from regress.history.store import open_history
from regress.record import to_json
from regress.yaml_source import read_yaml
from tests.history.factory import run

UNSAFE = ("../up", "..", ".", "/etc/passwd", "a/b", "a\\b", "a\0b", "", "-" + "/" * 3, "x" * 81, ".hidden", "a\nb",
          "~root", "$(id)", "C:x", "run\u202eid", "a b")


def test_a_thresholds_file_of_ten_megabytes_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_bytes(b"#" * 10_000_000)
    with pytest.raises(ConfigError, match="at most 1000000 bytes"):
        read_yaml(path)


def test_a_stored_run_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regress.history.runs.LARGEST_RUN_BYTES", 1 << 20)
    files = RunFiles(tmp_path)
    (files.runs_dir / "bomb.json.gz").write_bytes(gzip.compress(b" " * (64 << 20)))
    (files.runs_dir / "big.json").write_bytes(b" " * (2 << 20))
    with pytest.raises(RecordError, match="unpacks to more than 1 MiB"):
        files.read("bomb.json.gz")
    with pytest.raises(RecordError, match="too large; accepted: at most 1 MiB"):
        files.read("big.json")


def test_an_import_of_one_endless_line_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regress.history.exchange.LARGEST_RUN_BYTES", 1 << 20)
    source = tmp_path / "in.ndjson.gz"
    source.write_bytes(gzip.compress(to_json(run(1)) + b"\n" + b" " * (64 << 20)))
    with open_history(str(tmp_path / "history")) as history, pytest.raises(
            HistoryError, match=r"in\.ndjson\.gz:2: a line of more than 1 MiB.*1 runs were added before"):
        exchange.import_(history, str(source))


def imported(tmp_path: Path, run_id: str) -> tuple[int, list[Path]]:
    """How many runs an import adds, and every file that is there afterwards."""
    content = msgspec.json.decode(to_json(run(1)))
    content["run_id"] = run_id
    place = tmp_path / "in" / "deep"
    place.mkdir(parents=True)
    (place / "in.ndjson").write_bytes(msgspec.json.encode(content))
    with open_history(str(place / "history")) as history:
        added = exchange.import_(history, str(place / "in.ndjson")).added
    return added, [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("run_id", UNSAFE)
def test_a_run_id_that_is_a_path_is_refused(tmp_path: Path, run_id: str) -> None:
    added, files = imported(tmp_path, run_id)
    assert added == 0
    history = tmp_path / "in" / "deep" / "history"
    assert [path for path in files if not path.is_relative_to(history) and path.name != "in.ndjson"] == []
    assert list((history / "runs").iterdir()) == []


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=12))
def test_no_run_id_leaves_the_folder_of_runs(tmp_path_factory: pytest.TempPathFactory, run_id: str) -> None:
    files = RunFiles(tmp_path_factory.mktemp("history"))
    try:
        written = files.write(replace(run(1), run_id=run_id))
    except RecordError:
        return
    assert written.resolve().parent == files.runs_dir.resolve()
