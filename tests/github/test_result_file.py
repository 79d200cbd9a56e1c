"""A result that somebody else wrote is data: decoded against its types, or refused in words."""

from __future__ import annotations

import json

import pytest

from regress.errors import RecordError
from regress.forge.result_file import read_result, worst_rows
from regress.result import gate_result
from tests.github.runs import recorded_json, recorded_run


def changed(**changes: object) -> bytes:
    return json.dumps({**json.loads(recorded_json()), **changes}).encode()


def test_what_the_gate_writes_comes_back_whole() -> None:
    assert read_result(recorded_json(), "made") == gate_result(recorded_run(), 1)


@pytest.mark.parametrize(("content", "seen"), [
    (b"", "truncated"),
    (b"<html>", "malformed"),
    (b"[]", "Expected `object`"),
    (changed(verdict="fine"), "Invalid enum value 'fine'"),
    (changed(exit_status="0"), "Expected `int`"),
    (changed(schema=99), "schema 99"),
    (changed(cases=[{"case": 1}]), "Expected `str`"),
])
def test_anything_else_is_refused(content: bytes, seen: str) -> None:
    with pytest.raises(RecordError, match=seen) as caught:
        read_result(content, "artifact.json")
    assert caught.value.where.startswith("artifact.json")


def test_an_unknown_unit_is_refused_with_its_case() -> None:
    content = recorded_json().replace(b'"unit": "seconds"', b'"unit": "parsecs"', 1)
    with pytest.raises(RecordError, match="parsecs"):
        read_result(content, "artifact.json")


def test_rows_are_ordered_by_verdict_and_size_over_all_cases() -> None:
    rows = worst_rows(read_result(recorded_json(), "made"))
    assert [judged.row.verdict.value for judged in rows] == ["regression", "inconclusive", "no-baseline", "pass"]
