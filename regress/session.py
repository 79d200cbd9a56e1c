"""The only place that wires rooms: plan, measure, trace, judge, store, publish.

`open_gate` reads everything that can be wrong before anything is measured; `Gate.run` does the rest.
"""

from __future__ import annotations

import datetime
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from regress.catalog import Shelves, open_shelves
from regress.config import Config, load_config
from regress.errors import EnvironmentUnfitError, HistoryWriteError, UsageError
from regress.history.store import History, open_history
from regress.judge.baseline import Baseline, environment_changes, select
from regress.judge.confirm import Budget, next_measurement, unaffordable
from regress.judge.verdict import Downgrade, HealthNote, Judgement, judge
from regress.measure.base import BaseCheckout, base_checkout, resolve_base
from regress.measure.commit import read_commit
from regress.measure.devices import Devices, open_devices
from regress.measure.environment import collect, describe_devices, rank_gpus
from regress.measure.fitness import assess
from regress.measure.health import HealthMonitor
from regress.measure.lock import hold_lock, host_lock_path
from regress.measure.mps import own_mps
from regress.measure.ranks import RankPlan, plan_ranks
from regress.measure.sharing import GpuSharing, sharing_from_durations
from regress.measuring import Campaign, LauncherFactory, Observer, Task
from regress.record import Acceptance, Case, Commit, Diagnosis, Environment, Run
from regress.result import GateResult, gate_result, result_json
from regress.tracing import Traced, choose_tracer, trace_cases


@dataclass(frozen=True, slots=True)
class GateRequest:
    """What the user asked for, whichever face took it.

    root: the repository under test. config: a thresholds file, None for the packaged one. history: folder or URL.
    measure: False when cases are only listed, which touches no history.
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


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """A case of the thresholds file. unfit: why this machine cannot run it, None when it can."""

    case: Case
    unfit: str | None = None


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """What a gate came to. environment_changes: reported facts that differ from the newest baseline run."""

    run: Run
    result: GateResult
    exit_status: int
    environment_changes: tuple[str, ...]


def open_gate(request: GateRequest) -> Gate:
    """Everything up to the first launch; RegressError for whatever cannot work."""
    shelves = open_shelves()
    config = load_config(request.config, shelves.catalog())
    _check_request(request, config)
    ranks = plan_ranks(request.device)
    wished = config.device(ranks.device).ranks
    if wished is not None:
        ranks = plan_ranks(request.device, wished)
    return Gate(request, config, shelves, ranks, plan_cases(config, ranks))


def _check_request(request: GateRequest, config: Config) -> None:
    if request.launches is not None and request.launches < 1:
        raise UsageError(f"{request.launches} launches", where="--comm-regress-launches", accepted="1 or more")
    if request.budget is not None and request.budget <= 0:
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


def utc_now() -> str:
    """The time now, UTC, ISO 8601 with milliseconds."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")


@dataclass(slots=True)
class Gate:
    """One gate from plan to stored run. interrupted: what was kept when the user stopped it."""

    request: GateRequest
    config: Config
    shelves: Shelves
    ranks: RankPlan
    plan: tuple[PlannedCase, ...]
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
            self._environment = collect(self.ranks, self.devices, gpu_sharing=self.gpu_sharing)
        return self._environment

    def share_gpu(self, sharing: GpuSharing | None) -> None:
        """Notes how the ranks share the one GPU: another way of sharing is another environment."""
        self.gpu_sharing = None if sharing is None else sharing.value
        self._environment = None

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
                newest = next(history.runs(1, environment=self.environment.fingerprint, main_only=True), None)
            lines.append(f"no baseline yet in {history.location}: this run becomes the first" if newest is None else
                         f"newest baseline run {newest.run_id} of {newest.started_at[:16].replace('T', ' ')} UTC, "
                         f"commit {(newest.commit.sha or 'unknown')[:10]}, in {history.location}")
        return lines

    def run(self, cases: Sequence[Case], observer: Observer) -> GateOutcome:
        """Measures the cases, judges, stores, publishes.

        Raises RegressError where the whole gate cannot go on (lock not to be had, base not to be checked out).
        KeyboardInterrupt goes through after the ranks have ended and what was finished has been stored as partial.
        """
        base = resolve_base(self.request.root, self.request.base) if self.request.base is not None else None
        with ExitStack() as stack:
            stack.enter_context(hold_lock(host_lock_path(), "the devices of this host",
                                          wait_seconds=self.config.gate.lock_wait, on_wait=observer.message))
            history = stack.enter_context(open_history(self.request.history, repository=self.request.root))
            work = _Work(self, history, observer, tuple(cases), base)
            return work.run(stack)


