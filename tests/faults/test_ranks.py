"""Ranks that die, hang, compute something else or cannot meet: real gates, the fault brought in from outside."""

from __future__ import annotations

import pytest

from tests.faults.gate import ALLGATHER, ALLREDUCE, Place, thresholds

BOTH = ("allreduce", "allgather")


@pytest.mark.parametrize(("fault", "words"), [
    ("dies_before", ["rank 1 exited with status 7"]),
    ("dies_during", ["rank 1 was ended by signal 9 (SIGKILL)", f"of {ALLREDUCE}"]),
])
def test_a_rank_that_dies(place: Place, fault: str, words: list[str]) -> None:
    status, text = place.run(fault=fault)
    assert status == 10, text
    assert f"{ALLREDUCE}: INVALID" in text
    for expected in words:
        assert expected in text


def test_a_rank_that_dies_when_all_its_results_are_there(place: Place) -> None:
    """The figures are whole and verified, so they count; that something is wrong is said."""
    status, text = place.run(fault="dies_after")
    assert status == 0, text
    assert (f"warning: launch 0, whose results are complete and were used: rank 1 exited with status 9 "
            f"(last finished verify of {ALLREDUCE})") in text


def test_a_rank_that_hangs(place: Place) -> None:
    place.configure(thresholds(gate="case_deadline: 3s"))
    status, text = place.run(fault="hangs")
    assert status == 10, text
    assert "no rank made progress for 3 s" in text
    assert f"of {ALLREDUCE}" in text
    stack = text.partition("where rank 1 was:\n")[2].splitlines()
    assert "sitecustomize.py" in stack[0], "the innermost call of the rank that is stuck"


def test_a_wrong_result_is_no_number(place: Place) -> None:
    place.configure(thresholds(workloads=BOTH))
    status, text = place.run(fault="wrong")
    assert status == 10, text
    assert f"{ALLREDUCE}: INVALID" in text
    assert "result elements are wrong" in text
    assert f"{ALLGATHER}: INVALID" not in text


def test_a_port_that_was_taken_meanwhile(place: Place) -> None:
    status, text = place.run(fault="port_taken")
    assert status == 0, text
    assert "warning: launch 0: repeated, because its port had been taken by another process meanwhile" in text
