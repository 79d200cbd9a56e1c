"""A gate that is stopped or killed at any moment: its processes end, the history stays whole, the next gate runs.

The moments are drawn anew each time, and a failure says which.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest

from regress.record import run_from_json
from tests.faults.gate import Place, thresholds

SECONDS_TO_END = 10.0
LONGEST_SECONDS = 12.0
"""About what a gate of two cases takes on two idle cores: some moments come after its end, as some do in life."""


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_gate_that_is_ended_at_a_random_moment(place: Place, number: signal.Signals, turn: int) -> None:
    place.configure(thresholds(launches=2, workloads=("allreduce", "allgather")))
    assert place.run()[0] == 0
    moment = random.SystemRandom().uniform(0.1, LONGEST_SECONDS)
    running = place.start()
    time.sleep(moment)
    os.kill(running.process.pid, number)
    status, text = running.end()
    said = f"{number.name} after {moment:.2f} s, status {status}:\n{text}"
    assert place.gone(within=SECONDS_TO_END), f"{place.processes()} outlived {said}"
    # Before Python listens, a signal ends it as it ends any process; a gate that was done before keeps its status.
    assert status in (0, 2, -number), said
    stored = [run_from_json(path.read_bytes(), str(path)) for path in place.runs]
    assert 1 <= len(stored) <= 2, said
    assert len(stored) == 1 + (status == 0) or stored[1].partial, said
    status, text = place.run("--comm-regress-json=result.json")
    assert status in (0, 1), f"after {said}\nthe next gate:\n{text}"
    assert json.loads((place.folder / "result.json").read_bytes())["run"]["id"] in place.runs[-1].name
    assert len(place.runs) == len(stored) + 1
