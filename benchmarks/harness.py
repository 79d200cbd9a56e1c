"""One launch inside one rank process: the cases in the order given, each result written as soon as it is there.

A case goes through phases: prepare, verify, warm-up, its timing, verify again. After each phase the ranks agree on who
failed. Where all of them still answer, the case is given up on every rank and the next one runs; where they do not,
the communicator is lost and this rank ends with a last line that says where.

In a traced launch all cases are prepared and warmed up first, and the capture window then holds measured work only.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from regress.errors import EnvironmentUnfitError, MeasurementError, RecordError, RegressError, UsageError
from regress.record import Case, LaunchSpec, RankResult, TimingMode, launch_spec_from_json
from regress.shelf import variants

from . import Workload, clock
from .communicator import failed_ranks, join, leave, place_from, set_variables
from .flight import stand_by
from .operation import Check, Operation, RankContext
from .outbox import Outbox
from .tracing import Annotations, annotations_for, open_capture, require_tracer

ValueT = TypeVar("ValueT")


@dataclass(slots=True)
class _Progressing:
    """A case on its way through the phases on this rank."""

    index: int
    case: Case
    workload: Workload | None = None
    operation: Operation | None = None
    pace: clock.Pace | None = None
    seconds: dict[str, tuple[float, ...]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Rank:
    """This rank and what it works with for the whole launch."""

    context: RankContext
    spec: LaunchSpec
    outbox: Outbox
    annotations: Annotations
    init_seconds: float
    shelf: dict[str, Workload]


def main(spec_path: str) -> int:
    """Runs the launch described in the file inside a process that torchrun started; returns the exit status.

    0 when every case was run or given up in an orderly way: results say which. Else the last line on stderr says what
    ended this rank.
    """
    try:
        spec = _read(spec_path)
        sys.path.extend(spec.import_paths)
        rank = _arrive(spec)
        _run_all(rank)
        leave()
    except RegressError as error:
        print(f"comm-regress: {error.text}", file=sys.stderr, flush=True)
        return error.exit_status
    return 0


def _read(spec_path: str) -> LaunchSpec:
    try:
        text = Path(spec_path).read_bytes()
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}", where=spec_path,
                          accepted="a launch file written by the gate") from error
    return launch_spec_from_json(text, spec_path)


def _arrive(spec: LaunchSpec) -> _Rank:
    place = place_from(os.environ)
    require_tracer(spec.tracer)
    set_variables(spec, place, os.environ)
    outbox = Outbox(Path(spec.results_dir), place.rank)
    outbox.progress("", "init", False)
    try:
        stand_by(outbox.folder, place.rank, spec.backend, os.environ)
        context, init_seconds = join(spec, place)
    except ImportError as error:
        raise EnvironmentUnfitError(f"torch cannot be imported: {error}", where=sys.executable,
                                    accepted="a torch built with distributed", next_step="pip install torch") from error
    except RuntimeError as error:
        raise MeasurementError(f"the communicator could not be made: {_first_line(error)}",
                               where=f"rank {place.rank} of {place.world_size}, {spec.backend}") from error
    outbox.progress("", "init", True)
    annotations = annotations_for(spec.tracer)
    annotations.mark_rank(context)
    # What torch made while it was imported stays for good: looking at it costs 0.1 s in every collection.
    gc.collect()
    gc.freeze()
    return _Rank(context, spec, outbox, annotations, init_seconds, variants(sys.modules[__package__], Workload))


def _run_all(rank: _Rank) -> None:
    under_way = [_Progressing(index, case) for index, case in enumerate(rank.spec.cases)]
    if rank.spec.tracer == "none":
        for case in under_way:
            _make_ready(rank, case)
            _measure(rank, case)
            _finish(rank, case, ())
        return
    for case in under_way:
        _make_ready(rank, case)
    close = open_capture(rank.context, rank.spec, rank.annotations)
    for case in under_way:
        _measure(rank, case)
    warnings = close()
    for case in under_way:
        _finish(rank, case, warnings)


def _make_ready(rank: _Rank, under_way: _Progressing) -> None:
    """Prepare, verify, warm-up."""
    operation = _phase(rank, under_way, "prepare", lambda: _prepare(rank, under_way))
    if operation is None:
        return
    under_way.operation = operation
    if operation.verify_first:
        _phase(rank, under_way, "verify", lambda: _verify(under_way, operation))
    under_way.pace = _phase(rank, under_way, "warm-up",
                            lambda: clock.warm_up(rank.context, operation, rank.spec.case_seconds))


def _prepare(rank: _Rank, under_way: _Progressing) -> Operation:
    case = under_way.case
    workload = rank.shelf.get(case.workload)
    if workload is None:
        raise UsageError(f"no workload {case.workload!r}", where=case.id, accepted=", ".join(rank.shelf))
    under_way.workload = workload
    given = dict(case.options)
    known = [option.name for option in dataclasses.fields(workload.options)]
    if unknown := sorted(set(given) - set(known)):
        raise UsageError(f"workload {workload.name} has no option {', '.join(unknown)}", where=case.id,
                         accepted=", ".join(known) or "no options")
    operation = workload.prepare(rank.context, case, workload.options(**given))
    if case.timing not in operation.modes:
        raise UsageError(f"{workload.name} cannot be timed {case.timing.value}", where=case.id,
                         accepted=", ".join(mode.value for mode in operation.modes))
    if case.timing is TimingMode.GRAPH and not rank.context.on_cuda:
        raise UsageError("CUDA graphs need a GPU", where=case.id, accepted="isolated or pipelined timing on the CPU")
    return operation


def _verify(under_way: _Progressing, operation: Operation) -> None:
    check = operation.verify()
    under_way.checks.append(check)
    if check.wrong or check.problem:
        counted = f"{check.wrong} of {check.checked} result elements are wrong" if check.wrong else ""
        raise MeasurementError(": ".join(part for part in (counted, check.problem) if part))


def _measure(rank: _Rank, under_way: _Progressing) -> None:
    """The timed part, in the case's mode; isolated cases get a short pipelined series too, to compare by."""
    operation, pace = under_way.operation, under_way.pace
    if operation is None or pace is None or under_way.error is not None:
        return
    with rank.annotations.range(f"case:{under_way.case.id}"):
        _time(rank, under_way, under_way.case.timing, operation, pace)
        if under_way.case.timing is TimingMode.ISOLATED and rank.spec.tracer == "none":
            _time(rank, under_way, TimingMode.PIPELINED, operation, pace)


