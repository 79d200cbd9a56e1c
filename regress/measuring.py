"""A gate's launches: which cases in which order, on which ranks, and what is said while they run."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from regress.config import Config
from regress.measure.base import BaseCheckout
from regress.measure.evidence import keep_evidence
from regress.measure.launch import Launcher, LaunchResult
from regress.measure.progress import format_left, format_progress
from regress.measure.ranks import RankPlan
from regress.measure.torchrun import TorchrunLauncher
from regress.measure.watch import read_results
from regress.metrics import Metric
from regress.outcomes import fold_launch
from regress.record import Case, Launch, LaunchSpec, Progress

START_SECONDS = 6.0
"""First guess at what a launch costs before its first case; replaced by what launches really took."""


class Observer(Protocol):
    """Whoever watches: pytest's terminal, the console script, or a test."""

    def message(self, text: str) -> None:
        """Said once, always."""

    def case_started(self, text: str) -> None:
        """A case begins."""

    def progress(self, text: str) -> None:
        """How far inside a case."""


@dataclass(slots=True)
class Estimate:
    """Time left, learnt from the launches so far: seconds per case, and per launch beside its cases."""

    case_seconds: float
    launch_seconds: float = START_SECONDS
    launches_seen: int = 0

    def left(self, cases: int, launches: int) -> float:
        """Seconds for that many cases in that many fresh launches."""
        return cases * self.case_seconds + launches * self.launch_seconds

    def learn(self, result: LaunchResult) -> None:
        """Splits what a launch took: its start by the first guess's share, the rest evenly over its cases."""
        if result.error is None and result.cases:
            self.launches_seen += 1
            self.launch_seconds = min(self.launch_seconds, result.wall_seconds / 2)
            self.case_seconds = (result.wall_seconds - self.launch_seconds) / len(result.cases)


@dataclass(frozen=True, slots=True)
class Task:
    """One launch to make. base: where the base is checked out, None for head."""

    cases: tuple[Case, ...]
    role: str
    session: int
    seed: int
    base: BaseCheckout | None = None


LauncherFactory = Callable[[int], Launcher]


@runtime_checkable
class Trusted(Protocol):
    """A launcher whose agent removes temporary folders of a process that was killed (`TorchrunLauncher.entrust`)."""

    def entrust(self, folder: Path) -> None:
        """Takes that folder on."""


