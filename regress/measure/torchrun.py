"""Real launches: fresh rank processes through torchrun's engine, watched, bounded in time, and never left behind."""

from __future__ import annotations

import dataclasses
import datetime
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from regress.errors import EnvironmentUnfitError, MeasurementError, RecordError
from regress.measure.agent import Answer, Request, encode
from regress.measure.failure import describe_failures, exit_words, hint, is_port_clash, tail
from regress.measure.guard import LAUNCH_MARK, STACK_SIGNAL, boot_command, process_file
from regress.measure.launch import LaunchResult
from regress.measure.processes import alive, end_marked, marked, send
from regress.measure.progress import ProgressReader, format_states
from regress.record import LaunchSpec, Progress, RankResult, rank_result_from_json, to_json

POLL_SECONDS = 0.05
GRACE_SECONDS = 2.0


@dataclass(slots=True)
class _Agent:
    """A running agent, the pipe its requests go through, and its own output."""

    process: subprocess.Popen[bytes]
    pipe: IO[bytes]
    output: Path


@dataclass(slots=True)
class _Watch:
    """What the launcher knows about a launch while it runs."""

    folder: Path
    reader: ProgressReader
    pids: dict[int, int] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    first_rank: float | None = None
    last_progress: float | None = None

    def look(self, on_progress: Callable[[Progress], None] | None) -> None:
        """Reads new progress and notes which rank processes have started and ended."""
        now = time.monotonic()
        for rank, line in self.reader.poll():
            self.last_progress = now
            if rank == 0 and on_progress is not None:
                on_progress(line)
        for rank in range(self.reader.world_size):
            if rank not in self.pids and process_file(self.folder, rank).exists():
                self.pids[rank] = int(process_file(self.folder, rank).read_text())
                self.first_rank = now if self.first_rank is None else self.first_rank
            elif rank in self.pids and rank not in self.ended and not alive(self.pids[rank]):
                self.ended[rank] = now

    def overdue(self, deadline: float, case_deadline: float | None) -> str | None:
        """What ran out, or None."""
        now = time.monotonic()
        if now - self.began > deadline:
            return f"the launch did not end within {deadline:g} s"
        if case_deadline is not None and self.last_progress is not None and now - self.last_progress > case_deadline:
            return f"no rank made progress for {case_deadline:g} s"
        return None

    @property
    def rank_wall_seconds(self) -> float:
        """The longest rank process, from its start to its end (to now where it still runs), within POLL_SECONDS."""
        if self.first_rank is None:
            return 0.0
        now = time.monotonic()
        return max(self.ended.get(rank, now) for rank in self.pids) - self.first_rank


