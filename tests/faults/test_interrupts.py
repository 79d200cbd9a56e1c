"""A gate that is stopped, killed, or started beside another one."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults.gate import ALLGATHER, ALLREDUCE, PATIENCE, Place, thresholds

BOTH = ("allreduce", "allgather")
SECONDS_TO_END = 10.0


def stored(path: Path) -> tuple[bool, list[str]]:
    """Whether a stored run is partial, and the cases it measured."""
    run = json.loads(path.read_bytes())
    return run["partial"], [outcome["case"]["workload"] for launch in run["launches"] for outcome in launch["outcomes"]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_gate_keeps_what_was_finished(place: Place, number: signal.Signals) -> None:
    place.configure(thresholds(launches=2, workloads=BOTH))
    running = place.start(fault="second_case_crawls")
    running.until("[2/2] ")
    os.killpg(running.process.pid, number)  # as a terminal does: to the gate and whatever is in its group
    began = time.monotonic()
    status, text = running.end()
    assert time.monotonic() - began < SECONDS_TO_END
    assert place.gone(within=SECONDS_TO_END)
    assert status == 2, text
    (path,) = place.runs
    partial, cases = stored(path)
    assert partial and len(cases) == 1, text
    assert str(path) in text, "the user is told what was kept"
    assert place.left == []
    status, text = place.run()
    assert status == 0, text
    assert [stored(path)[0] for path in place.runs] == [True, False]


def test_a_gate_that_is_stopped_while_it_loads(place: Place) -> None:
    running = place.start(fault="slow_start")
    while not (place.folder / "loading").exists():
        assert running.process.poll() is None, running.text
        time.sleep(0.02)
    os.kill(running.process.pid, signal.SIGINT)
    assert running.end() == (2, "comm-regress: interrupted before anything was measured\n")


def test_nothing_outlives_a_gate_that_is_killed(place: Place) -> None:
    place.configure(thresholds(workloads=BOTH))
    running = place.start(fault="second_case_crawls")
    running.until("[2/2] ")
    assert len(place.processes()) >= 4  # gate, agent, two ranks
    running.process.kill()
    running.process.wait()
    assert place.gone(within=SECONDS_TO_END), place.processes()
    assert place.runs == []
    assert place.left == []
    assert place.run()[0] == 0
    assert place.left == []


def test_a_gate_that_is_killed_before_its_agent_is_up(place: Place) -> None:
    """The agent comes up to a launcher that is gone: it must not wait for it, and removes what was entrusted to it."""
    running = place.start(fault="agent_comes_late")
    while not (place.folder / "agent waits").exists():
        assert running.process.poll() is None, running.text
        time.sleep(0.02)
    running.process.kill()
    running.process.wait()
    (place.folder / "agent waits").unlink()
    assert place.gone(within=PATIENCE), place.processes()
    assert place.left == []


def test_two_gates_on_one_host_and_one_history(place: Place) -> None:
    """The second waits and says for whom; where it may not wait that long, it gives up with status 10."""
    place.configure(thresholds(workloads=BOTH))
    first = place.start(fault="second_case_crawls")
    first.until("[2/2] ")
    place.configure(thresholds(gate="lock_wait: 1s"))
    status, text = place.run()
    assert status == 10, text
    assert f"the devices of this host: in use by process {first.process.pid} (" in text
    assert "waited 1 s" in text
    assert "run the gate again when the other has ended" in text
    place.configure(thresholds(gate="lock_wait: 100s"))
    second = place.start()
    second.until("waiting up to 100 s: the devices of this host: in use by process ")
    os.kill(first.process.pid, signal.SIGINT)
    assert first.end()[0] == 2
    status, text = second.end()
    assert status == 0, text
    assert [stored(path)[0] for path in place.runs] == [True, False]
    assert {ALLREDUCE, ALLGATHER} >= set(json.loads(place.runs[-1].read_bytes())["verdicts"])
