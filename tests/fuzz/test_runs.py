"""Whatever stands in a stored run or in an export, it is a run or a named problem."""

from __future__ import annotations

import gzip

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regress.errors import RegressError
from regress.history import exchange
from regress.history.runs import RunFiles
from regress.history.store import open_history
from regress.record import run_from_json, to_json
from tests.fuzz.hostile import ODD_JSON, bounded, damaged
from tests.history.factory import run

GOOD = to_json(run(1))
VALUES = tuple(part for part in GOOD.split(b",") if b":" in part)


@st.composite
def odd_values(draw: st.DrawFn) -> bytes:
    """A good run with other values behind some of its keys."""
    content = GOOD
    for _ in range(draw(st.integers(1, 3))):
        part = draw(st.sampled_from(VALUES))
        key = part.rpartition(b":")[0]
        content = content.replace(part, key + b":" + draw(st.sampled_from(ODD_JSON)).encode(), 1)
    return content


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    return RunFiles(tmp_path_factory.mktemp("history"))


def read(files: RunFiles, name: str, content: bytes) -> None:
    (files.runs_dir / name).write_bytes(content)
    with bounded():
        try:
            files.read(name)
        except RegressError as error:
            assert name in error.text


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(damaged(GOOD) | odd_values() | st.binary(max_size=200))
def test_a_damaged_run(files: RunFiles, content: bytes) -> None:
    read(files, "a.json", content)


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(damaged(gzip.compress(GOOD)))
def test_a_damaged_packed_run(files: RunFiles, content: bytes) -> None:
    read(files, "a.json.gz", content)


@pytest.mark.parametrize("content", [b"[" * 1_000_000, b'{"schema":' * 200_000, b'{"schema": 1, "a": ' + b"[" * 100_000,
                                     GOOD.replace(b'"launches":[', b'"launches":' + b"[" * 50_000, 1)])
def test_nesting_without_end(files: RunFiles, content: bytes) -> None:
    (files.runs_dir / "deep.json").write_bytes(content)
    with bounded(), pytest.raises(RegressError):
        files.read("deep.json")


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(damaged(GOOD, 3) | odd_values() | st.just(GOOD), max_size=3))
def test_a_damaged_import_adds_whole_runs_only(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("import")
    (folder / "in.ndjson").write_bytes(b"\n".join(lines))
    with bounded(), open_history(str(folder / "history")) as history:
        exchange.import_(history, str(folder / "in.ndjson"))
        for stored in history.oldest_first():
            assert run_from_json(to_json(stored), "again") == stored
        assert msgspec.json.encode([problem.reason for problem in history.problems()]) == b"[]"
