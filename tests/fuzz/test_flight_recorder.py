"""Whatever stands in a dump of the flight recorder: it is read, or named in one line, and nothing in it is run."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regress.measure.flight_recorder import summary
from regress.measure.plain_pickle import read_plain
from tests.fuzz.hostile import ODD_JSON, bounded, damaged
from tests.measure.dumps import document, entry

GOOD = document(entry(1), entry(2, name="nccl:all_reduce"), entry(3, ended=False), ranks="[0, 1]")
KEYS = (*GOOD["entries"][0], "version", "pg_config", "pg_status", "entries", "0", "ranks", "name", "desc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dumps")


@pytest.fixture(scope="module")
def tell(folder: Path) -> Callable[[bytes], None]:
    """Reads it as rank 1's dump, beside a good one of rank 0: every line is short, printable and ours."""
    (folder / "rank0.flight.all.json").write_text(json.dumps(GOOD))

    def read(content: bytes) -> None:
        (folder / "rank1.flight.all.json").write_bytes(content)
        with bounded():
            text = summary(folder, 2)
        assert text is not None
        for line in text.split("\n"):
            assert line.startswith("flight recorder: ")
            assert line.isprintable()
            assert len(line) < 800
    return read


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_dump(tell: Callable[[bytes], None], data: st.DataObject) -> None:
    tell(data.draw(damaged(json.dumps(GOOD).encode())))


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_pickle(tell: Callable[[bytes], None], data: st.DataObject) -> None:
    tell(data.draw(damaged(pickle.dumps(GOOD, protocol=2))))


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 400), st.sampled_from(KEYS), st.sampled_from(ODD_JSON)), min_size=1,
                max_size=4))
def test_odd_values_in_a_dump(tell: Callable[[bytes], None], changes: list[tuple[int, str, str]]) -> None:
    whole = json.loads(json.dumps(GOOD))
    holders = [whole, *whole["entries"], whole["pg_config"], whole["pg_config"]["0"]]
    marks: dict[str, str] = {}
    for at, key, value in changes:
        mark = f"<<{len(marks)}>>"
        marks[f'"{mark}"'] = value
        holders[at % len(holders)][key] = mark
    text = json.dumps(whole)
    for mark, value in marks.items():
        text = text.replace(mark, value)
    tell(text.encode("utf-8", "surrogatepass"))


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_instructions_of_a_pickle(body: bytes) -> None:
    with bounded():
        try:
            found = read_plain(b"\x80\x02" + body + b".")
        except ValueError:
            return
    assert found is None or isinstance(found, bool | int | float | str | dict | list | tuple)


def test_a_small_pickle_does_not_unfold_into_a_large_object(tell: Callable[[bytes], None]) -> None:
    """Thirty lists, each holding the one before twice: a billion when they are walked."""
    nested: list[object] = []
    for _ in range(30):
        nested = [nested, nested]
    tell(pickle.dumps({"version": "2.10", "entries": nested}, protocol=2))
    once = entry(1)
    tell(pickle.dumps({"version": "2.10", "entries": [once] * 100_000}, protocol=2))


def test_many_collectives_are_told_in_bounded_time(tell: Callable[[bytes], None]) -> None:
    groups = [entry(1, group=(str(number), ""), ended=False, record=number) for number in range(20_000)]
    tell(json.dumps(document(*groups)).encode())
