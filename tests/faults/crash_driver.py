"""`python -m tests.faults.crash_driver FOLDER SCENARIO DEATH [PLANTED]`: a JSON line for each point a gate can die at.

This process loads everything and makes three earlier runs; then it copies them for every crash point and forks a child,
which does what the scenario says and dies there, and another, which looks at what is left and goes on with it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

import regress.cli
import regress.commands.run
import regress.history.runs
import regress.measure.health
from regress.history.runs import ACCEPTED, RUNS, AcceptedMark
from regress.history.store import open_history
from regress.measure.launch import Launcher, LaunchResult
from regress.measure.replay import ReplayLauncher, write_recording
from regress.publish.spool import Kept
from regress.record import Run, run_from_json, to_json, without_samples
from regress.session import Gate, GateRequest
from regress.tracing import Tracer
from tests.acceptance import recordings, stage
from tests.faults.crash_points import TAKING_ROOM, CrashPoints, copied

HISTORY = ".comm-regress"
THRESHOLDS = """\
schema: 1
gate: {keep_samples: 2}
devices: {cpu: {launches: 2}}
cases:
- {workload: allreduce, devices: [cpu], sizes: [1MiB]}
- {workload: ddp_step, devices: [cpu]}
publish:
- {sink: webhook, url: "http://127.0.0.1:9/", all_branches: true, http: {timeout: 1s}}
"""
SCENARIOS: dict[str, list[str]] = {
    "first gate": ["run"],
    "gate": ["run", "--accept", "as it should be"],
    "accept": ["history", "accept", "{newest}", "--reason", "as it should be"],
    "prune": ["history", "prune", "--keep", "0"],
    "import": ["history", "import", "../more.ndjson"],
    "reindex": ["history", "reindex"],
}


class Traced:
    """Plays launches; the traced one leaves a file where a profiler would."""

    def __init__(self, player: Launcher) -> None:
        self._player = player

    def launch(self, spec: Any, *, role: str, **settings: Any) -> LaunchResult:
        if role == "traced":
            Path(spec.results_dir, "rank0.kineto.json.gz").write_bytes(b"cut by a profiler that was killed" * 100)
        return self._player.launch(spec, role=role, **settings)


def child(folder: Path, action: Callable[[], int], said: Path) -> int:
    """Runs the action in a fork that works in `folder`; its status as waitpid has it. said: what it printed."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    status = 70
    try:
        os.chdir(folder)
        log = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        status = action()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@dataclass(frozen=True, slots=True)
class Stored:
    """What a history folder holds: runs by id without their samples, and acceptances by file name."""

    runs: dict[str, Run]
    accepted: dict[str, bytes]

    @staticmethod
    def of(folder: Path) -> Stored:
        """Everything there; raises for a file that is not whole."""
        history = folder / HISTORY
        runs = [run_from_json(path.read_bytes(), str(path)) for path in sorted((history / RUNS).glob("[!.]*"))]
        for path in (history / "spool").glob("[!.]*.json"):
            msgspec.json.decode(path.read_bytes(), type=Kept)
        for path in (history / ACCEPTED).glob("[!.]*"):
            msgspec.json.decode(path.read_bytes(), type=AcceptedMark)
        return Stored({run.run_id: without_samples(run) for run in runs},
                      {path.name: path.read_bytes() for path in (history / ACCEPTED).glob("[!.]*")})


def gate_here() -> int:
    return regress.cli.main(["run", "--json", "result.json"])


def looked_at(folder: Path, before: Stored, expected_new: int) -> None:
    """Asserts that nothing was lost and nothing is half there, and that the commands and the next gate work."""
    after = Stored.of(folder)
    for name, run in before.runs.items():
        assert after.runs.get(name) == run, f"run {name} was lost or changed"
    for name, content in before.accepted.items():
        assert after.accepted.get(name) == content, f"acceptance {name} was lost or changed"
    new = set(after.runs) - set(before.runs)
    assert len(new) <= expected_new, f"{len(new)} new runs"
    assert all(after.runs[name].launches and after.runs[name].verdicts for name in new), "an empty run"
    os.chdir(folder)
    with open_history(HISTORY) as history:
        listed = {run.run_id for run in history.runs()}
        assert listed == set(after.runs), f"listed {listed}, stored {set(after.runs)}"
        assert {run.run_id for run in history.runs(samples=True)} == listed
        assert history.problems() == [], history.problems()
    assert regress.cli.main(["history", "list", "--json"]) == 0
    assert gate_here() == 0
    result = json.loads(Path("result.json").read_bytes())
    assert result["verdict"] == ("pass" if after.runs else "no-baseline"), result["warnings"]
    last = Stored.of(folder)
    assert len(last.runs) == len(after.runs) + 1
    assert result["run"]["id"] in last.runs


def warm(folder: Path) -> None:
    """One gate in this process, so that children find loaded what a gate loads on the way."""
    folder.mkdir()
    os.chdir(folder)
    (folder / "thresholds.yaml").write_text(THRESHOLDS)
    with (folder / "said").open("w") as said, redirect_stdout(said), redirect_stderr(said):
        assert gate_here() == 0, (folder / "said").read_text()


