"""Real gates for an hour with faults in random order: every one is accounted for, and nothing is left behind.

    python perf/soak.py [--minutes 60] [--seed 1] [--json FILE]

Each gate is `python -m pytest --comm-regress` with two gloo ranks and one or two 4 KiB cases, in one folder with one
history that grows. After each: its exit status and words are those of its fault, its run is stored whole or it said
why not, none of its processes is alive 10 s later, its lock is free, and its folder holds nothing new but the run.
Beside them one process opens the history and plays recorded launches over and over: its memory and its open files
must stay flat. Exit status 1 when anything is unaccounted for.

The gates meet at a lock of their own folder (tests/faults/inject), so that other gates of this host neither wait for
them nor are waited for, and how busy the host is does not turn a verdict. The change that matters is set to ninefold:
what an hour of noise looks like is measured elsewhere.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from regress.history.store import open_history
from regress.measure.lock import who_holds
from regress.measure.replay import ReplayLauncher
from regress.measure.torchrun import TorchrunLauncher
from regress.session import GateRequest, open_gate
from tests.faults.gate import ALLREDUCE, INJECT, MARK, ROOT, Place, Running

SECONDS_TO_END = 10.0
RECORDING = ROOT / "tests" / "data" / "measure" / "gloo_2ranks_cpu.json.gz"
NO_NOISE = "defaults: {effect: 900%, drift_effect: 900%, inconclusive_limit: 0}\n"
CLOSED = "publish:\n- {sink: webhook, url: 'http://127.0.0.1:1/hook', all_branches: true}\n"

WARM_UP = 220
"""Runs stored before memory is compared: a gate looks at the newest 200, and reads more until there are so many."""
BURST, BURST_LAUNCHERS = 40, 2
MEMORY_GROWTH = 8 * 2**20
"""Bytes by which the long-lived process may be larger at the end than after its first tenth."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to a gate, and what it must come to.

    status: its exit status. words: what it must print. verdict: of its stored run, None where any is right.
    """

    name: str
    inject: str | None = None
    status: int = 0
    words: tuple[str, ...] = ()
    verdict: str | None = None
    gate: str = ""
    sinks: str = ""


FAULTS = (
    Fault("none"),
    Fault("rank dies before", "dies_before", 10, ("rank 1 exited with status 7",), "invalid"),
    Fault("rank killed", "dies_during", 10, ("rank 1 was ended by signal 9 (SIGKILL)",), "invalid"),
    Fault("rank dies after", "dies_after", 0, ("rank 1 exited with status 9",)),
    Fault("rank hangs", "hangs", 10, ("no rank made progress for 5 s",), "invalid", gate="case_deadline: 5s, "),
    Fault("wrong value", "wrong", 10, ("result elements are wrong",), "invalid"),
    Fault("SIGINT"),
    Fault("SIGTERM"),
    Fault("SIGKILL"),
    Fault("disk full", "disk_full", 10, ("the run could not be stored: No space left on device",)),
    Fault("truncated run"),
    Fault("index deleted"),
    Fault("endpoint down", sinks=CLOSED, words=("warning: webhook: ",)),
    Fault("two at once"),
)


class Unaccounted(Exception):
    """Something about a gate that its fault does not explain."""


def must(held: bool, what: str) -> None:
    """Raises Unaccounted with these words."""
    if not held:
        raise Unaccounted(what)


@dataclass(slots=True)
class Soak:
    """Gates in one folder, one after the other, and what became of them.

    outcomes: by fault. seconds: how long gates without a fault took. strays: what could not be accounted for.
    """

    place: Place
    dice: random.Random
    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    seconds: list[float] = field(default_factory=lambda: [8.0])
    strays: list[str] = field(default_factory=list)
    gates: int = 0
    launches: int = 1

    def one(self, fault: Fault) -> None:
        """A gate with that fault, or two; what is wrong with it goes to `strays`."""
        before, waiting = set(self.place.runs), self.waiting()
        self.configure(fault)
        log = ""
        try:
            with self.trouble(fault) as words:
                began = time.monotonic()
                running = [self.start(fault) for _ in range(2 if fault.name == "two at once" else 1)]
                self.disturb(fault, running[0])
                ended = [one.end() for one in running]
                log = "\n".join(text for _, text in ended)
                if fault.name == "none":
                    self.seconds.append(time.monotonic() - began)
            new = sorted(set(self.place.runs) - before)
            for outcome in self.judged(fault, (*fault.words, *words), ended, new):
                self.outcomes[fault.name][outcome] += 1
            must(self.waiting() == waiting + bool(fault.sinks), "what could not be sent is not in the spool")
            self.clean()
        except (Unaccounted, AssertionError) as error:
            self.outcomes[fault.name]["UNACCOUNTED"] += 1
            self.strays.append(f"gate {self.gates}, {fault.name}: {error}")
            print(f"UNACCOUNTED gate {self.gates}, {fault.name}: {error}\n{log}", flush=True)
            self.sweep()
        for path in self.place.folder.glob("gate*.log"):
            path.unlink()

    def configure(self, fault: Fault) -> None:
        """One or two cases, one or two launches."""
        cases = "".join(f"- {{workload: {name}, devices: [cpu], sizes: [4KiB]}}\n"
                        for name in ("allreduce", "allgather")[:self.dice.randint(1, 2)])
        self.launches = self.dice.randint(1, 2)
        self.place.configure(f"schema: 1\ngate: {{{fault.gate}lock_wait: 100s}}\n{NO_NOISE}devices: {{cpu: {{launches: "
                             f"{self.launches}, case_duration: 50ms}}}}\ncases:\n{cases}{fault.sinks}")

    def start(self, fault: Fault) -> Running:
        """A gate; counted."""
        self.gates += 1
        return self.place.start(fault=fault.inject)

    @contextmanager
    def trouble(self, fault: Fault) -> Iterator[tuple[str, ...]]:
        """The history as the fault wants it for this gate; what the gate must say of it."""
        folder = self.place.folder / ".comm-regress"
        if fault.name == "index deleted":
            for path in folder.glob("index.sqlite*"):
                path.unlink()
        if fault.name != "truncated run":
            yield ()
            return
        whole = self.place.runs[-1].read_bytes() if self.place.runs else b'{"run_id": "a"}'
        cut = folder / "runs" / f"20200101T000000Z-nocommit-{self.dice.getrandbits(48):012x}-1.json"
        cut.parent.mkdir(parents=True, exist_ok=True)
        cut.write_bytes(whole[:self.dice.randrange(len(whole))])
        try:
            yield ("warning: not read: ", cut.name)
        finally:
            cut.unlink()

    def disturb(self, fault: Fault, running: Running) -> None:
        """The signal at a random moment of a gate's life: to its group as a terminal does, or to it alone."""
        if not fault.name.startswith("SIG"):
            return
        number = signal.Signals[fault.name]
        moment = self.dice.uniform(0.0, 1.05 * sorted(self.seconds)[len(self.seconds) // 2])
        group = number != signal.SIGKILL and self.dice.random() < 0.5
        try:
            running.process.wait(moment)
        except subprocess.TimeoutExpired:
            (os.killpg if group else os.kill)(running.process.pid, number)

    def judged(self, fault: Fault, words: Sequence[str], ended: Sequence[tuple[int, str]],
               new: Sequence[Path]) -> list[str]:
        """The outcome of each gate that ended; Unaccounted where the fault does not explain it."""
        runs = [json.loads(path.read_bytes()) for path in new]
        if fault.name.startswith("SIG"):
            status, text = ended[0]
            return [stopped(signal.Signals[fault.name], status, text, new, runs)]
        for status, text in ended:
            must(status == fault.status, f"status {status}, not {fault.status}")
            for expected in words:
                must(expected in text, f"does not say {expected!r}")
        if fault.inject == "disk_full":
            must(not runs, "a run was stored on a full disk")
            (kept,) = self.place.folder.glob("comm-regress-*.json")
            must(str(kept) in ended[0][1] and bool(json.loads(kept.read_bytes())["verdicts"]), "the kept run")
            kept.unlink()
            return ["kept elsewhere, said so"]
        must(len(runs) == len(ended), f"{len(runs)} runs stored by {len(ended)} gates")
        for run in runs:
            must(not run["partial"] and len(run["launches"]) >= self.launches, "a run is not whole")
            must(fault.verdict in (None, run["verdict"]), f"verdict {run['verdict']}, not {fault.verdict}")
            must(fault.verdict is not None or run["verdict"] in ("pass", "no-baseline", "inconclusive", "improvement"),
                 f"verdict {run['verdict']} without a fault")
            must(fault.verdict is None or ALLREDUCE in run["verdicts"], "the case is not in the run")
        return [f"stored, status {status}" for status, _ in ended]

    def clean(self) -> None:
        """Unaccounted when anything of the gate is left."""
        must(self.place.gone(within=SECONDS_TO_END), f"processes {self.place.processes()} are alive")
        must(who_holds(self.place.folder / "host.lock") is None, "the lock is held")
        must(not (left := self.place.left), f"left behind: {', '.join(left)}")

    def waiting(self) -> int:
        """Payloads that wait to be sent."""
        return len(list((self.place.folder / ".comm-regress" / "spool").glob("[!.]*.json")))

    def sweep(self) -> None:
        """Takes away what a gate left, so that it is not held against the next."""
        for pid in self.place.processes():
            os.kill(pid, signal.SIGKILL)
        for name in self.place.left:
            for path in (self.place.folder / name, *(self.place.folder / ".comm-regress").rglob(name)):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    def check_index(self) -> None:
        """The index answers with every run that is there."""
        with open_history(str(self.place.folder / ".comm-regress")) as history:
            indexed, problems = sum(1 for _ in history.runs()), history.problems()
        if indexed != len(self.place.runs) or problems:
            self.strays.append(f"after gate {self.gates}: {indexed} runs in the index, {len(self.place.runs)} files, "
                               f"problems {[problem.text for problem in problems]}")


def stopped(number: signal.Signals, status: int, text: str, new: Sequence[Path],
            runs: Sequence[dict[str, Any]]) -> str:
    """What became of a gate that got a signal at any moment of its life; Unaccounted where that cannot be.

    Before its measuring and after it the signal does what it does to any Python program; from the first launch on,
    what was finished is kept, or the gate says that nothing was.
    """
    must(len(runs) <= 1, f"{len(runs)} runs stored")
    partial = bool(runs) and runs[0]["partial"]
    if status == 0:
        must(bool(runs) and not partial, "status 0 without a whole run")
        return "had ended before"
    if number == signal.SIGKILL:
        must(status == -number, f"status {status}")
        must(not partial, "a partial run")
        return "killed, run stored" if runs else "killed, nothing stored"
    if runs:
        must(status in (2, -number), f"status {status}")
        must(not partial or (status == 2 and str(new[0]) in text), "a partial run that is not named")
        return "stopped, partial run stored" if partial else "stopped, whole run stored"
    if "[1/" in text:
        must(status == 2 and "interrupted before anything was" in text, f"status {status}, nothing stored, no word why")
        return "stopped, nothing finished, said so"
    if number == signal.SIGTERM:
        must(status == -number or (status == 2 and "interrupted" in text), f"status {status}")
    else:
        must(status in (1, 2, -number) and ("KeyboardInterrupt" in text or "interrupted" in text or not text),
             f"status {status} before measuring, no word why")
    return "stopped before measuring"


class Quiet:
    """Shows nothing."""

    def message(self, text: str) -> None:
        """Nothing."""

    def case_started(self, text: str) -> None:
        """Nothing."""

    def progress(self, text: str) -> None:
        """Nothing."""


def play(folder: Path, times: int) -> None:
    """That many gates of recorded launches in this process, each with a history opened anew."""
    for _ in range(times):
        gate = open_gate(GateRequest(folder, folder / "thresholds.yaml", str(folder / "history"), device="cpu",
                                     trace="none"))
        gate.header()
        gate.factory = lambda _: ReplayLauncher.from_files([RECORDING])
        gate.run([planned.case for planned in gate.plan], Quiet())


def keep_opening(folder: Path) -> None:
    """The long-lived process: at each line of its input a burst, then its memory and open files as one JSON line."""
    (folder / "thresholds.yaml").write_text(
        f"schema: 1\n{NO_NOISE}cases:\n- {{workload: allreduce, devices: [cpu], sizes: [1MiB]}}\n"
        "- {workload: allgather, devices: [cpu], sizes: [1MiB]}\n")
    done = 0
    for _ in sys.stdin:
        times = BURST if done else WARM_UP
        play(folder, times)
        for _ in range(BURST_LAUNCHERS):
            with TorchrunLauncher(2):
                pass
        done += times
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        print(json.dumps({"gates": done, "memory_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
                          "open_files": len(list(Path("/proc/self/fd").iterdir()))}), flush=True)


class Opening:
    """The long-lived process, from outside; its bursts run while gates do."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        paths = os.pathsep.join(map(str, (INJECT, ROOT)))
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--opening", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": paths, "TMPDIR": str(folder), MARK: str(folder)}, text=True)
        self.points: list[dict[str, int]] = []
        self.ask()

    def ask(self) -> None:
        """Begins a burst."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def point(self) -> None:
        """Waits for the end of a burst and keeps what it found."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        must(bool(line), "the long-lived process ended")
        self.points.append(json.loads(line))
        print(f"long-lived process: {line.strip()}", flush=True)

    def end(self) -> list[str]:
        """Ends it; what grew, in words."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        after = self.points[1:]
        last = self.points[-1]
        early = next((point for point in after if point["gates"] - WARM_UP >= (last["gates"] - WARM_UP) / 10), last)
        found = []
        if last["memory_bytes"] - early["memory_bytes"] > MEMORY_GROWTH:
            found.append(f"memory grew from {early['memory_bytes']} to {last['memory_bytes']} bytes")
        if last["open_files"] > early["open_files"]:
            found.append(f"open files grew from {early['open_files']} to {last['open_files']}")
        return found


def table(soak: Soak) -> str:
    """Gates by fault and outcome."""
    lines = [f"{'fault':<18} {'outcome':<36} {'gates':>5}"]
    for fault in FAULTS:
        lines += [f"{fault.name:<18} {outcome:<36} {count:5}"
                  for outcome, count in sorted(soak.outcomes[fault.name].items())]
    return "\n".join(lines)


def main() -> int:
    """Runs for the time given; 1 when anything is unaccounted for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the table and the long-lived process's figures there")
    parser.add_argument("--opening", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.opening is not None:
        keep_opening(chosen.opening)
        return 0
    # A shell starts what goes to its background with SIGINT ignored, and so would every gate be.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    (root / "gates").mkdir()
    soak, opening = Soak(Place(root / "gates"), random.Random(chosen.seed)), Opening(root / "opening")  # noqa: S311
    began = time.monotonic()
    minute, bursts, rounds, every = 0, 1, list[Fault](), min(5.0, chosen.minutes / 12)
    while (passed := (time.monotonic() - began) / 60) < chosen.minutes:
        if passed >= minute + 1:
            minute = int(passed)
            soak.check_index()
            print(f"minute {minute}: {soak.gates} gates, {len(soak.place.runs)} runs stored, "
                  f"{len(soak.strays)} unaccounted", flush=True)
        if passed >= bursts * every:
            bursts = int(passed / every) + 1
            opening.point()
            opening.ask()
        if not rounds:
            rounds = soak.dice.sample(FAULTS, len(FAULTS))
        soak.one(rounds.pop())
    opening.point()
    soak.check_index()
    soak.strays += opening.end()
    print(table(soak))
    print(f"{soak.gates} gates in {(time.monotonic() - began) / 60:.1f} min, {len(soak.place.runs)} runs stored, "
          f"{len(soak.strays)} unaccounted", *soak.strays, sep="\n", flush=True)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({
            "minutes": chosen.minutes, "seed": chosen.seed, "gates": soak.gates, "runs": len(soak.place.runs),
            "outcomes": soak.outcomes, "unaccounted": soak.strays, "long_lived": opening.points}, indent=1) + "\n")
    if soak.strays:
        return 1
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
