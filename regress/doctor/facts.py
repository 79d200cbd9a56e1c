"""Everything the checks look at, as plain values; None is "cannot be read here"."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from regress.measure.devices import GpuReading
from regress.measure.ranks import RankPlan


class Level(enum.Enum):
    """ok; warn: measuring works, with what is said; blocks: there is nothing to measure, or no figure to trust."""

    OK = "ok"
    WARN = "warn"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. area, name: what was looked at. fix: what to do, empty where all is well.

    doubtful: a warning that would leave a run inconclusive, so that a CI job had better not start.
    """

    area: str
    name: str
    level: Level
    seen: str
    fix: str = ""
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU that the driver lists. visible: CUDA_VISIBLE_DEVICES leaves it to the ranks."""

    index: int
    name: str | None
    visible: bool
    reading: GpuReading


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """How the visible GPUs are joined, in the words of `regress.measure.links`."""

    link_class: str | None = None
    topology_class: str | None = None


@dataclass(frozen=True, slots=True)
class MpsFacts:
    """CUDA's multi-process service. program: its control program. foreign: pipe folder of somebody else's daemon."""

    program: str | None = None
    foreign: str | None = None


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """torch as a fresh process sees it. error: why it cannot be used, None where it can.

    cuda_build: the CUDA it was built for, None for a CPU build. nccl_wanted: the NCCL its wheel asks for;
    nccl_installed: the one that pip installed; nccl_loaded: the one it really loads. cuda_works, cuda_devices: what
    torch.cuda says.
    """

    error: str | None = None
    version: str | None = None
    cuda_build: str | None = None
    distributed: bool = False
    gloo: bool = False
    nccl: bool = False
    nccl_wanted: str | None = None
    nccl_installed: str | None = None
    nccl_loaded: str | None = None
    cuda_works: bool | None = None
    cuda_devices: int | None = None


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """The NVIDIA driver. present: its kernel module is loaded; nvml: nvidia-ml-py could talk to it."""

    present: bool = False
    nvml: bool = False
    version: str | None = None
    cuda: str | None = None


@dataclass(frozen=True, slots=True)
class NsysFacts:
    """Nsight Systems. error: REGRESS_NSYS names none that runs. path: None where none was found.

    importer_obstacle, gpu_metrics_obstacle: empty where nothing stands in the way. payloads: exports can hold message
    sizes. nvtx_warning: what becomes of ranges of the Python package nvtx.
    """

    error: str | None = None
    path: str | None = None
    version: str | None = None
    importer_obstacle: str = ""
    gpu_metrics_obstacle: str = ""
    payloads: bool = True
    nvtx_warning: str | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Processor, memory, limits and the container. Sizes in bytes.

    limits: soft limits, None for unlimited. stale_shm: files of NCCL and torch in /dev/shm that no process maps.
    container: which kind, None on a bare host. reaps: whether pid 1 takes leave of orphans, None if untried.
    load_per_core: mean of the last minute; runnable_per_core: tasks that want to run, now.
    """

    cpu_model: str | None = None
    cores: int = 1
    cpu_limit_cores: float | None = None
    memory_limit: int | None = None
    busy_ratio: float | None = None
    load_per_core: float | None = None
    steal_ratio: float | None = None
    runnable_per_core: float | None = None
    shm_total: int | None = None
    shm_free: int | None = None
    stale_shm: int = 0
    stale_shm_bytes: int = 0
    memlock: int | None = None
    nofile: int | None = None
    container: str | None = None
    reaps: bool | None = None


@dataclass(frozen=True, slots=True)
class ProjectFacts:
    """The repository, the thresholds file, the history and the lock, as a gate started here would find them.

    git: the program is installed. sha: None outside a repository. cases: that can run here; unfit: (case id, why).
    history_error: why it cannot be opened; history_runs: None where there is no history yet. history_problems: stored
    things that cannot be read. disk_free: bytes where the history lives, None on a server. lock_holder: who holds it.
    """

    git: bool = True
    sha: str | None = None
    branch: str | None = None
    main_branch: str | None = None
    shallow: bool = False
    thresholds: str = ""
    thresholds_error: str | None = None
    cases: int = 0
    unfit: tuple[tuple[str, str], ...] = ()
    history: str = ""
    history_error: str | None = None
    history_runs: int | None = None
    history_problems: tuple[str, ...] = ()
    disk_free: int | None = None
    lock_error: str | None = None
    lock_holder: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it. wish: the device asked for. plan: the ranks that a gate would get, or plan_error why none."""

    wish: str = "auto"
    plan: RankPlan | None = None
    plan_error: str | None = None
    gpus: tuple[GpuFacts, ...] = ()
    driver: DriverFacts = field(default_factory=DriverFacts)
    links: LinkFacts = field(default_factory=LinkFacts)
    mps: MpsFacts = field(default_factory=MpsFacts)
    torch: TorchFacts = field(default_factory=TorchFacts)
    nsys: NsysFacts = field(default_factory=NsysFacts)
    host: HostFacts = field(default_factory=HostFacts)
    project: ProjectFacts = field(default_factory=ProjectFacts)
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def on_gpus(self) -> bool:
        """Whether a gate here would run on GPUs, or was asked to."""
        return self.plan.device == "cuda" if self.plan is not None else self.wish == "cuda"

    @property
    def visible(self) -> tuple[GpuFacts, ...]:
        """The GPUs that the ranks may use."""
        return tuple(gpu for gpu in self.gpus if gpu.visible)
