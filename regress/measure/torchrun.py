"""Real launches: fresh rank processes through torchrun's engine, watched, bounded in time, and never left behind."""

from __future__ import annotations

import dataclasses
import datetime
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import msgspec

from regress.errors import MeasurementError
from regress.measure import flight_recorder
from regress.measure.agent import Answer, Request
from regress.measure.failure import describe_failures, hint, innermost, is_port_clash
from regress.measure.guard import LAUNCH_MARK, STACK_SIGNAL, boot_command
from regress.measure.launch import LaunchResult
from regress.measure.processes import end_marked, marked, send
from regress.measure.progress import format_states
from regress.measure.running_agent import RunningAgent, absolute_path_list, start_agent
from regress.measure.watch import Watch, log_files, missing_words, read_log, read_results
from regress.record import LaunchSpec, Progress, to_json

POLL_SECONDS = 0.05
GRACE_SECONDS = 2.0
HUNG_LINES = 16
"""Lines of stack in the report of a hang, over all ranks."""


@dataclass(frozen=True, slots=True)
class _Order:
    """What was asked of one launch (see `Launcher.launch`)."""

    spec: LaunchSpec
    index: int
    role: str
    deadline: float
    case_deadline: float | None
    on_progress: Callable[[Progress], None] | None
    environment: Mapping[str, str | None]
    prefix: tuple[str, ...]