def refused(folder: Path, before: Stored, said: str) -> None:
    """Asserts that a full disk cost no stored run, and no measured one: that is told, and kept somewhere."""
    after = Stored.of(folder)
    for name, run in before.runs.items():
        assert after.runs.get(name) == run, f"run {name} was lost or changed"
    assert before.accepted.items() <= after.accepted.items()
    assert not list((folder / HISTORY).rglob("*.tmp")), "what was not finished was left behind"
    assert "Traceback" not in said
    if "launch 2/2" in said:
        assert re.search(r"^comm-regress: .*\(status \d+\)$", said, re.M), "no verdict was told"
        kept = list(Path(tempfile.gettempdir()).glob("comm-regress-*.json"))
        assert len(set(after.runs) - set(before.runs)) + len(kept) == 1, "what was measured is gone"
        for path in kept:
            run_from_json(path.read_bytes(), str(path))
            path.unlink()


def plant(name: str) -> None:
    """A fault that the search must find: run files written in place, or put in place without having been flushed."""
    def in_place(target: Path, content: bytes, **_: Any) -> None:
        with target.open("wb") as stream:
            stream.write(content)
            os.fsync(stream.fileno())

    def unflushed(target: Path, content: bytes, **_: Any) -> None:
        temporary = target.with_name(f".{target.name}.tmp")
        temporary.write_bytes(content)
        temporary.replace(target)

    runs: Any = regress.history.runs
    runs.write_whole = {"in place": in_place, "unflushed": unflushed}[name]


@dataclass(frozen=True, slots=True)
class Search:
    """One scenario, died at every point."""

    place: Path
    arguments: list[str]
    earlier: Path
    death: str

    def prepared(self, name: str) -> Path:
        folder = self.place / name
        copied(self.earlier, folder)
        return folder

    def die(self, folder: Path, at: int | None) -> tuple[int, list[str], str]:
        """The scenario in that folder, ended before operation `at`: how it ended, the operations, what it printed."""
        said, trail = self.place / "said", self.place / "trail"
        trail.unlink(missing_ok=True)

        def action() -> int:
            full = (lambda: OSError(errno.ENOSPC, "No space left on device")) if self.death == "full" else None
            points = CrashPoints(folder / HISTORY, at, self.death == "power", full)
            points.install()
            try:
                return regress.cli.main(self.arguments)
            finally:
                trail.write_text(json.dumps(points.seen))

        status = child(folder, action, said)
        return status, json.loads(trail.read_text()) if trail.exists() else [], said.read_text(errors="replace")

    def points(self) -> list[str]:
        """The operations of the scenario where nothing happens to it."""
        status, seen, said = self.die(self.prepared("whole"), None)
        assert status == 0, said
        return seen

    def at(self, number: int, operation: str) -> dict[str, Any]:
        """What was wrong after dying before that operation; an empty text where nothing was."""
        folder = self.prepared(f"point{number}")
        before = Stored.of(folder)
        status, _, said = self.die(folder, number)
        how = os.waitstatus_to_exitcode(status)
        killed = how == -signal.SIGKILL
        fault = "" if killed or self.death == "full" else f"was not killed:\n{said}"

        def checked() -> int:
            if self.death == "full":
                refused(folder, before, said)
            else:
                looked_at(folder, before, 2 if self.arguments[1:2] == ["import"] else 1)
            return 0

        found = self.place / "found"
        if not fault and child(folder, checked, found) != 0:
            fault = f"{found.read_text(errors='replace')[-3000:]}\nwhat it had printed:\n{said[-3000:]}"
        return {"point": number, "operation": operation, "status": how, "fault": fault}


def main() -> None:
    place, scenario, death, *planted = Path(sys.argv[1]).resolve(), *sys.argv[2:]
    tempfile.tempdir = str(place / "tmp")
    (place / "tmp").mkdir()
    stage.load_everything()
    recording, earlier = place / "recording.json.gz", place / "earlier"
    stage.install(setattr, stage.Scenario(str(recording), str(place / "lock")))
    health: Any = regress.measure.health
    health.host_before, health.cpu_facts = dict, lambda *_: {}  # how busy this host is takes a moment to see
    command: Any = regress.commands.run
    opened = command.open_gate

    def open_gate(request: GateRequest) -> Gate:
        gate: Gate = opened(request)
        gate.factory = lambda _: Traced(ReplayLauncher.from_files([recording]))
        gate.tracer = Tracer("kineto")
        return gate

    command.open_gate = open_gate
    earlier.mkdir()
    (earlier / "thresholds.yaml").write_text(THRESHOLDS)
    write_recording(recording, "made", recordings.launches(1, spread=0.001))
    warm(place / "warm")
    os.chdir(earlier)
    if scenario != "first gate":
        for seed in range(3):
            write_recording(recording, "made", recordings.launches(seed, spread=0.001))
            assert child(earlier, gate_here, place / "said") == 0, (place / "said").read_text()
    runs = [run_from_json(path.read_bytes(), str(path)) for path in sorted((earlier / HISTORY / RUNS).glob("*.json"))]
    (place / "more.ndjson").write_bytes(b"\n".join(
        to_json(replace(run, run_id=f"more{i}")) for i, run in enumerate(runs[:2])))
    arguments = [word.format(newest=runs[-1].run_id if runs else "") for word in SCENARIOS[scenario]]
    search = Search(place, arguments, earlier, death)
    if planted:
        plant(planted[0])
    points = search.points()
    # To open a history that is there changes nothing in it, and every other scenario begins with that too.
    first = points.index("mkdir traces/") if scenario == "gate" else 0
    for number, operation in list(enumerate(points, 1))[first:]:
        if death == "full" and not operation.startswith(TAKING_ROOM):
            continue  # nothing is refused here: it is what the next operation that takes room shows
        found = search.at(number, operation)
        print(json.dumps(found), flush=True)
        if planted and found["fault"]:
            break


if __name__ == "__main__":
    main()