@dataclass(slots=True)
class Campaign:
    """Makes launches and keeps what they measured. A context manager: no rank outlives it.

    metrics: by workload, by the name they have in it. environment: overrides for the ranks. scratch: a folder for
    files of this gate, there from entering to leaving. hangs: where the evidence of launches that hung is kept, a
    folder for this gate; None lets it go with the scratch. around: entered for each launch (to watch the host).
    """

    config: Config
    ranks: RankPlan
    root: Path
    metrics: Mapping[str, Mapping[str, Metric]]
    observer: Observer
    environment: Mapping[str, str | None] = field(default_factory=dict)
    factory: LauncherFactory = field(default=TorchrunLauncher)
    launches: list[Launch] = field(default_factory=list)
    _launchers: dict[tuple[int, str | None], Launcher] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)
    scratch: Path = field(default_factory=Path)
    hangs: Path | None = None
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    _estimate: Estimate | None = None

    def __enter__(self) -> Campaign:
        self.scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(
            prefix="comm-regress-", ignore_cleanup_errors=True)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def launcher(self, world_size: int, *, base: bool = False) -> Launcher:
        """The launcher of that world size; started once. base: for the base, in its own Python where it has one."""
        python = self.config.gate.base_python if base else None
        key = (world_size, python)
        if key not in self._launchers:
            made = self.factory(world_size)
            if isinstance(made, Trusted):
                made.entrust(self.scratch)
            if isinstance(made, TorchrunLauncher):
                made.python = python or made.python
                self._stack.enter_context(made)
            self._launchers[key] = made
        return self._launchers[key]

    def entrust(self, folder: Path) -> None:
        """Has the agents remove a temporary folder of the caller's, should this process be killed before it does so."""
        for made in self._launchers.values():
            if isinstance(made, Trusted):
                made.entrust(folder)

    def screening(self, cases: Sequence[Case], launches: int, seed: int) -> list[Task]:
        """Every case in each of that many launches, in an order shuffled by the seed; one launch per world size."""
        tasks = []
        for number in range(launches):
            for world_size in sorted({case.world_size for case in cases}):
                chosen = [case for case in cases if case.world_size == world_size]
                random.Random(seed + number).shuffle(chosen)  # noqa: S311 - an order, not a secret
                tasks.append(Task(tuple(chosen), "head", 0, seed + number))
        return tasks

    def run(self, tasks: Sequence[Task]) -> Iterator[Launch]:
        """Makes the launches in turn, each yielded once measured and kept.

        When interrupted, the cases that the running launch had finished are kept before the interrupt goes on.
        """
        for number, task in enumerate(tasks):
            index = len(self.launches)
            folder = self.scratch / f"launch{index:03d}-{task.role}"
            spec = self.spec(task, folder)
            watch = _Watch(self.observer, self.estimate, tasks[number:], number + 1, len(tasks))
            launcher = self.launcher(task.cases[0].world_size, base=task.base is not None)
            try:
                with self.around():
                    result = launcher.launch(
                        spec, index=index, role=task.role, deadline_seconds=self.config.gate.launch_deadline,
                        case_deadline_seconds=self.config.gate.case_deadline, on_progress=watch,
                        environment={**self.environment, **(task.base.environment if task.base else {})},
                        command_prefix=self.config.gate.base_command if task.base is not None else ())
            except KeyboardInterrupt:
                self._keep_finished(task, spec, folder, index, watch.began)
                raise
            result = self.kept(result)
            self.estimate.learn(result)
            launch = fold_launch(result, self.metrics, task.session)
            if launch.error is not None:
                self.observer.message(f"launch {index} failed: {launch.error}")
            self.launches.append(launch)
            yield launch

    def kept(self, result: LaunchResult) -> LaunchResult:
        """The result, its evidence kept where it hung."""
        return keep_evidence(result, self.hangs) if self.hangs is not None else result

    def spec(self, task: Task, folder: Path, tracer: str = "none") -> LaunchSpec:
        """What the ranks of that launch are told."""
        profile = self.config.device(self.ranks.device)
        root = task.base.root if task.base is not None else self.root
        return LaunchSpec(task.cases, task.seed, self.ranks.backend, str(folder), profile.case_duration,
                          min(profile.threads_per_rank, self.ranks.threads_per_rank), self.ranks.shared_gpu, tracer,
                          (str(root),), self.ranks.multi_rank_gpu)

    @property
    def estimate(self) -> Estimate:
        """Time a case and a launch take, as far as known."""
        if self._estimate is None:
            self._estimate = Estimate(2.5 * self.config.device(self.ranks.device).case_duration)
        return self._estimate

    def expected(self, cases: Sequence[Case]) -> float:
        """Seconds that one launch of these cases is expected to take, one for each of their world sizes."""
        return self.estimate.left(len(cases), len({case.world_size for case in cases}))

    def _keep_finished(self, task: Task, spec: LaunchSpec, folder: Path, index: int, began: float) -> None:
        results = read_results(spec, folder, task.cases[0].world_size)
        finished = [number for number, ranks in enumerate(results) if None not in ranks]
        if finished:
            wall = time.monotonic() - began
            kept = LaunchResult(index, task.role, task.seed, "", tuple(task.cases[n] for n in finished),
                                tuple(results[n] for n in finished), wall, wall, "interrupted")
            self.launches.append(fold_launch(kept, self.metrics, task.session))


@dataclass(slots=True)
class _Watch:
    """Turns rank 0's progress into lines: one at the start of each case, then how far it is."""

    observer: Observer
    estimate: Estimate
    tasks: Sequence[Task]
    launch: int
    launches: int
    began: float = field(default_factory=time.monotonic)
    case: str = ""
    position: int = 0

    def __call__(self, line: Progress) -> None:
        """One line of rank 0's progress file."""
        if not line.case:
            return
        cases = len(self.tasks[0].cases)
        starts = line.case != self.case
        if starts:
            self.case = line.case
            self.position += 1
        behind = sum(len(task.cases) for task in self.tasks[1:])
        left = self.estimate.left(cases - self.position + 1 + behind, len(self.tasks) - 1)
        text = format_progress(line, position=self.position, cases=cases, launch=self.launch, launches=self.launches,
                               seconds_left=left)
        if starts:
            role = "" if self.tasks[0].role == "head" else f" · {self.tasks[0].role}"
            self.observer.case_started(f"[{self.position}/{cases}] {line.case} · launch {self.launch}/{self.launches}"
                                       f"{role} · about {format_left(left)} left")
        else:
            self.observer.progress(text)
