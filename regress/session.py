"""The only place that wires rooms: plan, measure, trace, judge, store, publish.

`open_gate` reads everything that can be wrong before anything is measured; `Gate.run` does the rest, in
`regress.gate_work`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from regress.catalog import Shelves, open_shelves
from regress.config import Config, DeviceProfiles, load_config
from regress.errors import EnvironmentUnfitError, MeasurementError, UsageError
from regress.history.store import open_history
from regress.judge.detectors.shift import ShiftOptions
from regress.judge.scale import default_effect
from regress.measure.base import ChosenBase, default_base, resolve_base
from regress.measure.commit import read_commit
from regress.measure.devices import Devices, open_devices
from regress.measure.environment import collect, describe_devices
from regress.measure.lock import hold_lock, host_lock_path
from regress.measure.mps import find_program, foreign_service
from regress.measure.ranks import RankPlan, plan_ranks
from regress.measure.sharing import GpuSharing
from regress.measure.variables import without_place
from regress.measuring import LauncherFactory, Observer
from regress.record import Case, Commit, Environment
from regress.result import GateOutcome
from regress.stopping import terminated_as_interrupted
from regress.tracing import Tracer, choose_tracer


@dataclass(frozen=True, slots=True)
class GateRequest:
    """What the user asked for, whichever face took it.

    root: the repository under test. config: a thresholds file, None for the packaged one. history: folder or URL.
    measure: False when cases are only listed, which touches no history. quick: two short launches a case and no trace
    unless asked for, for an answer within a minute; a suspicion is confirmed only as far as that minute goes.
    """

    root: Path
    config: Path | None
    history: str
    device: str = "auto"
    launches: int | None = None
    budget: float | None = None
    trace: str = "auto"
    base: str | None = None
    accept: str | None = None
    json: Path | None = None
    html: Path | None = None
    measure: bool = True
    quick: bool = False


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """A case of the thresholds file. unfit: why this machine cannot run it, None when it can."""

    case: Case
    unfit: str | None = None


def open_gate(request: GateRequest) -> Gate:
    """Everything up to the first launch; RegressError for whatever cannot work."""
    shelves = open_shelves()
    config = load_config(request.config, shelves.catalog())
    _check_request(request, config)
    if request.quick:
        request, config = quickened(request, config)
    ranks = plan_ranks(request.device)
    wished = config.device(ranks.device).ranks
    if wished is not None:
        ranks = plan_ranks(request.device, wished)
    tracer = choose_tracer(request.trace, ranks.device) if request.measure else Tracer("none")
    gate = Gate(request, config, shelves, ranks, plan_cases(config, ranks), tracer)
    program = find_program(os.environ) if ranks.shared_gpu else None
    if program is not None or (ranks.shared_gpu and foreign_service(os.environ, program) is not None):
        gate.share_gpu(GpuSharing.MPS)
    return gate


QUICK_SECONDS = 60.0
QUICK_CASE_SECONDS = 0.1
QUICK_LAUNCHES = 2
"""The fewest that tell how much launches differ, without which nothing can be judged."""


def quickened(request: GateRequest, config: Config) -> tuple[GateRequest, Config]:
    """The same gate within a minute; what the request names itself (launches, budget, a tracer) stays as it is."""
    profiles = [replace(profile, launches=QUICK_LAUNCHES, case_duration=min(profile.case_duration, QUICK_CASE_SECONDS))
                for profile in (config.devices.cpu, config.devices.cuda)]
    return (replace(request, budget=request.budget or QUICK_SECONDS,
                    trace="none" if request.trace == "auto" else request.trace),
            replace(config, devices=DeviceProfiles(*profiles)))


def _check_request(request: GateRequest, config: Config) -> None:
    if request.launches is not None and request.launches < 1:
        raise UsageError(f"{request.launches} launches", where="--comm-regress-launches", accepted="1 or more")
    if request.budget is not None and not 0 < request.budget < math.inf:
        raise UsageError(f"a budget of {request.budget:g} s", where="--comm-regress-budget", accepted="more than 0 s")
    if request.accept is not None and not request.accept.strip():
        raise UsageError("an empty reason", where="--comm-regress-accept", accepted="one sentence that says why")
    if request.accept is not None and os.environ.get("CI") and not config.gate.accept_in_ci:
        raise UsageError("accepting a new anchor while CI is set", where="--comm-regress-accept",
                         accepted="`gate: {accept_in_ci: true}` in the thresholds file",
                         next_step="accept on a desk instead: regress history accept RUN --reason ...")
    for flag, path in (("json", request.json), ("html", request.html)):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"no folder {path.parent}", where=f"--comm-regress-{flag}", accepted="an existing folder")


def plan_cases(config: Config, ranks: RankPlan) -> tuple[PlannedCase, ...]:
    """The file's cases on this machine; those that cannot run here with the reason.

    Where the file has none for this machine's device, those of the other device are shown as not runnable.
    """
    planned = [PlannedCase(case, _unfit(case, ranks)) for case in config.plan(ranks.device, ranks.world_size)]
    if planned:
        return tuple(planned)
    other = "cuda" if ranks.device == "cpu" else "cpu"
    lacking = "needs an NVIDIA GPU, and there is none here" if other == "cuda" else \
        "runs on the CPU only; choose it with --comm-regress-device cpu"
    return tuple(PlannedCase(case, lacking) for case in config.plan(other, 2))


def _unfit(case: Case, ranks: RankPlan) -> str | None:
    try:
        plan_ranks(ranks.device, case.world_size)
    except EnvironmentUnfitError as error:
        return error.text
    return None


@dataclass(slots=True)
class Gate:
    """One gate from plan to stored run.

    factory: makes launchers; real ones when None. interrupted: what was kept when the user stopped it.
    """

    request: GateRequest
    config: Config
    shelves: Shelves
    ranks: RankPlan
    plan: tuple[PlannedCase, ...]
    tracer: Tracer
    factory: LauncherFactory | None = None
    interrupted: GateOutcome | None = None
    devices: Devices | None = field(default_factory=open_devices)
    gpu_sharing: str | None = None
    _environment: Environment | None = None
    _commit: Commit | None = None

    @property
    def environment(self) -> Environment:
        """Facts of this machine and its software, read once."""
        if self._environment is None:
            nsys = self.tracer.nsys
            self._environment = collect(self.ranks, self.devices, gpu_sharing=self.gpu_sharing,
                                        environment=without_place(os.environ, self.request.root),
                                        reported={"nsys_version": nsys.version} if nsys is not None else {})
        return self._environment

    def share_gpu(self, sharing: GpuSharing | None) -> None:
        """Notes how the ranks share the one GPU: another way of sharing is another environment.

        All else stays as it was read: a GPU that was lost since tells nothing of itself any more.
        """
        self.gpu_sharing = None if sharing is None else sharing.value
        if self._environment is not None and "gpu_sharing" in self._environment.must_match:
            self._environment = replace(self._environment, must_match={
                **self._environment.must_match, "gpu_sharing": self.gpu_sharing})

    @property
    def commit(self) -> Commit:
        """The commit under test, read once."""
        if self._commit is None:
            self._commit = read_commit(self.request.root, main_branch=self.config.gate.main_branch)
        return self._commit

    def header(self) -> list[str]:
        """Devices, link, backend and versions; then how old the baseline is."""
        lines = [describe_devices(self.ranks, self.environment)]
        if self.request.measure:
            with open_history(self.request.history, repository=self.request.root) as history:
                newest = next(history.runs(1, environment=self.environment.fingerprint), None)
            lines.append(f"no run of this environment yet in {history.location}" if newest is None else
                         f"newest run of this environment {newest.run_id}, "
                         f"{newest.started_at[:16].replace('T', ' ')} UTC, commit "
                         f"{(newest.commit.sha or 'unknown')[:10]}, in {history.location}")
        return lines

    def policies(self, cases: Sequence[Case], *, untraced: bool = False) -> dict[tuple[str, str], Mapping[str, object]]:
        """What this gate judges, and how. untraced: there was no traced launch, though a tracer is at hand."""
        return gated_policies(self.config, self.shelves, cases, traced=self.tracer.kind != "none" and not untraced,
                              shared_gpu=self.ranks.shared_gpu)

    def base(self) -> ChosenBase:
        """The commit a suspicion is confirmed against: the one named; in CI, by default, where the branch left main."""
        if self.request.base is not None:
            return resolve_base(self.request.root, self.request.base, dirty=self.commit.dirty)
        return ChosenBase(default_base(self.request.root, self.config.gate.main_branch, os.environ)
                          if os.environ.get("CI") else None)

    def run(self, cases: Sequence[Case], observer: Observer) -> GateOutcome:
        """Measures the cases, judges, stores, publishes.

        Raises RegressError where the whole gate cannot go on (lock not to be had, base not to be checked out).
        KeyboardInterrupt, SIGTERM too, goes through after the ranks have ended and what was finished has been stored
        as partial.
        """
        from regress.gate_work import GateWork

        base = self.base()
        with _machine_refusals(), ExitStack() as stack:
            stack.enter_context(hold_lock(host_lock_path(), "the devices of this host",
                                          wait_seconds=self.config.gate.lock_wait, on_wait=observer.message))
            history = stack.enter_context(open_history(self.request.history, repository=self.request.root))
            stack.enter_context(terminated_as_interrupted())
            work = GateWork(self, history, observer, tuple(cases), base.sha)
            if base.warning is not None:
                work.warn(base.warning)
            return work.run(stack)


@contextmanager
def _machine_refusals() -> Iterator[None]:
    """What the machine refuses to a gate at work (a full disk under TMPDIR, no process more) as an error of ours."""
    try:
        yield
    except OSError as error:
        raise MeasurementError(f"this machine refuses: {error.strerror or error}", where=str(error.filename or ""),
                               accepted="a folder for temporary files with room, in which this user may write",
                               next_step="make room, or set TMPDIR to another folder; `regress doctor` looks closer"
                               ) from error


def gated_policies(config: Config, shelves: Shelves, cases: Sequence[Case], *, traced: bool = True,
                   shared_gpu: bool = False) -> dict[tuple[str, str], Mapping[str, object]]:
    """The options of every detector for each series to judge: gated metrics, and those that the file names.

    traced: False where no tracer runs, so that what only a trace gives is not missed. shared_gpu: two ranks share a GPU
    and talk over sockets, which is as noisy as a CPU host (7 to 28 % over launches on an H200), so that the effect that
    matters by default is a CPU host's.
    """
    found: dict[tuple[str, str], Mapping[str, object]] = {}
    for case in cases:
        for name, metric in shelves.metrics_of(case.workload).items():
            if (metric.gated or config.names(case, name)) and (traced or metric.from_trace is None):
                policy = config.policy(case, name)
                shift = policy.get("shift")
                if shared_gpu and isinstance(shift, ShiftOptions) and shift.effect is None:
                    policy["shift"] = replace(shift, effect=default_effect(metric.unit, "cpu"))
                found[case.id, name] = policy
    return found
