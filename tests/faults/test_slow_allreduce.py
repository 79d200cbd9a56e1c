"""The whole point: unchanged code is green time after time, a delay inside all_reduce is red, and only there.

Five green gates and not three: on a host whose launches differ by half, three runs leave even 68 times open.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from tests.faults.gate import ALLGATHER, ALLREDUCE, Place, thresholds


def junit(path: Path) -> dict[str, str]:
    """What JUnit says of each case: failure, error, skipped or passed."""
    suite = ElementTree.parse(path).getroot()[0]  # noqa: S314  written by pytest a moment ago
    cases = {case.attrib["name"]: next((child.tag for child in case if child.tag != "properties"), "passed")
             for case in suite.iter("testcase")}
    assert int(suite.attrib["failures"]) == sum(kind == "failure" for kind in cases.values())
    assert int(suite.attrib["errors"]) == sum(kind == "error" for kind in cases.values())
    return cases


def test_green_gates_then_a_slow_allreduce(place: Place) -> None:
    place.configure(thresholds(launches=2, workloads=("allreduce", "allgather")))
    for number in range(5):
        status, text = place.run("--junitxml=junit.xml")
        assert status == 0, text
        assert ("NO BASELINE" in text) is (number == 0), text
        assert set(junit(place.folder / "junit.xml").values()) <= {"passed", "skipped"}
    status, text = place.run("--junitxml=junit.xml", fault="slow_allreduce")
    assert status == 1, text
    assert f"{ALLREDUCE}: REGRESSION" in text
    assert f"{ALLGATHER}: REGRESSION" not in text
    assert f"again: pytest --comm-regress 'comm-regress::{ALLREDUCE}'" in text
    found = junit(place.folder / "junit.xml")
    assert found[ALLREDUCE] == "failure"
    assert found[ALLGATHER] in ("passed", "skipped")