@dataclass(slots=True)
class TorchrunLauncher:
    """Launches through torchrun's engine; a context manager that leaves no process behind.

    world_size: ranks. python: interpreter the ranks run in. program: what a rank runs, as the interpreter's
    arguments, before the path of the launch file. environment: overrides for every launch, None to unset.
    scratch: where launch folders are made; when None a temporary folder, which goes when the launcher is closed.
    """

    world_size: int
    python: str = sys.executable
    program: tuple[str, ...] = ("-m", "regress.measure.rank")
    environment: Mapping[str, str | None] = field(default_factory=dict)
    scratch: Path | None = None
    _gate: str = field(default_factory=lambda: secrets.token_hex(8), init=False)
    _agent: RunningAgent | None = field(default=None, init=False)
    _launches: int = field(default=0, init=False)
    _own_scratch: Path | None = field(default=None, init=False)
    _entrusted: list[Path] = field(default_factory=list, init=False)

    def __enter__(self) -> TorchrunLauncher:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    @property
    def mark(self) -> dict[str, str]:
        """A variable for helpers of the launches (a service on the GPU): `close()` ends a process that has it, and
        the agent does so when this process is killed."""
        return {LAUNCH_MARK: f"{self._gate}/aside"}

    def start(self) -> RunningAgent:
        """Starts the agent unless it runs, so that its import of torch overlaps with what the caller does next."""
        if self._agent is None or not self._agent.running:
            self._agent = start_agent(self.python, self._root() / "agent", gate=self._gate, mark=f"{self._gate}/agent",
                                      entrusted=self._entrusted)
        return self._agent

    def entrust(self, folder: Path) -> None:
        """Has the agent remove a temporary folder of the caller's, should this process be killed before it does so."""
        self._entrusted.append(folder)
        if self._agent is not None:
            self._agent.entrust(folder)

    def close(self) -> None:
        """Ends the agent and whatever is left of any launch."""
        if self._agent is not None:
            self._agent.stop()
            self._agent = None
        end_marked(self._gate, grace_seconds=GRACE_SECONDS)
        if self._own_scratch is not None:
            shutil.rmtree(self._own_scratch, ignore_errors=True)
            self._own_scratch = None

    def launch(self, spec: LaunchSpec, *, index: int, role: str, deadline_seconds: float,
               case_deadline_seconds: float | None = None,
               on_progress: Callable[[Progress], None] | None = None,
               environment: Mapping[str, str | None] | None = None,
               command_prefix: tuple[str, ...] = ()) -> LaunchResult:
        """One launch (see `Launcher`); when a port was taken meanwhile, once more on another.

        Files go to the spec's results_dir, or to a folder in scratch where that is empty; to a fresh folder beside
        it where it holds a launch already. A failed launch is a result with an error. Raises EnvironmentUnfitError
        without torch and MeasurementError for a command that cannot be run; KeyboardInterrupt goes on after the
        ranks have been ended.
        """
        order = _Order(spec, index, role, deadline_seconds, case_deadline_seconds, on_progress,
                       {**self.environment, **(environment or {})}, command_prefix)
        folder = Path(spec.results_dir).absolute() if spec.results_dir else self._root() / f"launch{index:03d}-{role}"
        result = self._attempt(order, _unused(folder))
        if result.error is None or not is_port_clash(result.error):
            return result
        second = self._attempt(order, _unused(folder))
        note = "repeated, because its port had been taken by another process meanwhile"
        return dataclasses.replace(second, warnings=(note, *second.warnings))

    def _root(self) -> Path:
        if self.scratch is not None:
            return self.scratch.absolute()
        if self._own_scratch is None:
            self._own_scratch = Path(tempfile.mkdtemp(prefix="comm-regress-"))
            self._entrusted.append(self._own_scratch)
        return self._own_scratch

    def _attempt(self, order: _Order, folder: Path) -> LaunchResult:
        spec = dataclasses.replace(order.spec, results_dir=str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "launch.json").write_bytes(to_json(spec))
        self._launches += 1
        started_at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        watch = Watch(folder, self.world_size)
        request = self._request(order, folder)
        agent: RunningAgent | None = None
        hung = False
        try:
            agent = self._agent_for(order, folder, request)
            error = self._wait(agent, order, Path(request.answer), watch)
            answered = Path(request.answer).exists()
            hung = agent.running and (bool(order.prefix) or not answered)
            if hung:
                error = self._hung(error or "", watch)
                self._abandon(agent, request.mark)
            elif not answered:
                error = agent.death_words()
                self._abandon(agent, request.mark)
        except BaseException:
            self._abandon(agent, request.mark)
            raise
        if order.prefix:
            agent.stop()
        warnings = self._sweep(request.mark)
        watch.look(order.on_progress)
        results = read_results(spec, folder, self.world_size)
        dumps = flight_recorder.dump_files(folder)
        evidence = (*dumps, *log_files(folder)) if hung or dumps else ()
        return LaunchResult(
            order.index, order.role, spec.seed, started_at, spec.cases, results, time.monotonic() - watch.began,
            watch.rank_wall_seconds, error or missing_words(spec, results), tuple(watch.reader.states),
            tuple(map(str, log_files(folder))), warnings, agent.process.returncode if order.prefix else None,
            str(folder), tuple(map(str, evidence)))

    def _request(self, order: _Order, folder: Path) -> Request:
        command = boot_command(self.python, "regress.measure.guard", str(folder), *self.program,
                               str(folder / "launch.json"))
        variables = dict(order.environment)
        if "OMP_NUM_THREADS" not in os.environ:
            variables.setdefault("OMP_NUM_THREADS", str(order.spec.threads_per_rank))
        if paths := variables.get("PYTHONPATH"):
            variables["PYTHONPATH"] = absolute_path_list(paths, Path.cwd())
        return Request(f"{self._gate}/{self._launches}.", self.world_size, command, str(folder),
                       str(folder / "answer.json"), variables)

    def _agent_for(self, order: _Order, folder: Path, request: Request) -> RunningAgent:
        """The long-lived agent with the request handed in; one for this launch alone when a command wraps it."""
        if order.prefix:
            overrides = {name: value for name, value in order.environment.items() if value is not None}
            agent = start_agent(self.python, folder / "agent", gate=self._gate, mark=request.mark,
                                prefix=order.prefix, environment=overrides, entrusted=self._entrusted)
        else:
            agent = self.start()
        agent.hand(request)
        return agent

    def _wait(self, agent: RunningAgent, order: _Order, answer: Path, watch: Watch) -> str | None:
        """Until the answer is there and a wrapping command has ended, or a deadline passes, or the agent dies."""
        while order.prefix or not answer.exists():
            watch.look(order.on_progress)
            if not agent.running:
                break
            # Once the ranks have ended a tracer may take its time to write the report: only the launch's deadline holds
            case_deadline = None if answer.exists() else order.case_deadline
            if (late := watch.overdue(order.deadline, case_deadline)) is not None:
                return late
            time.sleep(POLL_SECONDS)
        watch.look(order.on_progress)
        if not answer.exists():
            return "no answer"
        return self._verdict(msgspec.json.decode(answer.read_bytes(), type=Answer), watch)

    def _verdict(self, answer: Answer, watch: Watch) -> str | None:
        """What is wrong with ranks that have ended, in words, or None."""
        if answer.error is not None:
            advice = hint(answer.error)
            return f"torchrun could not run the launch: {answer.error}" + (f"; {advice}" if advice else "")
        if not answer.failures:
            return None
        stderr = {rank: read_log(watch.folder, rank, "stderr") for rank in range(self.world_size)}
        # There are dumps where NCCL's watchdog ended the ranks before a deadline of ours did.
        recorded = flight_recorder.summary(watch.folder, self.world_size)
        return describe_failures(answer.failures, stderr, watch.where) + (f"\n{recorded}" if recorded else "")

    def _hung(self, late: str, watch: Watch) -> str:
        """Lets each rank that still runs write down where it is and what it is in the middle of, and says both."""
        running = watch.running
        for rank in running:
            send(watch.pids[rank], STACK_SIGNAL)
        time.sleep(0.3)  # a signal handler writes the stacks, in microseconds once the rank is scheduled
        asked = [rank for rank in running if flight_recorder.ask(watch.folder, rank)]
        silent = flight_recorder.wait_for(watch.folder, asked)
        watch.look()
        parts = [late, format_states(watch.reader.states)]
        if watch.ended:
            parts.append("not running any more: rank " + ", ".join(map(str, sorted(watch.ended))))
        # Which rank keeps the others waiting cannot be told from outside: all stacks are shown, innermost calls first.
        lines = max(HUNG_LINES // max(len(running), 1), 2)
        stacks = {rank: innermost(read_log(watch.folder, rank, "stderr"), lines) for rank in running[:HUNG_LINES]}
        recorded = flight_recorder.summary(watch.folder, self.world_size, silent)
        return ("; ".join(parts) + (f"\n{recorded}" if recorded else "")
                + "".join(f"\nwhere rank {rank} was:\n{text}" for rank, text in stacks.items() if text))

    def _abandon(self, agent: RunningAgent | None, mark: str) -> None:
        """Ends the agent and every process of the launch; the next launch starts another agent."""
        for known in {id(found): found for found in (agent, self._agent) if found is not None}.values():
            known.stop()
        self._agent = None
        survivors = end_marked(mark, grace_seconds=GRACE_SECONDS)
        if survivors:
            raise MeasurementError(f"processes {survivors} survived SIGKILL", where="launch",
                                   next_step="the driver is wedged: restart the machine or the container")

    def _sweep(self, mark: str) -> tuple[str, ...]:
        """Ends what the ranks left running, and says so."""
        left = marked(mark)
        if not left:
            return ()
        end_marked(mark, grace_seconds=GRACE_SECONDS)
        return (f"the ranks left {len(left)} process(es) running; they were ended",)


def _unused(folder: Path) -> Path:
    """The folder itself, or one beside it where it holds a launch already: old files must not pass for new ones."""
    number, found = 1, folder
    while (found / "launch.json").exists():
        number += 1
        found = folder.with_name(f"{folder.name}-{number}")
    return found
