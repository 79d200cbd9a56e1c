"""Whatever stands in a trace, it is read, or refused in one line that names the file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regress.errors import RegressError
from regress.trace.read import read_traces
from tests.fuzz.hostile import ODD_JSON, bounded, damaged
from tests.trace.made import kineto, kineto_rank, two_ranks
from tests.trace.samples import sample

KEYS = ("ph", "cat", "name", "ts", "dur", "pid", "tid", "args", "traceEvents", "distributedInfo", "deviceProperties",
        "baseTimeNanoseconds", "rank", "world_size", "correlation", "stream", "device")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def export(folder: Path) -> bytes:
    return two_ranks().write(folder / "good.sqlite").read_bytes()


@pytest.fixture(scope="module")
def profile(folder: Path) -> bytes:
    return kineto(folder / "good.json", kineto_rank(0), distributedInfo={"rank": 0, "world_size": 2}).read_bytes()


def read(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with bounded():
        try:
            read_traces([path])
        except RegressError as error:
            assert path.name in error.text
            assert "\n" not in error.text


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_export(folder: Path, export: bytes, data: st.DataObject) -> None:
    read(folder / "d.sqlite", data.draw(damaged(export)))


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_export_of_a_real_run(folder: Path, data: st.DataObject) -> None:
    read(folder / "r.sqlite", data.draw(damaged(sample("mps/micro").read_bytes(), 40)))


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_profile(folder: Path, profile: bytes, data: st.DataObject) -> None:
    read(folder / "d.json", data.draw(damaged(profile)))


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_packed_profile(folder: Path, profile: bytes, data: st.DataObject) -> None:
    read(folder / "d.json.gz", data.draw(damaged(gzip.compress(profile))))


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 400), st.sampled_from(KEYS), st.sampled_from(ODD_JSON)), min_size=1,
                max_size=4))
def test_odd_values_in_a_profile(folder: Path, profile: bytes, changes: list[tuple[int, str, str]]) -> None:
    """The value behind the n-th use of a key becomes another one, whatever it was."""
    document = json.loads(profile)
    holders = [document, *document["traceEvents"], *(e["args"] for e in document["traceEvents"] if "args" in e)]
    marks: dict[str, str] = {}
    for at, key, value in changes:
        mark = f"<<{len(marks)}>>"
        marks[f'"{mark}"'] = value
        holder = holders[at % len(holders)]
        if isinstance(holder, dict):
            holder[key] = mark
    text = json.dumps(document)
    for mark, value in marks.items():
        text = text.replace(mark, value)
    read(folder / "o.json", text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("text", ['{"traceEvents": ' + "[" * 500_000, '{"traceEvents": [' + '{"args":' * 300_000,
                                  '{"a": ' * 300_000, '{"traceEvents": [{"name": "' + "x" * 5_000_000])
def test_nesting_and_text_without_end(folder: Path, text: str) -> None:
    path = folder / "deep.json"
    path.write_text(text)
    with bounded(), pytest.raises(RegressError):
        read_traces([path])
