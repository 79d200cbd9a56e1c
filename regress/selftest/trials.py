"""Real gates with a fault in their ranks, against a baseline that was measured the same way minutes before.

Everything is in a temporary folder: the user's history, thresholds and repository are neither read nor touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from regress.measure.host import allowed_cores
from regress.measure.launch import Launcher, LaunchResult
from regress.measure.ranks import visible_gpus
from regress.measure.torchrun import TorchrunLauncher
from regress.measuring import LauncherFactory, Observer, Trusted
from regress.record import Case, LaunchSpec, Progress, Run
from regress.selftest.faults import FAULTS, Cause, Fault, Seen, look, why_not
from regress.session import Gate, GateRequest, open_gate

INJECT = Path(__file__).with_name("inject")
THRESHOLDS = Path(__file__).with_name("thresholds.yaml")
FAULT_VARIABLE = "REGRESS_SELFTEST_FAULT"
BASELINE_RUNS = 3
"""The fewest that tell the spread of what only the one traced launch of a run gives."""
LOADS_PER_CORE = 4
_UNTIL_ORPHANED = "p = os.getppid()\nwhile os.getppid() == p: "
_LOADS = {"cpu": "import os\n" + _UNTIL_ORPHANED + "pass",
          "cuda": "import os, torch\na = torch.randn(4096, 4096, device='cuda')\n" + _UNTIL_ORPHANED
                  + "a @ a; torch.cuda.synchronize()"}
"""Programs that keep a device busy until they are ended, or nobody is left to end them."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A row of the table. seen: None where this machine cannot show the fault; note: why, or why it was not caught."""

    fault: Fault
    cause: str
    seen: Seen | None
    seconds: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the gate."""
        return self.seen is None or self.seen.caught


@dataclass(slots=True)
class FaultyLauncher:
    """Launches of all gates through one agent, so that torch is loaded once. variables: of the ranks."""

    inner: Launcher
    variables: Mapping[str, str | None] = field(default_factory=dict)

    def launch(self, spec: LaunchSpec, *, index: int, role: str, deadline_seconds: float,
               case_deadline_seconds: float | None = None,
               on_progress: Callable[[Progress], None] | None = None,
               environment: Mapping[str, str | None] | None = None,
               command_prefix: tuple[str, ...] = ()) -> LaunchResult:
        """One launch, in ranks that have the fault."""
        return self.inner.launch(
            spec, index=index, role=role, deadline_seconds=deadline_seconds,
            case_deadline_seconds=case_deadline_seconds, on_progress=on_progress,
            environment={**(environment or {}), **self.variables}, command_prefix=command_prefix)

    def entrust(self, folder: Path) -> None:
        """Has the agent remove that folder, should this process be killed before it does so."""
        if isinstance(self.inner, Trusted):
            self.inner.entrust(folder)


def variables_for(fault: Fault, environment: Mapping[str, str]) -> dict[str, str | None]:
    """What the ranks of a faulty launch get: the fault's name, and the folder that injects it first on PYTHONPATH."""
    paths = [str(INJECT), *([environment["PYTHONPATH"]] if environment.get("PYTHONPATH") else [])]
    return {FAULT_VARIABLE: fault.name, "PYTHONPATH": os.pathsep.join(paths), **fault.variables}


@dataclass(slots=True)
class Bench:
    """Where the trials take place: a temporary folder with a history, and one launcher for all gates.

    launcher: of the ranks' world size; a real one when None.
    """

    folder: Path
    device: str
    observer: Observer
    launcher: FaultyLauncher | None = None

    @property
    def history(self) -> Path:
        """The runs that faults are compared with."""
        return self.folder / "baseline"

    def gate(self, fault: Fault, history: Path, *, traced: bool) -> Gate:
        """The gate for a fault. traced: with a traced launch, for causes that are only in a trace."""
        gate = open_gate(GateRequest(
            root=self.folder, config=THRESHOLDS, history=str(history), device=self.device,
            launches=fault.launches, trace="auto" if traced else "none"))
        if fault.case_deadline is not None:
            options = replace(gate.config.gate, case_deadline=fault.case_deadline)
            gate.config = replace(gate.config, gate=options)
        return gate

    def run(self, fault: Fault, gate: Gate) -> Run:
        """One gate from start to end, with the fault in its ranks and its load beside it."""
        gate.factory = self.factory(gate, fault)
        cases = [planned.case for planned in gate.plan if _shows_in(fault, planned.case) and planned.unfit is None]
        with loaded(fault.load):
            return gate.run(cases, self.observer).run

    def factory(self, gate: Gate, fault: Fault) -> LauncherFactory:
        """Makes the fault's launchers; a gate whose ranks share a GPU needs one of its own to start the service."""
        variables = variables_for(fault, os.environ)
        if gate.ranks.shared_gpu or self.launcher is None:
            return lambda world_size: TorchrunLauncher(world_size, environment=variables)
        shared = self.launcher
        shared.variables = variables
        return lambda _: shared


