"""Workflow commands: ten of a kind, worst first, and nothing that a text says becomes a command."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from regress.forge.annotations import annotation_lines, command, message, property_value
from regress.forge.result_file import read_result
from regress.record import Verdict
from regress.result import CaseRow, GateResult
from tests.github.runs import HOSTILE, SLOW, big_result, recorded_json


def runner_reads(line: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as the runner takes it apart: name, properties, message."""
    match = re.fullmatch(r"::(\w+)(?: (.*?))?::(.*)", line)
    assert match is not None, line
    pairs = dict(pair.split("=", 1) for pair in match[2].split(","))

    def plain(text: str) -> str:
        for escape, letter in (("%2C", ","), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
            text = text.replace(escape, letter)
        return text

    return match[1], {name: plain(value) for name, value in pairs.items()}, plain(match[3])


def test_one_error_for_a_regression_with_the_figures_and_the_command() -> None:
    lines = annotation_lines(read_result(recorded_json(), "made"))
    level, properties, text = runner_reads(lines[0])
    assert level == "error"
    assert properties["title"] == f"{SLOW.id}: REGRESSION"
    assert text == ("allreduce_seconds: 12.3 ms now, 9.88 ms in the baseline, +25.0 % [+21.0, +29.0], 3 launches\n"
                    f"made to be regression\nagain: pytest --comm-regress 'comm-regress::{SLOW.id}'")
    assert [runner_reads(line)[0] for line in lines] == ["error", "warning", "warning", "notice"]


def test_at_most_ten_errors_worst_first_and_the_notice_counts_the_rest() -> None:
    lines = [runner_reads(line) for line in annotation_lines(big_result(25))]
    errors = [properties["title"] for level, properties, _ in lines if level == "error"]
    assert errors == [f"slower[{number}]: REGRESSION" for number in range(24, 14, -1)]
    assert lines[-1][0] == "notice"
    assert "15 more in the job summary" in lines[-1][2]


def test_at_most_ten_warnings() -> None:
    lines = annotation_lines(big_result(25, verdict=Verdict.INCONCLUSIVE))
    assert sum(line.startswith("::warning ") for line in lines) == 10


def test_an_invalid_case_without_numbers_is_an_error() -> None:
    whole = big_result(0)
    hung = CaseRow("allreduce[1MiB]", Verdict.INVALID, (), (), (), ("rank 1 hung",), "pytest --comm-regress")
    result = GateResult(Verdict.INVALID, 10, whole.run, whole.environment, (hung,), (), {})
    assert runner_reads(annotation_lines(result)[0]) == (
        "error", {"title": "allreduce[1MiB]: INVALID"}, "rank 1 hung\nagain: pytest --comm-regress")


def test_a_hostile_text_stays_one_line_of_one_command() -> None:
    for line in annotation_lines(big_result(2, HOSTILE)):
        assert "\n" not in line
        assert "\r" not in line
        _, properties, _ = runner_reads(line)
        assert set(properties) == {"title"}


@given(st.text())
def test_escapes_come_back_as_the_text(text: str) -> None:
    line = command("error", "title", text)
    assert runner_reads(line)[2] == text if "\n" not in line else False
    assert not set(property_value(text)) & set("\r\n:,")
    assert not set(message(text)) & set("\r\n")
