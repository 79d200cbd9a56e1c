"""The traced launch: one more launch under a profiler, off the clock of the gated figures, and what it explains.

Nothing here can lose or change a timing: a profiler that fails leaves a warning, and the trace is judged, not the
profiler's exit status.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from regress.circumstances import TRACING, Beside, findings, known, known_before
from regress.diagnose import Circumstances
from regress.errors import RegressError, TraceUnfitError, UsageError
from regress.measure.launch import LaunchResult
from regress.measuring import Campaign, Task
from regress.metrics import Metric
from regress.outcomes import incorrectness
from regress.record import Case, CaseOutcome, Diagnosis, Launch, Measurement, TimingMode
from regress.trace.analysis import Analysis
from regress.trace.kept import forget_old, keep_trace
from regress.trace.nccl_log import NcclLog, environment_for, read_logs
from regress.trace.nsys import Nsys, find
from regress.trace.nsys_run import Collected, collect, new_session, profile_command, shutdown_session
from regress.trace.read import read_traces
from regress.units import format_change


@dataclass(frozen=True, slots=True)
class Tracer:
    """Which profiler explains the run. kind: "nsys", "kineto" or "none"; warnings: why not a better one."""

    kind: str
    nsys: Nsys | None = None
    gpu_metrics: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Traced:
    """What traced launches gave. artifacts: where the traces are kept, by what they are."""

    diagnoses: tuple[Diagnosis, ...] = ()
    warnings: tuple[str, ...] = ()
    artifacts: Mapping[str, str] = field(default_factory=dict)


def choose_tracer(wish: str, device: str) -> Tracer:
    """The profiler for this machine; `wish` as in --comm-regress-trace.

    auto: nsys on GPUs where it is found and its importer loads, else torch.profiler. Raises UsageError where nsys
    was asked for and there is none.
    """
    if wish in ("none", "kineto"):
        return Tracer(wish)
    if wish == "auto" and device == "cpu":
        return Tracer("kineto")
    nsys = find()
    if nsys is None:
        if wish == "nsys":
            raise UsageError("no nsys was found", where="--comm-regress-trace nsys",
                             accepted="nsys on PATH, in NVIDIA's folders, or named by REGRESS_NSYS",
                             next_step="install Nsight Systems, or use torch.profiler: --comm-regress-trace kineto")
        return Tracer("kineto", warnings=("no nsys was found, so torch.profiler explains this run; "
                                          "`regress doctor` says where it was looked for",))
    if nsys.importer.obstacle:
        if wish == "nsys":
            raise UsageError(f"{nsys.path} cannot write reports: {nsys.importer.obstacle}",
                             where="--comm-regress-trace nsys", next_step="install what it lacks; see `regress doctor`")
        return Tracer("kineto", warnings=(f"torch.profiler explains this run: {nsys.importer.obstacle}",))
    refused = nsys.gpu_metrics_obstacle if device == "cuda" else ""
    warnings = (f"traced without GPU metrics: {refused}",) if refused else ()
    return Tracer("nsys", nsys, device == "cuda" and not refused and nsys.gpu_metrics_flag is not None, warnings)


def traced_cases(cases: Sequence[Case], device: str) -> tuple[Case, ...]:
    """The cases worth a trace: all on GPUs; on the CPU a collective has no kernels, so training steps only."""
    return tuple(case for case in cases if device == "cuda" or case.timing is TimingMode.STEP)


def trace_cases(tracer: Tracer, campaign: Campaign, cases: Sequence[Case], *, session: int = 0,
                keep: Path | None = None, beside: Beside | None = None) -> Traced:
    """One traced launch for each world size; its readings join the campaign's launches under the role "traced".

    keep: folder of this run that the traces are copied to, see `regress.trace.kept`; None throws them away. beside:
    what else is known of this run, and the run to compare with.
    """
    if tracer.kind == "none":
        return Traced()
    found = Traced()
    chosen = traced_cases(cases, campaign.ranks.device)
    for world_size in sorted({case.world_size for case in chosen}):
        task = Task(tuple(case for case in chosen if case.world_size == world_size), "traced", session, world_size)
        try:
            one = _trace(tracer, campaign, task, keep, beside or Beside())
        except (OSError, RegressError) as error:  # a full disk, a profiler that is gone: the timings stay what they are
            what = error.text if isinstance(error, RegressError) else \
                f"{error.filename or 'a file'}: {error.strerror or error}"
            one = Traced(warnings=(f"no trace of this run: {what}",))
        found = Traced(found.diagnoses + one.diagnoses, found.warnings + one.warnings,
                       {**found.artifacts, **one.artifacts})
    if keep is not None:
        forget_old(keep.parent)
    return found


def _trace(tracer: Tracer, campaign: Campaign, task: Task, keep: Path | None, beside: Beside) -> Traced:
    campaign.observer.message(f"traced launch of {len(task.cases)} case{'s' if len(task.cases) > 1 else ''} "
                              f"with {'torch.profiler' if tracer.kind == 'kineto' else 'nsys'}")
    result, paths, warnings = _launch(tracer, campaign, task)
    if not paths and tracer.gpu_metrics and any("GPU" in text for text in warnings):
        result, paths, again = _launch(replace(tracer, gpu_metrics=False), campaign, task)
        warnings = (*warnings, *again)
    log = read_logs(Path(result.folder)) if result.folder else NcclLog()
    beside = replace(beside, cost_per_gpu_hour=campaign.config.gate.cost_per_gpu_hour)
    outcomes: list[CaseOutcome] = []
    diagnoses: list[Diagnosis] = []
    evidence: dict[str, str] = {}
    for case, results in zip(result.cases, result.results, strict=True):
        error = result.error if paths and result.error else incorrectness(case, results)
        if error is not None or not paths:
            warnings = (*warnings, f"{case.id} was not traced: {error}") if error is not None else warnings
            continue
        steps = _steps(campaign, case, result)
        outcome, rules = _read(case, paths, campaign.metrics[case.workload],
                               lambda analysis: known(analysis, log, result.logs, beside),
                               replace(beside, added=0.0 if steps is None else steps.traced - steps.untraced))
        outcomes.append(outcome)
        if not outcome.measurements:
            warnings = (*warnings, *(f"{case.id}: {text}" for text in outcome.warnings))
        diagnoses += [one for one in rules if one.case is not None or one not in diagnoses]
        if steps is not None:
            cost = f"step_seconds by {format_change(steps.traced / steps.untraced - 1)}; gated figures are untraced"
            evidence[f"{TRACING}{case.id}"] = cost
            campaign.observer.message(f"tracing {case.id} changed {cost}")
    campaign.launches.append(Launch(
        result.index, "traced", result.seed, result.started_at, result.wall_seconds, result.rank_wall_seconds,
        tuple(outcomes), task.session, None, (*result.warnings, *log.warnings),
        log.decisions | evidence))
    artifacts = {}
    if keep is not None and paths:
        try:
            keep_trace(paths, keep, result.index)
            artifacts["trace"] = str(keep)
        except OSError as error:
            warnings = (*warnings, f"the trace is not kept: {keep}: {error.strerror or error}")
    return Traced(tuple(diagnoses), tuple(dict.fromkeys(warnings)), artifacts)


def _launch(tracer: Tracer, campaign: Campaign, task: Task) -> tuple[LaunchResult, tuple[Path, ...], tuple[str, ...]]:
    """The launch, the trace files it left, and why there are none."""
    index = len(campaign.launches)
    folder = campaign.scratch / f"launch{index:03d}-traced{'' if tracer.gpu_metrics else '-plain'}"
    folder.mkdir(parents=True, exist_ok=True)
    spec = campaign.spec(task, folder, tracer.kind)
    cuda = campaign.ranks.device == "cuda"
    output, session, started = folder / "trace.nsys-rep", new_session(), time.time()
    prefix = () if tracer.nsys is None else profile_command(
        tracer.nsys, output, gpu_metrics=tracer.gpu_metrics, cuda=cuda, session=session)
    environment = {**campaign.environment, **(environment_for(folder) if cuda else {})}
    try:
        result = campaign.kept(campaign.launcher(task.cases[0].world_size).launch(
            spec, index=index, role="traced", deadline_seconds=campaign.config.gate.launch_deadline,
            case_deadline_seconds=campaign.config.gate.case_deadline, environment=environment, command_prefix=prefix))
    finally:
        if tracer.nsys is not None:
            shutdown_session(tracer.nsys, session)
    if tracer.nsys is None:
        return result, tuple(sorted(folder.glob("rank*.kineto.json.gz"))), ()
    said = folder / "agent" / "output.log"
    found: Collected = collect(tracer.nsys, output, log=said.read_text(errors="replace") if said.is_file() else "",
                               started=started, exit_status=result.command_exit, cuda=cuda)
    warnings = (*found.warnings, *([f"no trace of this run: {found.error}"] if found.error else []))
    return result, (found.sqlite,) if found.sqlite is not None else (), warnings


def _read(case: Case, paths: Sequence[Path], metrics: Mapping[str, Metric],
          know: Callable[[Analysis], Circumstances], beside: Beside) -> tuple[CaseOutcome, list[Diagnosis]]:
    """The readings of one case from the trace of its launch, and what the rules say."""
    try:
        analysis = read_traces(paths, within=f"case:{case.id}")
        if len(analysis.lanes) != case.world_size:
            raise TraceUnfitError(f"{len(analysis.lanes)} of {case.world_size} ranks are in the trace")
        measured = []
        for name, metric in metrics.items():
            reading = metric.from_trace(analysis) if metric.from_trace is not None else None
            if reading is not None:
                measured.append(Measurement(name, metric.unit, metric.better, reading.value,
                                            warnings=reading.warnings, source=analysis.tracer.value))
        before, why_not = known_before(case, analysis, beside)
        warnings = (*analysis.warnings, *([why_not] if why_not is not None else []))
        said = findings(case, know(analysis), before, beside.added)
        return CaseOutcome(case, tuple(measured), warnings=warnings), said
    except RegressError as error:
        return CaseOutcome(case, warnings=(f"its trace cannot be used: {error.text}",)), []


@dataclass(frozen=True, slots=True)
class _Steps:
    """Seconds of a step in the traced launch, and the median of the untraced ones before it."""

    traced: float
    untraced: float


def _steps(campaign: Campaign, case: Case, traced: LaunchResult) -> _Steps | None:
    """What tracing did to the time of a step; figures of a traced launch are never judged."""
    metric = campaign.metrics[case.workload].get("step_seconds")
    results = traced.results[traced.cases.index(case)]
    present = tuple(result for result in results if result is not None)
    if metric is None or metric.from_ranks is None or case.timing is not TimingMode.STEP:
        return None
    slowed = metric.from_ranks(metric, case, present)
    plain = sorted(found.value for launch in campaign.launches if launch.role == "head"
                   for outcome in launch.outcomes if outcome.case == case
                   for found in [outcome.get("step_seconds")] if found is not None)
    if slowed is None or not plain or not plain[len(plain) // 2]:
        return None
    return _Steps(slowed.value, plain[len(plain) // 2])
