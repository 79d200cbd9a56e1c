"""Ranges, marks and the capture window: what a tracer around a launch needs to tell cases, steps and ranks apart.

Names are a contract with the readers of traces: `case:<case id>` around a case's measured part, `step` around a
training step, `NAME/BYTES` around a collective, and a mark `comm_regress.rank=<rank>/<world size>`. The mark is set
again when a capture window opens, because a tracer drops what came before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regress.errors import UsageError
from regress.record import LaunchSpec

from .communicator import barrier
from .operation import RankContext

if TYPE_CHECKING:
    from torch.profiler import profile

TRACERS = ("none", "nsys", "kineto")


@dataclass(frozen=True, slots=True)
class Annotations:
    """How names get into a trace. warnings: why they do not."""

    range: Callable[[str], AbstractContextManager[object]]
    mark: Callable[[str], None]
    warnings: tuple[str, ...] = ()

    def mark_rank(self, context: RankContext) -> None:
        """Says which rank this process is."""
        self.mark(f"comm_regress.rank={context.rank}/{context.world_size}")

    def around(self, name: str, call: Callable[[], None]) -> Callable[[], None]:
        """The call with a range of that name around it."""
        def ranged() -> None:
            with self.range(name):
                call()
        return ranged


def require_tracer(tracer: str) -> None:
    """UsageError for a tracer that no rank knows; before ranks join, as one that ends first takes the others with it.
    """
    if tracer not in TRACERS:
        raise UsageError(f"tracer {tracer!r}", where="launch file", accepted=", ".join(TRACERS))


def annotations_for(tracer: str) -> Annotations:
    """How the tracer sees names. NVTX stays on without a tracer: it costs nothing until one is wrapped around."""
    if tracer == "kineto":
        return _record_function()
    import torch

    if torch.version.cuda is not None:
        return _torch_nvtx()
    return _nvtx_package() if tracer == "nsys" else _silent()


def _silent(*warnings: str) -> Annotations:
    return Annotations(lambda _: contextlib.nullcontext(), lambda _: None, warnings)


def _torch_nvtx() -> Annotations:
    from torch.cuda import nvtx

    @contextlib.contextmanager
    def pushed(name: str) -> Iterator[None]:
        nvtx.range_push(name)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            nvtx.range_pop()  # type: ignore[no-untyped-call]

    return Annotations(pushed, nvtx.mark)


def _nvtx_package() -> Annotations:
    """A torch without CUDA has no NVTX of its own."""
    try:
        import nvtx
    except ImportError:
        return _silent("no ranges in this trace: torch was built without CUDA and the nvtx package is not installed")
    return Annotations(nvtx.annotate, nvtx.mark)


def _record_function() -> Annotations:
    from torch.profiler import record_function

    def mark(name: str) -> None:
        with record_function(name):
            pass

    return Annotations(record_function, mark)


def open_capture(context: RankContext, spec: LaunchSpec, annotations: Annotations) -> Callable[[], tuple[str, ...]]:
    """Opens the capture window on every rank, between barriers; returns what closes it, which returns warnings.

    Every rank opens it, as the window belongs to whichever process comes first, and none closes it before all are
    done, as it ends for all when that process closes it (measured with nsys 2025.3).
    """
    _settle(context)
    if spec.tracer == "nsys":
        close = _open_nsys(context)
    elif spec.tracer == "kineto":
        close = _open_kineto(context, Path(spec.results_dir))
    else:
        return tuple
    barrier(context)
    annotations.mark_rank(context)

    def settle_and_close() -> tuple[str, ...]:
        _settle(context)
        warnings = close()
        barrier(context)
        return warnings
    return settle_and_close


def _settle(context: RankContext) -> None:
    import torch

    if context.on_cuda:
        torch.cuda.synchronize()
    barrier(context)


def _open_nsys(context: RankContext) -> Callable[[], tuple[str, ...]]:
    import torch

    if not context.on_cuda:
        return lambda: ("nsys traced the whole launch: only a CUDA process can open the capture window",)
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]

    def close() -> tuple[str, ...]:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
        return ()
    return close


def _open_kineto(context: RankContext, folder: Path) -> Callable[[], tuple[str, ...]]:
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if context.on_cuda else [])
    profiler: profile = profile(activities=activities, record_shapes=True)
    profiler.start()

    def close() -> tuple[str, ...]:
        profiler.stop()
        profiler.export_chrome_trace(str(folder / f"rank{context.rank}.kineto.json.gz"))
        return ()
    return close