def gated_policies(config: Config, shelves: Shelves, cases: Sequence[Case]
                   ) -> dict[tuple[str, str], Mapping[str, object]]:
    """The options of every detector for each series to judge: gated metrics, and those that the file names."""
    found: dict[tuple[str, str], Mapping[str, object]] = {}
    for case in cases:
        for name, metric in shelves.metrics_of(case.workload).items():
            if metric.gated or config.names(case, name):
                found[case.id, name] = config.policy(case, name)
    return found


@dataclass(slots=True)
class _Work:
    """The moving parts of one run."""

    gate: Gate
    history: History
    observer: Observer
    cases: tuple[Case, ...]
    base_sha: str | None
    run_id: str = field(default_factory=lambda: secrets.token_hex(6))
    started_at: str = field(default_factory=utc_now)
    began: float = field(default_factory=time.monotonic)
    warnings: list[str] = field(default_factory=list)
    diagnoses: tuple[Diagnosis, ...] = ()
    artifacts: dict[str, str] = field(default_factory=dict)

    def run(self, stack: ExitStack) -> GateOutcome:
        gate, config = self.gate, self.gate.config
        campaign = self.campaign(stack)
        gpus = rank_gpus(gate.ranks, gate.devices, os.environ) if gate.devices is not None else ()
        health = stack.enter_context(HealthMonitor(gate.devices, gpus))
        launches = gate.request.launches or config.device(gate.ranks.device).launches
        baseline = self.baseline()
        try:
            for _ in campaign.run(campaign.screening(self.cases, launches, int(self.run_id[:8], 16))):
                pass
            self.trace(campaign, self.cases)
            if gate.ranks.shared_gpu:
                gate.share_gpu(self.sharing(campaign))
                baseline = self.baseline()
            judgement = self.confirm(campaign, baseline, health, stack)
        except KeyboardInterrupt:
            notes = self.health_notes(health)
            policies = gated_policies(gate.config, gate.shelves, self.cases)
            judgement = judge(campaign.launches, baseline, policies, health=notes)
            gate.interrupted = self.finish(campaign, judgement, baseline, health, partial=True)
            raise
        return self.finish(campaign, judgement, baseline, health, partial=False)

    def campaign(self, stack: ExitStack) -> Campaign:
        """Where launches are made; with the multi-process service where ranks share the one GPU."""
        gate = self.gate
        environment: Mapping[str, str] = {}
        if gate.ranks.shared_gpu and gate.factory is None:
            service = stack.enter_context(own_mps())
            environment = service.environment
            gate.share_gpu(GpuSharing.MPS if service.running else None)
            if service.reason is not None:
                self.warn(service.reason)
        made = Campaign(gate.config, gate.ranks, gate.request.root,
                        {name: gate.shelves.metrics_of(name) for name in gate.shelves.workloads}, self.observer,
                        dict(environment))
        if gate.factory is not None:
            made.factory = gate.factory
        return stack.enter_context(made)

    def sharing(self, campaign: Campaign) -> GpuSharing | None:
        """How the GPU was really shared, from the durations of the collectives."""
        seconds: dict[int, list[float]] = {}
        for launch in campaign.launches:
            for outcome in launch.outcomes:
                size, mean = outcome.case.message_size_bytes, outcome.get(f"{outcome.case.workload}_seconds")
                if launch.role == "head" and size is not None and mean is not None:
                    seconds.setdefault(size, []).extend(mean.samples)
        return sharing_from_durations(seconds)

    def baseline(self) -> Baseline:
        """The window and anchor for this commit and environment."""
        earlier = list(self.history.runs(200))[::-1]
        return select(self.gate.commit, self.gate.environment, self.started_at, earlier,
                      limit=self.gate.config.gate.window)

    def health_notes(self, health: HealthMonitor) -> list[HealthNote]:
        """What speaks against the machine; warnings are kept apart."""
        notes = []
        for level, text in assess(health.snapshot()):
            if level == "warn":
                self.warn(text)
            else:
                notes.append(HealthNote(Downgrade(level), text))
        if self.gate.gpu_sharing == GpuSharing.TIME_SLICED.value:
            notes.append(HealthNote(Downgrade.INVALID, "the GPU time-slices between the ranks, so durations are "
                                    "multiples of a slice; start the CUDA multi-process service or use a GPU a rank"))
        return notes

    def warn(self, text: str) -> None:
        """Keeps a warning once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def trace(self, campaign: Campaign, cases: Sequence[Case]) -> None:
        """One traced launch of every training step, off the clock of the gated numbers."""
        tracer = choose_tracer(self.gate.request.trace, self.gate.ranks.device)
        for text in tracer.warnings:
            self.warn(text)
        traced = trace_cases(tracer, campaign, cases, keep=self.keep_folder())
        self._keep(traced)

    def _keep(self, traced: Traced) -> None:
        self.diagnoses += traced.diagnoses
        self.artifacts.update(traced.artifacts)
        for text in traced.warnings:
            self.warn(text)

    def keep_folder(self) -> Path | None:
        """Where traces are kept beside the history; None where the history is no folder."""
        location = self.gate.request.history
        return None if "://" in location else Path(location) / "traces" / self.run_id

    def confirm(self, campaign: Campaign, baseline: Baseline, health: HealthMonitor, stack: ExitStack) -> Judgement:
        """Judges, and measures what is in doubt again until it is decided or the budget ends."""
        gate = self.gate
        policies = gated_policies(gate.config, gate.shelves, self.cases)
        seed = int(self.run_id[:8], 16)
        budget_seconds = gate.request.budget if gate.request.budget is not None else gate.config.gate.budget
        base: BaseCheckout | None = None
        fresh = 0
        while True:
            judgement = judge(campaign.launches, baseline, policies, planned=self.cases,
                              health=self.health_notes(health))
            doubtful = len(judgement.suspects)
            budget = Budget(budget_seconds - (time.monotonic() - self.began), campaign.estimate.left(doubtful, 1))
            has_base = self.base_sha is not None
            plan = next_measurement(judgement, fresh, budget, has_base=has_base, seed=seed) \
                if gate.config.gate.confirm else None
            if plan is None:
                short = unaffordable(judgement, budget, has_base=has_base)
                if short is not None:
                    self.warn(short)
                return judgement
            self.observer.message(plan.reason)
            if self.base_sha is not None and base is None:
                base = stack.enter_context(base_checkout(gate.request.root, self.base_sha))
            tasks = [Task(tuple(case for case in plan.cases if case.world_size == size), role, plan.session,
                          seed + fresh + number, base if role == "base" else None)
                     for number, role in enumerate(plan.roles)
                     for size in sorted({case.world_size for case in plan.cases})]
            for _ in campaign.run(tasks):
                pass
            fresh += plan.roles.count("head")
            if plan.traced:
                self.trace(campaign, plan.cases)

    def finish(self, campaign: Campaign, judgement: Judgement, baseline: Baseline, health: HealthMonitor,
               partial: bool) -> GateOutcome:
        """The run as a record, stored, written and published."""
        gate = self.gate
        run = Run(
            self.run_id, self.started_at, utc_now(), gate.commit, gate.environment, tuple(campaign.launches),
            judgement.verdict, judgement.verdicts, judgement.findings, self.diagnoses, self._attempt(baseline),
            partial, _version(), health.snapshot(), (*judgement.warnings, *self.warnings), dict(self.artifacts),
            self._acceptance(partial))
        status = judgement.exit_status
        if campaign.launches:
            status = self._store(run, status)
        newest = baseline.runs[-1] if baseline.runs else None
        changes = environment_changes(gate.environment, newest.environment) if newest is not None else ()
        run = replace(run, artifacts=dict(self.artifacts), warnings=(*judgement.warnings, *self.warnings))
        outcome = GateOutcome(run, gate_result(run, status), status, changes)
        if gate.request.json is not None:
            gate.request.json.write_bytes(result_json(outcome.result))
        return outcome

    def _attempt(self, baseline: Baseline) -> int:
        sha = self.gate.commit.sha
        return 1 + (sum(run.commit.sha == sha for run in baseline.recent) if sha is not None else 0)

    def _acceptance(self, partial: bool) -> Acceptance | None:
        reason = self.gate.request.accept
        if reason is None or partial:
            return None
        who = os.environ.get("GITHUB_ACTOR") or os.environ.get("USER") or "unknown"
        return Acceptance(reason, who, utc_now(), tuple(sorted(case.id for case in self.cases)))

    def _store(self, run: Run, status: int) -> int:
        """Stores the run; a full disk costs the memory and not the verdict."""
        if self.gate.request.json is not None:
            self.artifacts["json"] = str(self.gate.request.json)
        try:
            self.artifacts["run"] = self.history.add(run)
            self.history.prune(self.gate.config.gate.keep_samples)
        except HistoryWriteError as error:
            self.warn(error.text)
            return status or error.exit_status
        return status


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("comm-regress")
    except PackageNotFoundError:
        return ""
