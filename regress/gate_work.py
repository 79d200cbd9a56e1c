"""One gate at work: launches, the traced launch, confirmation, then the run as a record, stored and published."""

from __future__ import annotations

import datetime
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from regress.circumstances import Beside
from regress.confirming import Confirmation
from regress.errors import EXIT_INTERRUPTED, EXIT_UNTRUSTED, HistoryWriteError, RegressError
from regress.history.store import History
from regress.judge.baseline import Baseline, environment_changes, select
from regress.judge.verdict import Downgrade, HealthNote, Judgement, Policies, judge
from regress.measure.environment import rank_gpus
from regress.measure.fitness import assess
from regress.measure.health import HealthMonitor
from regress.measure.mps import own_mps
from regress.measure.sharing import GpuSharing, sharing_from_durations
from regress.measure.torchrun import TorchrunLauncher
from regress.measuring import Campaign, Observer
from regress.publishing import publish_run
from regress.record import Acceptance, Case, Diagnosis, Run
from regress.reporting import write_report
from regress.result import GateOutcome, gate_result, result_json
from regress.stopping import undisturbed
from regress.tracing import trace_cases, traced_cases
from regress.units import format_seconds
from regress.whole_file import write_whole

if TYPE_CHECKING:
    from regress.session import Gate

INTERRUPTED = "interrupted: what was finished is kept as a partial run, which is no baseline"
RUNS_READ = 200
"""Runs of the main branch looked at for a baseline: its window of 20 commits, with room for reruns and failed ones."""


