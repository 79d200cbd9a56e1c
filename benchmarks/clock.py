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
ISOLATED_CALLS = (20, 2000)
BATCHES = 20
SHORT_BATCHES = 5
CALLS_IN_BATCH = (5, 1000)
STRETCH = 4.0
"""A call so slow that the fewest iterations would take more than STRETCH times the wished seconds gets fewer."""
FEWEST_CALLS = 3
GRAPH_CALLS = 20
TRACED_CALLS = 12


@dataclass(frozen=True, slots=True)
class Pace:
    """What warm-up found, the same on every rank: calls made, seconds one call takes back to back and isolated."""

    calls: int
    pipelined_seconds: float
    isolated_seconds: float


@dataclass(frozen=True, slots=True)
class Batches:
    """A pipelined series: how many batches, and how many calls each."""

    count: int
    calls: int


def isolated_calls(call_seconds: float, wished_seconds: float) -> int:
    """How many isolated calls fill the wished seconds, within ISOLATED_CALLS unless one call is very slow."""
    low, high = ISOLATED_CALLS
    affordable = int(STRETCH * wished_seconds / call_seconds)
    return max(FEWEST_CALLS, min(high, max(low, int(wished_seconds / call_seconds)), affordable))


def batches(call_seconds: float, wished_seconds: float, count: int = BATCHES) -> Batches:
    """How many calls each of `count` batches needs to fill the wished seconds; fewer batches when calls are slow."""
    low, high = CALLS_IN_BATCH
    calls = min(high, max(low, int(wished_seconds / count / call_seconds)))
    affordable = int(STRETCH * wished_seconds / (calls * call_seconds))
    return Batches(max(FEWEST_CALLS, min(count, affordable)), calls)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No garbage collection until the loop is over; what lives now is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


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
    if TimingMode.STEP in operation.modes:
        return Pace(calls, seconds, seconds)
    began = time.perf_counter()
    isolated(context, operation.run, FEWEST_CALLS)
    (each,) = decide(context, (time.perf_counter() - began) / FEWEST_CALLS)
    return Pace(calls + FEWEST_CALLS, seconds, each)


def _batch(context: RankContext, call: Callable[[], None], calls: int) -> float:
    synchronize(context)
    began = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(context)
    return (time.perf_counter() - began) / calls


def isolated(context: RankContext, call: Callable[[], None], calls: int) -> tuple[float, ...]:
    """Seconds of each call: barrier, clock around the call, synchronise.

    On CUDA an event pair on the stream brackets the call, so that it holds the launch path of an eager call too; on
    the CPU the host's clock does, as gloo's calls return when done.
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
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    seconds = [0.0] * calls
    synchronize(context)
    with _quiet():
        for i in range(calls):
            barrier(context)
            start.record()
            call()
            end.record()
            end.synchronize()
            seconds[i] = start.elapsed_time(end) * 1e-3
    return tuple(seconds)


def pipelined(context: RankContext, call: Callable[[], None], series: Batches) -> tuple[float, ...]:
    """Seconds a call, one value a batch: calls back to back and one synchronise, on the host's clock, as nccl-tests.

    Source: nccl-tests, src/common.cu: host clock around the loop with the final synchronise, divided by the calls.
    """
    seconds = [0.0] * series.count
    with _quiet():
        for i in range(series.count):
            barrier(context)
            seconds[i] = _batch(context, call, series.calls)
    return tuple(seconds)


def graph(context: RankContext, call: Callable[[], None], series: Batches) -> tuple[float, ...]:
    """As `pipelined`, the calls captured in a CUDA graph that is replayed: no launch path in the figure.

    A batch is as many replays as make up its calls, so at least one; the values are divided by the calls made.
    """
    import torch

    captured_calls = min(GRAPH_CALLS, series.calls)
    captured = torch.cuda.CUDAGraph()
    synchronize(context)
    # Not the default mode: NCCL's watchdog thread asks for events while we capture, which "global" forbids.
    with torch.cuda.graph(captured, capture_error_mode="thread_local"):
        for _ in range(captured_calls):
            call()
    for _ in range(FEWEST_CALLS):
        captured.replay()
    synchronize(context)
    replays = Batches(series.count, max(1, series.calls // captured_calls))
    seconds = pipelined(context, captured.replay, replays)
    synchronize(context)
    captured.reset()  # before the communicator that it refers to goes
    return tuple(value / captured_calls for value in seconds)


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