def _shows_in(fault: Fault, case: Case) -> bool:
    return fault.workload in ("", case.workload)


@contextmanager
def open_bench(device: str, observer: Observer) -> Iterator[Bench]:
    """A bench on "cpu" or "cuda" with its own folder and launcher; nothing is left of it afterwards."""
    with tempfile.TemporaryDirectory(prefix="comm-regress-selftest-", ignore_cleanup_errors=True) as folder, \
            TorchrunLauncher(2) as launcher:
        launcher.entrust(Path(folder))
        yield Bench(Path(folder), device, observer, FaultyLauncher(launcher))


def chosen_device(wish: str) -> str:
    """"cuda" where there is a GPU and nothing else is wished, else "cpu"."""
    return "cpu" if wish == "cpu" or (wish == "auto" and not _gpus()) else "cuda"


def _gpus() -> int:
    return visible_gpus(None, os.environ)


def try_faults(bench: Bench, faults: Sequence[Fault] = FAULTS) -> Iterator[Trial]:
    """The faults in turn, each row as soon as it is known; before the first that needs it, the baseline."""
    gpus = _gpus() if bench.device == "cuda" else 0
    for fault in faults:
        cause, obstacle = fault.cause(bench.device), fault.obstacle(bench.device, gpus)
        if cause is None or obstacle is not None:
            elsewhere = cause or fault.cuda or fault.cpu
            yield Trial(fault, elsewhere.text if elsewhere is not None else "", None, 0.0,
                        f"not on this machine: {obstacle}")
            continue
        if fault.needs_baseline and not bench.history.exists():
            measure_baseline(bench)
        for _ in range(fault.times):
            yield _try(bench, fault, cause)


def measure_baseline(bench: Bench) -> None:
    """What the code does without any fault: a few runs, so that the spread between runs is known."""
    for number in range(BASELINE_RUNS):
        bench.observer.message(f"baseline {number + 1}/{BASELINE_RUNS}")
        bench.run(FAULTS[0], bench.gate(FAULTS[0], bench.history, traced=True))


def _try(bench: Bench, fault: Fault, cause: Cause) -> Trial:
    bench.observer.message(f"{fault.name}: {fault.summary}")
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        history = Path(folder, "history")
        if fault.needs_baseline:
            # A copy each: what one fault leaves behind must not become the baseline of the next.
            shutil.copytree(bench.history, history)
        run = bench.run(fault, bench.gate(fault, history, traced=bool(cause.rules)))
    seen = look(fault, cause, run)
    return Trial(fault, cause.text, seen, _seconds(run), "" if seen.caught else why_not(run))


def _seconds(run: Run) -> float:
    """How long the gate took, without waiting for other gates on this machine."""
    began, ended = (datetime.fromisoformat(moment) for moment in (run.started_at, run.ended_at))
    return (ended - began).total_seconds()


@contextmanager
def loaded(kind: str) -> Iterator[None]:
    """Processes of nobody's that keep the CPU or the GPU busy; none for an empty kind."""
    count = {"cpu": LOADS_PER_CORE * allowed_cores(), "cuda": 1}.get(kind, 0)
    busy = [subprocess.Popen([sys.executable, "-c", _LOADS[kind]], stdin=subprocess.DEVNULL) for _ in range(count)]
    try:
        if busy:
            time.sleep(1.0 if kind == "cpu" else 15.0)
        yield
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()


def exit_status(trials: Sequence[Trial]) -> int:
    """0 when every fault that can be shown here was caught and no unchanged code was called worse, else 1."""
    return 0 if all(trial.passed for trial in trials) else 1