def utc_now() -> str:
    """The time now, UTC, ISO 8601 with milliseconds."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")


@dataclass(slots=True)
class GateWork:
    """The moving parts of one run of a gate. base_sha: the commit to confirm against, None without one.

    clock: seconds, as time.monotonic has them. untraced: there was no time for a traced launch.
    """

    gate: Gate
    history: History
    observer: Observer
    cases: tuple[Case, ...]
    base_sha: str | None
    run_id: str = field(default_factory=lambda: secrets.token_hex(6))
    started_at: str = field(default_factory=utc_now)
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    untraced: bool = False
    warnings: dict[str, None] = field(default_factory=dict)
    diagnoses: tuple[Diagnosis, ...] = ()
    artifacts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def budget(self) -> float:
        """Seconds for the whole gate, counted from when the devices are its own."""
        asked = self.gate.request.budget
        return asked if asked is not None else self.gate.config.gate.budget

    def seconds_left(self) -> float:
        """What is left of the budget; negative once it is overrun."""
        return self.began + self.budget - self.clock()

    @property
    def seed(self) -> int:
        """What orders of cases and of head and base are shuffled by; recorded with each launch."""
        return int(self.run_id[:8], 16)

    def run(self, stack: ExitStack) -> GateOutcome:
        """All of it. KeyboardInterrupt goes through once what was finished is stored."""
        gate = self.gate
        gpus = rank_gpus(gate.ranks, gate.devices, os.environ) if gate.devices is not None else ()
        shared = gate.ranks.shared_gpu
        health = stack.enter_context(HealthMonitor(
            gate.devices, gpus, processes_expected=gate.ranks.world_size + 1 if shared else 1))
        campaign = self.campaign(stack)
        campaign.around = health.contention.launch
        baseline = self.baseline()
        try:
            self.screen(campaign)
            self.trace(campaign, self.cases, 0, baseline, health)
            if shared:
                gate.share_gpu(self.sharing(campaign))
                baseline = self.baseline()
            judgement = Confirmation(self, campaign, baseline, health, stack, self.base_sha).run()
        except KeyboardInterrupt:
            with undisturbed():
                judgement = judge(campaign.launches, baseline, self.policies(),
                                  health=self.health_notes(health))
                self.warn(INTERRUPTED if campaign.launches else "interrupted before anything was finished")
                gate.interrupted = self.finish(campaign, judgement, baseline, health, partial=True)
            raise
        over = -self.seconds_left()
        if over > 0:
            self.warn(f"the gate took {format_seconds(self.budget + over)}, {format_seconds(over)} more than its time "
                      f"budget of {format_seconds(self.budget)}: every case is launched once, and what has begun is "
                      "finished")
        return self.finish(campaign, judgement, baseline, health, partial=False)

    def screen(self, campaign: Campaign) -> None:
        """Launches of all cases: one for every world size in any event, then as many as the budget has room for."""
        gate = self.gate
        wish = gate.request.launches or gate.config.device(gate.ranks.device).launches
        tasks = campaign.screening(self.cases, wish, self.seed)
        sizes = len({case.world_size for case in self.cases})
        for made, _ in enumerate(campaign.run(tasks), 1):
            rounds, within_round = divmod(len(tasks) - made, sizes)
            cost, left = campaign.expected(self.cases), self.seconds_left()
            if rounds and not within_round and cost > left:
                needed = self.budget - left + rounds * cost
                self.warn(f"{len(tasks) - made} of {len(tasks)} launches were left out, as the time budget of "
                          f"{format_seconds(self.budget)} has no room for them; all would take a budget of about "
                          f"{format_seconds(needed)}")
                break

    def policies(self) -> Policies:
        """What is judged, and how: without what only a trace gives where there was no time for one."""
        return self.gate.policies(self.cases, untraced=self.untraced)

    def campaign(self, stack: ExitStack) -> Campaign:
        """Where launches are made; with the multi-process service where ranks share the one GPU."""
        gate = self.gate
        campaign = Campaign(gate.config, gate.ranks, gate.request.root,
                            {name: gate.shelves.metrics_of(name) for name in gate.shelves.workloads}, self.observer)
        if gate.factory is not None:
            campaign.factory = gate.factory
        state = gate.request.root / ".comm-regress" if "://" in gate.request.history else Path(gate.request.history)
        campaign.hangs = state / "hangs" / self.run_id
        stack.enter_context(campaign)
        launcher = campaign.launcher(gate.ranks.world_size)
        if gate.ranks.shared_gpu and isinstance(launcher, TorchrunLauncher):
            service = stack.enter_context(own_mps(mark=launcher.mark, entrust=launcher.entrust))
            campaign.environment = dict(service.environment)
            gate.share_gpu(GpuSharing.MPS if service.running else None)
            if service.reason is not None:
                self.warn(service.reason)
        return campaign

    def sharing(self, campaign: Campaign) -> GpuSharing | None:
        """How the GPU was really shared, from the durations of the collectives; as started where they cannot tell."""
        seconds: dict[int, list[float]] = {}
        for launch in campaign.launches:
            for outcome in launch.outcomes:
                size, mean = outcome.case.message_size_bytes, outcome.get(f"{outcome.case.workload}_seconds")
                if launch.role == "head" and size is not None and mean is not None:
                    seconds.setdefault(size, []).extend(mean.samples)
        started = None if self.gate.gpu_sharing is None else GpuSharing(self.gate.gpu_sharing)
        return sharing_from_durations(seconds) or started

    def baseline(self) -> Baseline:
        """The window and anchor for this commit and environment.

        Runs of other environments are read only where none matches, to say what the closest one differs in.
        """
        window = self.gate.config.gate.window
        earlier = list(self.history.candidates(self.gate.environment.fingerprint, max(RUNS_READ, 2 * window))) \
            or list(self.history.runs(RUNS_READ))
        for problem in self.history.problems():
            self.warn(f"not read: {problem.text}")
        return select(self.gate.commit, self.gate.environment, self.started_at, earlier[::-1], limit=window)

    def health_notes(self, health: HealthMonitor) -> list[HealthNote]:
        """What speaks against the machine; mere warnings are kept apart."""
        notes = []
        for level, text in assess(health.snapshot()):
            if level == "warn":
                self.warn(text)
            else:
                notes.append(HealthNote(Downgrade(level), text))
        if self.gate.gpu_sharing == GpuSharing.TIME_SLICED.value:
            sliced = ("the GPU time-slices between the ranks, so durations are multiples of a slice; start the CUDA "
                      "multi-process service or use a GPU a rank")
            self.warn(sliced)
            notes.append(HealthNote(Downgrade.INVALID, sliced, timeless=True))
        return notes

    def warn(self, text: str) -> None:
        """Keeps a warning, once."""
        self.warnings[text] = None

    def launch_notes(self, campaign: Campaign) -> None:
        """What went wrong with whole launches although their results are complete: a rank that died at its very end,
        a launch that was made twice."""
        for launch in campaign.launches:
            for text in launch.warnings:
                self.warn(f"launch {launch.index}: {text}")
            if launch.error is not None and all(outcome.error is None for outcome in launch.outcomes):
                self.warn(f"launch {launch.index}, whose results are complete and were used: {launch.error}")

    def trace(self, campaign: Campaign, cases: Sequence[Case], session: int, baseline: Baseline,
              health: HealthMonitor) -> None:
        """One traced launch, off the clock of the gated figures, explained beside the newest run of the baseline."""
        for text in self.gate.tracer.warnings:
            self.warn(text)
        if self.gate.tracer.kind != "none" and not self.room_for_trace(campaign, cases, session):
            return
        location = self.gate.request.history
        traces = None if "://" in location else Path(location) / "traces"
        newest = baseline.runs[-1] if baseline.runs else None
        beside = Beside(health.snapshot(), self.gate.environment, newest,
                        traces / newest.run_id if traces is not None and newest is not None else None)
        traced = trace_cases(self.gate.tracer, campaign, cases, session=session,
                             keep=traces / self.run_id if traces is not None else None, beside=beside)
        redone = {case.id for case in cases}
        self.diagnoses = tuple(found for found in self.diagnoses if found.case not in redone) + traced.diagnoses
        self.artifacts.update(traced.artifacts)
        for text in traced.warnings:
            self.warn(text)

    def room_for_trace(self, campaign: Campaign, cases: Sequence[Case], session: int) -> bool:
        """Whether a traced launch still fits into the budget; says so where it does not."""
        cost, left = campaign.expected(traced_cases(cases, campaign.ranks.device)), max(self.seconds_left(), 0.0)
        if cost <= left:
            return True
        self.untraced = self.untraced or session == 0
        lost = "nothing is explained, and what only a trace gives is not judged" if session == 0 else \
            "what only a trace gives is not measured again"
        self.warn(f"no traced launch, so {lost}: it takes about {format_seconds(cost)}, and "
                  f"{format_seconds(left)} of the time budget of {format_seconds(self.budget)} are left")
        return False

    def finish(self, campaign: Campaign, judgement: Judgement, baseline: Baseline, health: HealthMonitor, *,
               partial: bool) -> GateOutcome:
        """The run as a record, stored, published and written."""
        gate, request = self.gate, self.gate.request
        self.launch_notes(campaign)
        for level, text in assess(health.snapshot()):
            if level == "invalid":  # also where no figure is left that it could be held against
                self.warn(text)
        if campaign.hangs is not None and campaign.hangs.is_dir():
            self.artifacts["hangs"] = str(campaign.hangs)
        run = Run(
            self.run_id, self.started_at, utc_now(), gate.commit, gate.environment, tuple(campaign.launches),
            judgement.verdict, judgement.verdicts, judgement.findings, self.diagnoses, self._attempt(baseline),
            partial, _version(), health.snapshot(), (*judgement.warnings, *self.warnings), dict(self.artifacts),
            None if partial else self._acceptance())
        status = EXIT_INTERRUPTED if partial else judgement.exit_status
        if campaign.launches:
            status = self._store(run, status)
        if not partial:
            for text in publish_run(gate.config, gate.shelves, run, Path(request.history), request.root):
                self.warn(text)
        newest = baseline.runs[-1] if baseline.runs else None
        changes = environment_changes(gate.environment, newest.environment) if newest is not None else ()
        for kind, path in (("json", request.json), ("html", request.html)):
            if path is not None:
                self.artifacts[kind] = str(path)
        self._write_html()
        run = replace(run, artifacts=dict(self.artifacts), warnings=(*judgement.warnings, *self.warnings))
        return self._written(GateOutcome(run, gate_result(run, status), status, changes))

    def _written(self, outcome: GateOutcome) -> GateOutcome:
        """Writes the JSON where it was asked for; a reader that waits for it in vain must not find a green build."""
        target = self.gate.request.json
        if target is None:
            return outcome
        try:
            write_whole(target, result_json(outcome.result))
        except OSError as error:
            status = outcome.exit_status or EXIT_UNTRUSTED
            warning = f"{target}: the result cannot be written: {error.strerror or error}"
            result = replace(outcome.result, exit_status=status, warnings=(*outcome.result.warnings, warning),
                             artifacts={k: v for k, v in outcome.result.artifacts.items() if k != "json"})
            return replace(outcome, result=result, exit_status=status)
        return outcome

    def _attempt(self, baseline: Baseline) -> int:
        sha = self.gate.commit.sha
        return 1 + (sum(run.commit.sha == sha for run in baseline.recent) if sha is not None else 0)

    def _acceptance(self) -> Acceptance | None:
        reason = self.gate.request.accept
        if reason is None:
            return None
        who = os.environ.get("GITHUB_ACTOR") or os.environ.get("USER") or "unknown"
        return Acceptance(reason, who, utc_now(), tuple(sorted(case.id for case in self.cases)))

    def _store(self, run: Run, status: int) -> int:
        """Stores the run; a full disk costs the memory and not the verdict."""
        try:
            self.artifacts["run"] = self.history.add(run)
            self.history.prune(self.gate.config.gate.keep_samples)
        except HistoryWriteError as error:
            self.warn(error.text)
            return status or error.exit_status
        return status

    def _write_html(self) -> None:
        """The report beside the verdict; what goes wrong with it is a warning."""
        target = self.gate.request.html
        if target is None:
            return
        try:
            write_report(self.history, target, self.gate.request.root, self.gate.config)
        except RegressError as error:
            self.artifacts.pop("html", None)
            self.warn(f"no report was written: {error.text}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("comm-regress")
    except PackageNotFoundError:
        return ""
