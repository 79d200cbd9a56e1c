"""What the harness and a workload hand each other inside a rank process. Importing this does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regress.record import TimingMode

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class RankContext:
    """Where a workload runs.

    device: where its tensors live; this rank's own GPU, or the CPU. seed: the same on every rank and in every launch.
    control: a gloo group over all ranks for barriers and metadata, so that none of it travels through the measured
        communicator, its trace or a wrapper around a measured collective.
    aligner: an NCCL group of its own that lines the GPUs up before an isolated call; None where nothing needs it.
    """

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    seed: int
    control: ProcessGroup
    aligner: ProcessGroup | None = None

    @property
    def on_cuda(self) -> bool:
        """Whether calls are asynchronous and need events and synchronisation."""
        return self.device.type == "cuda"


@dataclass(frozen=True, slots=True)
class Check:
    """What a comparison with the one right answer found on this rank.

    checked: elements compared; wrong: those that differ. problem: in words, None when all is well.
    """

    checked: int
    wrong: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """A case made ready on this rank.

    run: one iteration, a collective or a training step; on CUDA it may return before the work is done.
    verify: untimed; on every rank, whether the results are right. verify_first: also before timing, with `run`.
    label: NVTX range around one iteration in traced launches: `NAME/BYTES` for a collective, `step` for a step.
    work_bytes: S as nccl-tests counts it, after alignment. samples_per_step: over all ranks.
    discard: iterations to drop before warm-up begins. modes: the timing modes that make sense for it.
    """

    run: Callable[[], None]
    verify: Callable[[], Check]
    label: str
    modes: tuple[TimingMode, ...]
    work_bytes: int | None = None
    samples_per_step: int | None = None
    discard: int = 0
    verify_first: bool = True
    warnings: tuple[str, ...] = ()


COLLECTIVE_MODES = (TimingMode.ISOLATED, TimingMode.PIPELINED, TimingMode.GRAPH)
