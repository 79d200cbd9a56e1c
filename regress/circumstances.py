"""What the gate knows beside the trace of a launch, and what the rules make of all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from regress.diagnose import COST, CRITICAL, INFO, SEVERITIES, WARNING, Circumstances, Need, diagnose_run, rules
from regress.errors import RegressError, TraceUnfitError
from regress.record import Case, Diagnosis, Environment, Run, Scalar, TimingMode
from regress.trace.analysis import Analysis
from regress.trace.kept import kept_traces
from regress.trace.nccl_log import NcclLog, is_own_line
from regress.trace.rank_output import trouble
from regress.trace.read import read_traces
from regress.units import format_seconds

TRACING = "tracing "
"""What evidence about the tracer itself begins with; everything else a traced launch keeps is NCCL's choices."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What is known of a run while its traced launch is explained.

    health: facts of GPUs and host so far. before: the run to compare with, as stored; what differs from its traces is
    explained. before_traces: the folder they are in, None for where the run itself says. cost_per_gpu_hour: turns a
    slower step into money. added: seconds that a step of the traced launch took longer than an untraced one.
    """

    health: Mapping[str, Scalar] = field(default_factory=dict)
    environment: Environment | None = None
    before: Run | None = None
    before_traces: Path | None = None
    cost_per_gpu_hour: float | None = None
    added: float = 0.0


def known(analysis: Analysis, log: NcclLog, output: Sequence[str], beside: Beside) -> Circumstances:
    """One case of a traced launch. log: what NCCL said; output: the files that hold what ranks printed."""
    lines = [line for path in output if Path(path).is_file()
             for line in Path(path).read_text(errors="replace").splitlines() if not is_own_line(line)]
    said = log.versions or log.members or log.problems
    return Circumstances(analysis, log if said else None, trouble(lines), beside.health, beside.environment,
                         beside.cost_per_gpu_hour)


def known_before(case: Case, analysis: Analysis, beside: Beside) -> tuple[Circumstances | None, str | None]:
    """The same case in the run to compare with, and why not where its traces are there and cannot be used."""
    run = beside.before
    if run is None:
        return None, None
    folder = beside.before_traces or Path(run.artifacts.get("trace", ""))
    earlier, why_not = _kept(case, kept_traces(folder)) if folder != Path() else (None, None)
    if earlier is None:
        return None, f"not explained against run {run.run_id}: {why_not}" if why_not is not None else None
    if earlier.tracer is not analysis.tracer or len(earlier.lanes) != len(analysis.lanes):
        return None, f"not explained against run {run.run_id}: it was traced otherwise"
    return Circumstances(earlier, health=run.health, environment=run.environment, decisions=_choices(run)), None


def _kept(case: Case, launches: Sequence[Sequence[Path]]) -> tuple[Analysis | None, str | None]:
    """The case in the newest of those launches that holds it, and why it is in none of them; None without launches."""
    errors: list[RegressError] = []
    for files in launches:
        try:
            return read_traces(files, within=f"case:{case.id}"), None
        except RegressError as error:
            errors.append(error)
    # A launch without the case is as it should be, a damaged one is not.
    told = next((error for error in errors if not isinstance(error, TraceUnfitError)), errors[0] if errors else None)
    return None, told.text if told is not None else None


def _choices(run: Run) -> dict[str, str]:
    """What NCCL chose in the run's traced launches, the latest of which holds."""
    return {what: how for launch in run.launches if launch.role == "traced"
            for what, how in launch.evidence.items() if not what.startswith(TRACING)}


def findings(case: Case, seen: Circumstances, before: Circumstances | None, added: float = 0.0) -> list[Diagnosis]:
    """What the rules say of a case: worst first. Findings about the whole run have no case.

    A collective alone has no step, and few iterations under a tracer are no fault: of it only warnings are kept.
    added: see `tempered`.
    """
    about_run = {name for name, rule in rules().items()
                 if rule.needs and set(rule.needs) <= {Need.NCCL_LOG, Need.MESSAGES, Need.HEALTH}}
    found = tempered(diagnose_run(seen, before), added)
    return [replace(one, case=None if one.rule in about_run else case.id) for one in found
            if case.timing is TimingMode.STEP or one.severity != INFO]


def tempered(found: Sequence[Diagnosis], added: float) -> list[Diagnosis]:
    """The findings, none critical of which more than half may belong to the traced launch alone.

    added: seconds that its steps took longer than untraced ones, through the profiler or what else ran meanwhile.
    """
    return sorted((_tempered(one, added) for one in found), key=lambda one: SEVERITIES.index(one.severity))


def _tempered(finding: Diagnosis, added: float) -> Diagnosis:
    cost = finding.evidence.get(COST)
    if finding.severity != CRITICAL or not isinstance(cost, float) or added <= cost / 2:
        return finding
    return replace(finding, severity=WARNING, cause=f"{finding.cause}; steps of the traced launch took "
                   f"{format_seconds(added)} longer than untraced ones, so this may be of that launch alone")
