"""Ranks that die, hang, compute something else or cannot meet: real gates, the fault brought in from outside."""

from __future__ import annotations

import re
from pathlib import Path

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
    """No rank has begun a case while torch loads, which takes long on a busy host: the deadline leaves time for it."""
    place.configure(thresholds(gate="case_deadline: 15s"))
    status, text = place.run(fault="hangs")
    assert status == 10, text
    assert "no rank made progress for 15 s" in text
    assert f"of {ALLREDUCE}" in text
    stack = text.partition("where rank 1 was:\n")[2].splitlines()
    assert "sitecustomize.py" in stack[0], "the innermost call of the rank that is stuck"
    assert re.search(r"^flight recorder: gloo:all_reduce #(\d+) of 4KiB float32 in group 0 \(default_pg\): "
                     r"rank 0 in it, rank 1 never entered \(last there: #\d+\)$", text, re.M), text
    kept = Path(re.findall(r"^kept for looking closer: (.+)$", text, re.M)[0])
    assert kept.parent.parent == place.folder / ".comm-regress" / "hangs"
    assert {f"rank{rank}.{name}" for rank in (0, 1) for name in ("flight.all.json", "stderr.log")} <= {
        path.name for path in kept.iterdir()}
    assert "sitecustomize.py" in (kept / "rank1.stderr.log").read_text()
    assert f"hangs: {kept.parent}" in text


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
