"""Warm-up, how many iterations, and the timed loops.

Nothing is printed, written or collected (garbage) inside a timed loop. Durations are seconds on this rank's own clock;
folding over ranks is the metrics' business. Every decision is rank 0's and is broadcast, so that all ranks run the
same number of calls.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from regress.record import TimingMode

from .communicator import barrier, decide
from .operation import Operation, RankContext

WARMUP_CALLS = 5
"""Fewest warm-up calls, and fewest calls in a warm-up batch."""
WARMUP_BATCH_SECONDS = 0.005
WARMUP_BATCHES = 12
WARMUP_AGREEMENT = 0.2
"""Warm-up ends when two batches in a row differ by at most this fraction, or after WARMUP_BATCHES."""
SINGLE_CALLS = (20, 2000)
BATCHES = 20
SHORT_BATCHES = 5
CALLS_IN_BATCH = (5, 1000)
FIRST_VALUES = 3
GROWTH = 10
ROUNDS = 6
STRETCH = 4.0
"""Calls so slow that the fewest values would take more than STRETCH times the wished seconds get fewer."""
HOLD_CYCLES = 500_000
"""Clock cycles a GPU is held before an isolated call: 0.25 ms at 1.98 GHz, several times what queueing one takes."""
GRAPH_WARMUP = 3
GRAPH_CALLS = 20
"""Most calls captured in one CUDA graph."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What warm-up found, the same on every rank: calls made, and seconds one call takes back to back."""

    calls: int
    call_seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a series shall be: values of `calls` calls each, `first` at once, until `seconds` are filled.

    fewest: values there shall be although they take longer; most: no more than that.
    """

    first: int
    fewest: int
    most: int
    calls: int
    seconds: float


TRACED = Plan(first=12, fewest=12, most=12, calls=1, seconds=0.0)
TRACED_BATCHES = Plan(first=3, fewest=3, most=3, calls=4, seconds=0.0)


def single_calls(wished_seconds: float) -> Plan:
    """The plan for values of one call each."""
    return Plan(FIRST_VALUES, *SINGLE_CALLS, 1, wished_seconds)


def batches(call_seconds: float, wished_seconds: float, count: int = BATCHES) -> Plan:
    """The plan for about `count` values of several calls each, from what one call took in warm-up."""
    low, high = CALLS_IN_BATCH
    calls = min(high, max(low, int(wished_seconds / count / max(call_seconds, 1e-9))))
    return Plan(FIRST_VALUES, SHORT_BATCHES, count, calls, wished_seconds)


def further(plan: Plan, values: int, spent_seconds: float) -> int:
    """How many values to add to a series that has `values` after so many seconds; 0 when it is long enough."""
    each = max(spent_seconds / values, 1e-9)
    floor = min(plan.fewest, int(STRETCH * plan.seconds / each))
    total = min(plan.most, max(floor, int(plan.seconds / each)))
    if total < 1.1 * values and values >= floor:
        return 0
    return max(0, min(total - values, GROWTH * values))


def fill(context: RankContext, measure: Callable[[int], tuple[float, ...]], plan: Plan) -> tuple[float, ...]:
    """A series as long as planned. Each round's count follows from the speed so far, as rank 0 saw it.

    A count from warm-up alone misjudges a busy host several times over, in both directions.
    """
    values: tuple[float, ...] = ()
    count = plan.first
    began = time.perf_counter()
    for _ in range(ROUNDS):
        values += measure(count)
        (more,) = decide(context, float(further(plan, len(values), time.perf_counter() - began)))
        count = int(more)
        if not count:
            break
    return values


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No garbage collection until the loop is over."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def synchronize(context: RankContext) -> None:
    """Until this rank's device has done all it was given."""
    if context.on_cuda:
        import torch

        torch.cuda.synchronize()


def warm_up(context: RankContext, operation: Operation, wished_seconds: float) -> Pace:
    """Runs until two batches in a row agree, at least WARMUP_CALLS calls, for about the wished seconds at most."""
    began = time.perf_counter()
    for _ in range(operation.discard):
        operation.run()
    calls, size, previous = operation.discard, WARMUP_CALLS, math.inf
    for number in range(1, WARMUP_BATCHES + 1):
        seconds = _batch(context, operation.run, size)
        calls += size
        agree = abs(seconds - previous) <= WARMUP_AGREEMENT * seconds
        stop = agree or number == WARMUP_BATCHES or time.perf_counter() - began > wished_seconds
        next_size = min(CALLS_IN_BATCH[1], max(WARMUP_CALLS, int(WARMUP_BATCH_SECONDS / max(seconds, 1e-9))))
        done, seconds, wished_size = decide(context, float(stop), seconds, float(next_size))
        previous, size = seconds, int(wished_size)
        if done:
            break
    return Pace(calls, seconds)