def _time(rank: _Rank, under_way: _Progressing, mode: TimingMode, operation: Operation, pace: clock.Pace) -> None:
    traced = rank.spec.tracer != "none"
    call = rank.annotations.around(operation.label, operation.run) if traced else operation.run
    plan = _plan(rank, mode, pace, gated=under_way.case.timing is mode)
    values = _phase(rank, under_way, mode.value, lambda: clock.series(rank.context, mode, call, plan),
                    plan.first * plan.calls)
    if values is not None:
        under_way.seconds[mode.value] = values


def _plan(rank: _Rank, mode: TimingMode, pace: clock.Pace, *, gated: bool) -> clock.Plan:
    single = mode in (TimingMode.ISOLATED, TimingMode.STEP)
    if rank.spec.tracer != "none":
        return clock.TRACED if single else clock.TRACED_BATCHES
    wished = rank.spec.case_seconds
    if single:
        return clock.single_calls(wished)
    if gated:
        return clock.batches(pace.call_seconds, wished)
    return clock.batches(pace.call_seconds, wished / 4, clock.SHORT_BATCHES)


def _finish(rank: _Rank, under_way: _Progressing, warnings: tuple[str, ...]) -> None:
    """Verify again, write the result, let go of the memory."""
    operation = under_way.operation
    if operation is not None and under_way.error is None:
        _phase(rank, under_way, "verify", lambda: _verify(under_way, operation))
    rank.outbox.result(under_way.index, _result(rank, under_way, warnings))
    under_way.operation = None
    gc.collect()


def _phase(rank: _Rank, under_way: _Progressing, name: str, work: Callable[[], ValueT],
           planned: int | None = None) -> ValueT | None:
    """Runs one phase unless the case was given up; gives it up on every rank when it fails on any.

    planned: the calls it will make at least.

    Raises MeasurementError, the result being written, when the other ranks do not answer any more.
    """
    if under_way.error is not None:
        return None
    case_id = under_way.case.id
    value: ValueT | None = None
    rank.outbox.progress(case_id, name, False, None, planned)
    try:
        value = work()
    except Exception as error:  # whatever a workload or a user's step raises belongs in this case's result
        under_way.error = f"{name}: {_words(error)}"
        print(traceback.format_exc(), file=sys.stderr, flush=True)
    where = f"rank {rank.context.rank} of {rank.context.world_size}, {case_id}, {name}"
    try:
        failed = failed_ranks(rank.context, under_way.error is not None, where)
    except MeasurementError as lost:
        under_way.error = under_way.error or f"{name}: {lost.seen}"
        rank.outbox.result(under_way.index, _result(rank, under_way, ()))
        raise MeasurementError(under_way.error, where=f"rank {rank.context.rank} of {rank.context.world_size}, "
                               f"{case_id}", next_step="the communicator is lost, this rank ends") from lost
    if failed and under_way.error is None:
        under_way.error = f"{name}: given up because it failed on rank {', '.join(map(str, failed))}"
    rank.outbox.progress(case_id, name, True, None, planned)
    return value if not failed else None


def _words(error: Exception) -> str:
    if isinstance(error, RegressError):
        return error.text
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or "no message"


def _result(rank: _Rank, under_way: _Progressing, warnings: tuple[str, ...]) -> RankResult:
    workload, operation, world_size = under_way.workload, under_way.operation, rank.context.world_size
    factor = workload.bus_factor if workload is not None else None
    return RankResult(
        rank=rank.context.rank, world_size=world_size, case=under_way.case, seconds=under_way.seconds,
        work_bytes=operation.work_bytes if operation else None,
        bus_factor=factor(world_size) if factor else None,
        samples_per_step=operation.samples_per_step if operation else None,
        init_seconds=rank.init_seconds,
        warmup_iterations=under_way.pace.calls if under_way.pace else 0,
        checked_elements=sum(check.checked for check in under_way.checks),
        wrong_elements=sum(check.wrong for check in under_way.checks),
        error=under_way.error,
        warnings=(*rank.annotations.warnings, *(operation.warnings if operation else ()), *warnings))