@dataclass(slots=True)
class TorchrunLauncher:
    """Launches through torchrun's engine; a context manager that leaves no process behind.

    world_size: ranks. python: interpreter the ranks run in. program: what a rank runs, as the interpreter's
    arguments, before the path of the launch file. environment: overrides for every launch, None to unset.
    scratch: where launch folders are made; a temporary folder when None.
    """

    world_size: int
    python: str = sys.executable
    program: tuple[str, ...] = ("-m", "regress.measure.rank")
    environment: Mapping[str, str | None] = field(default_factory=dict)
    scratch: Path | None = None
    _mark: str = field(default_factory=lambda: secrets.token_hex(8), init=False)
    _agent: _Agent | None = field(default=None, init=False)
    _launches: int = field(default=0, init=False)

    def __enter__(self) -> TorchrunLauncher:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Starts the agent, so that its import of torch overlaps with what the caller does next."""
        if self._agent is None:
            self._agent = self._start_agent(self._root() / "agent", f"{self._mark}/agent", (), {}, once=False)

    def close(self) -> None:
        """Ends the agent and whatever is left of any launch."""
        if self._agent is not None:
            self._stop(self._agent, patient=True)
            self._agent = None
        end_marked(self._mark, grace_seconds=GRACE_SECONDS)

    def launch(self, spec: LaunchSpec, *, index: int, role: str, deadline_seconds: float,
               case_deadline_seconds: float | None = None,
               on_progress: Callable[[Progress], None] | None = None,
               environment: Mapping[str, str | None] | None = None,
               command_prefix: tuple[str, ...] = ()) -> LaunchResult:
        """One launch (see `Launcher`); when a port was taken meanwhile, once more on another.

        A failed launch is a result with an error. Raises EnvironmentUnfitError without torch, and re-raises
        KeyboardInterrupt after the ranks have been ended.
        """
        def attempt(folder: Path) -> LaunchResult:
            return self._attempt(spec, folder, index, role, deadline_seconds, case_deadline_seconds, on_progress,
                                 {**self.environment, **(environment or {})}, command_prefix)
        folder = Path(spec.results_dir) if spec.results_dir else self._root() / f"launch{index:03d}-{role}"
        result = attempt(folder)
        if result.error is None or not is_port_clash(result.error):
            return result
        second = attempt(folder.with_name(folder.name + "-retry"))
        note = f"launch {index} was repeated: its port was taken by another process"
        return dataclasses.replace(second, warnings=(note, *second.warnings))

    def _root(self) -> Path:
        if self.scratch is None:
            self.scratch = Path(tempfile.mkdtemp(prefix="comm-regress-"))
        return self.scratch

    def _attempt(self, spec: LaunchSpec, folder: Path, index: int, role: str, deadline: float,
                 case_deadline: float | None, on_progress: Callable[[Progress], None] | None,
                 environment: Mapping[str, str | None], prefix: tuple[str, ...]) -> LaunchResult:
        folder.mkdir(parents=True, exist_ok=True)
        spec = dataclasses.replace(spec, results_dir=str(folder))
        spec_file = folder / "launch.json"
        spec_file.write_bytes(to_json(spec))
        self._launches += 1
        mark = f"{self._mark}/{self._launches}."
        started_at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        watch = _Watch(folder, ProgressReader(folder, self.world_size))
        request = Request(mark, self.world_size, self._rank_command(folder, spec_file), str(folder),
                          str(folder / "answer.json"), self._rank_environment(spec, environment))
        agent: _Agent | None = None
        try:
            agent = self._agent_for(folder, mark, prefix, request)
            error, warnings = self._wait(agent, request, watch, deadline, case_deadline, on_progress, bool(prefix))
        except BaseException:
            self._abandon(agent, mark)
            raise
        warnings += self._sweep(mark)
        watch.look(on_progress)
        return LaunchResult(
            index, role, spec.seed, started_at, spec.cases, read_results(spec, folder, self.world_size),
            time.monotonic() - watch.began, watch.rank_wall_seconds, error, tuple(watch.reader.states),
            tuple(sorted(str(path) for path in folder.glob("logs/**/std*.log"))), tuple(warnings),
            agent.process.returncode if prefix else None, str(folder))

    def _rank_command(self, folder: Path, spec_file: Path) -> tuple[str, ...]:
        return boot_command(self.python, "regress.measure.guard", str(folder), *self.program, str(spec_file))

    def _rank_environment(self, spec: LaunchSpec, environment: Mapping[str, str | None]) -> dict[str, str | None]:
        threads: dict[str, str | None] = {}
        if "OMP_NUM_THREADS" not in os.environ:
            threads["OMP_NUM_THREADS"] = str(spec.threads_per_rank)
        return {**threads, **environment}

    def _agent_for(self, folder: Path, mark: str, prefix: tuple[str, ...], request: Request) -> _Agent:
        """The long-lived agent with the request handed in; one for this launch alone when a command wraps it."""
        if prefix:
            overrides = {name: value for name, value in request.environment.items() if value is not None}
            agent = self._start_agent(folder / "agent", mark, prefix, overrides, once=True)
        else:
            if self._agent is not None and self._agent.process.poll() is not None:
                self._agent = None  # it died between two launches: begin afresh
            self.start()
            assert self._agent is not None
            agent = self._agent
        agent.pipe.write(encode(request))
        agent.pipe.flush()
        return agent

    def _start_agent(self, folder: Path, mark: str, prefix: tuple[str, ...], overrides: Mapping[str, str], *,
                     once: bool) -> _Agent:
        folder.mkdir(parents=True, exist_ok=True)
        pipe_path, output = folder / "requests", folder / "output.log"
        pipe_path.unlink(missing_ok=True)
        os.mkfifo(pipe_path, 0o600)
        command = boot_command(self.python, "regress.measure.agent", str(pipe_path), mark, *(["once"] if once else []))
        # Open for reading as well, so that opening does not wait for an agent that may never come up.
        pipe = os.fdopen(os.open(pipe_path, os.O_RDWR), "wb", buffering=0)
        with output.open("wb") as log:
            process = subprocess.Popen([*prefix, *command], cwd=folder, stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=subprocess.STDOUT, start_new_session=True,
                                       env={**os.environ, **overrides, LAUNCH_MARK: mark})
        return _Agent(process, pipe, output)

    def _wait(self, agent: _Agent, request: Request, watch: _Watch, deadline: float, case_deadline: float | None,
              on_progress: Callable[[Progress], None] | None, wrapped: bool) -> tuple[str | None, list[str]]:
        """Until the answer is there (and a wrapping command has ended), a deadline passes, or the agent dies."""
        answer = Path(request.answer)
        while wrapped or not answer.exists():
            watch.look(on_progress)
            if agent.process.poll() is not None:
                break
            if (late := watch.overdue(deadline, case_deadline)) is not None:
                return self._hang(late, agent, request.mark, watch), []
            time.sleep(POLL_SECONDS)
        watch.look(on_progress)
        if not answer.exists():
            return self._agent_died(agent), []
        return self._verdict(msgspec.json.decode(answer.read_bytes(), type=Answer), watch), []

    def _verdict(self, answer: Answer, watch: _Watch) -> str | None:
        if answer.error is not None:
            advice = hint(answer.error)
            return f"torchrun could not run the launch: {answer.error}" + (f"; {advice}" if advice else "")
        if not answer.failures:
            return None
        stderr = {rank: read_log(watch.folder, rank, "stderr") for rank in range(self.world_size)}
        where = {state.rank: state.text.partition(": ")[2] for state in watch.reader.states}
        return describe_failures(answer.failures, stderr, where)

    def _agent_died(self, agent: _Agent) -> str:
        text = agent.output.read_text(errors="replace")
        if "No module named 'torch" in text:
            raise EnvironmentUnfitError(tail(text, 1), where=self.python, accepted="a torch built with distributed",
                                        next_step="install PyTorch for this Python: pip install torch")
        return (f"the launching process {exit_words(agent.process.returncode)} before the ranks had ended"
                f"\nlast lines of its output:\n{tail(text)}")

    def _hang(self, late: str, agent: _Agent, mark: str, watch: _Watch) -> str:
        """Lets each rank write down where it is, ends everything, and says how far each rank had come."""
        running = [rank for rank in watch.pids if rank not in watch.ended]
        for rank in running:
            send(watch.pids[rank], STACK_SIGNAL)
        time.sleep(0.3)  # the stacks are written by a signal handler, in microseconds once the rank is scheduled
        watch.look(None)
        self._abandon(agent, mark)
        gone = sorted(set(range(self.world_size)) - set(running)) if watch.pids else []
        parts = [late, format_states(watch.reader.states)]
        if gone:
            parts.append(f"not running any more: rank {', '.join(map(str, gone))}")
        stuck = running[0] if running else 0
        last = tail(read_log(watch.folder, stuck, "stderr"))
        return "; ".join(parts) + (f"\nwhere rank {stuck} was:\n{last}" if last else "")

    def _abandon(self, agent: _Agent | None, mark: str) -> None:
        """Ends the agent and every process of the launch; the next launch starts another agent."""
        if agent is not None:
            self._stop(agent, patient=False)
        if agent is self._agent:
            self._agent = None
        survivors = end_marked(mark, grace_seconds=GRACE_SECONDS)
        if survivors:
            raise MeasurementError(f"processes {survivors} survived SIGKILL", where="launch",
                                   next_step="the driver is wedged: restart the machine or the container")

    def _stop(self, agent: _Agent, *, patient: bool) -> None:
        """Ends an agent: an idle one by an empty request, one at work by a signal. Its ranks die with it."""
        if patient and agent.process.poll() is None:
            agent.pipe.write(b"\n")
            try:
                agent.process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                agent.process.kill()
        elif agent.process.poll() is None:
            agent.process.kill()
        agent.process.wait()
        agent.pipe.close()

    def _sweep(self, mark: str) -> list[str]:
        """Ends what the ranks left running, and says so."""
        left = marked(mark)
        if not left:
            return []
        end_marked(mark, grace_seconds=GRACE_SECONDS)
        return [f"the ranks left {len(left)} process(es) running; they were ended"]


def read_log(folder: Path, rank: int, stream: str) -> str:
    """What a rank wrote to "stdout" or "stderr" in a launch with this folder; empty where it wrote nothing."""
    return "".join(path.read_text(errors="replace") for path in sorted(folder.glob(f"logs/*/*/{rank}/{stream}.log")))


def read_results(spec: LaunchSpec, folder: Path, world_size: int) -> tuple[tuple[RankResult | None, ...], ...]:
    """The ranks' result files: for each case, for each rank, None where there is no whole file."""
    return tuple(tuple(_read_result(folder / f"rank{rank}.case{position}.json") for rank in range(world_size))
                 for position in range(len(spec.cases)))


def _read_result(path: Path) -> RankResult | None:
    try:
        return rank_result_from_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    except RecordError:  # a rank that was ended while it wrote: missing, like one that never began
        return None