def _batch(context: RankContext, call: Callable[[], None], calls: int) -> float:
    synchronize(context)
    began = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(context)
    return (time.perf_counter() - began) / calls


def isolated(context: RankContext, call: Callable[[], None], calls: int) -> tuple[float, ...]:
    """Seconds of each call: barrier, clock around the call, synchronise.

    On CUDA an event pair on the stream brackets the call; on the CPU the host's clock does, as gloo's calls return
    when done.
    """
    return _isolated_cuda(context, call, calls) if context.on_cuda else _isolated_cpu(context, call, calls)


def _isolated_cpu(context: RankContext, call: Callable[[], None], calls: int) -> tuple[float, ...]:
    seconds = [0.0] * calls
    with _quiet():
        for i in range(calls):
            barrier(context)
            began = time.perf_counter()
            call()
            seconds[i] = time.perf_counter() - began
    return tuple(seconds)


def _isolated_cuda(context: RankContext, call: Callable[[], None], calls: int) -> tuple[float, ...]:
    """Each GPU is held busy until its host has queued the whole iteration, then all leave one tiny collective together.

    So the event pair holds the collective alone. With a barrier of the hosts only, it also held the time the ranks
    leave that barrier apart and the launch path of an eager call: 145 instead of 77 µs for 16 MiB on two H200s.
    """
    import torch

    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    token = torch.ones(1, device=context.device)
    seconds = [0.0] * calls
    synchronize(context)
    with _quiet():
        for i in range(calls):
            barrier(context)
            if context.aligner is not None:
                torch.cuda._sleep(HOLD_CYCLES)  # type: ignore[no-untyped-call]
                # Not through torch.distributed.all_reduce: a wrapper around the measured call is not to see this one.
                context.aligner.allreduce([token]).wait()
            start.record()
            call()
            end.record()
            end.synchronize()
            seconds[i] = start.elapsed_time(end) * 1e-3
    return tuple(seconds)


def pipelined(context: RankContext, call: Callable[[], None], count: int, calls: int) -> tuple[float, ...]:
    """Seconds a call in each of `count` batches: calls back to back and one synchronise, on the host's clock.

    Source: nccl-tests, src/common.cu: host clock around the loop with the final synchronise, divided by the calls.
    """
    seconds = [0.0] * count
    with _quiet():
        for i in range(count):
            barrier(context)
            seconds[i] = _batch(context, call, calls)
    return tuple(seconds)


@contextlib.contextmanager
def captured(context: RankContext, call: Callable[[], None], calls: int) -> Iterator[Callable[[], None]]:
    """So many calls captured in a CUDA graph, as one call that replays it: no launch path of eager calls is left."""
    import torch

    graph = torch.cuda.CUDAGraph()
    synchronize(context)
    # Not the default mode: NCCL's watchdog thread asks for events while we capture, which "global" forbids.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(calls):
            call()
    for _ in range(GRAPH_WARMUP):
        graph.replay()
    synchronize(context)
    yield graph.replay
    synchronize(context)
    graph.reset()  # before the communicator that it refers to goes


def series(context: RankContext, mode: TimingMode, call: Callable[[], None], plan: Plan) -> tuple[float, ...]:
    """Seconds a call, in the timing mode, as long as planned."""
    if mode is TimingMode.ISOLATED:
        return fill(context, lambda count: isolated(context, call, count), plan)
    if mode is TimingMode.STEP:
        return fill(context, lambda count: steps(context, call, count), plan)
    if mode is TimingMode.PIPELINED:
        return fill(context, lambda count: pipelined(context, call, count, plan.calls), plan)
    calls = min(GRAPH_CALLS, plan.calls)
    replays = max(1, plan.calls // calls)
    with captured(context, call, calls) as replay:
        values = fill(context, lambda count: pipelined(context, replay, count, replays), plan)
    return tuple(value / calls for value in values)


def steps(context: RankContext, call: Callable[[], None], calls: int) -> tuple[float, ...]:
    """Seconds of each training step, between synchronisations, on the host's clock. No barrier: a step has its own."""
    seconds = [0.0] * calls
    barrier(context)
    synchronize(context)
    with _quiet():
        for i in range(calls):
            began = time.perf_counter()
            call()
            synchronize(context)
            seconds[i] = time.perf_counter() - began
    return tuple(seconds)
