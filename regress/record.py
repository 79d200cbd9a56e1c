"""What is measured, and its JSON form: Case, Environment, Measurement, Launch, Finding, Run.

Everything here is a frozen value, validated when it is made, whoever makes it: a rank process, a metric,
a detector or the reader of an old file. Values are finite, in base units, and in the order they were measured.

History of the schema (SCHEMA_VERSION):
1  first.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from regress.errors import RecordError
from regress.units import Better, Unit, exact_size

SCHEMA_VERSION = 1

Scalar = str | int | float | bool | None
"""What an environment fact or a workload option may be."""


class TimingMode(enum.Enum):
    """How iterations are clocked. Values of one mode are never compared with those of another.

    isolated: barrier, event pair and synchronise around each iteration: gives a distribution.
    pipelined: back to back and one synchronise, divided by the count: comparable with nccl-tests.
    graph: as pipelined, the calls captured in a CUDA graph: no launch path in the figure.
    step: one training step, clocked between synchronisations.
    """

    ISOLATED = "isolated"
    PIPELINED = "pipelined"
    GRAPH = "graph"
    STEP = "step"


class Verdict(enum.Enum):
    """What a case, a metric or a run amounts to."""

    PASS = "pass"
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    INCONCLUSIVE = "inconclusive"
    NO_BASELINE = "no-baseline"
    INVALID = "invalid"


SEVEREST_FIRST = (Verdict.INVALID, Verdict.REGRESSION, Verdict.INCONCLUSIVE, Verdict.IMPROVEMENT,
                  Verdict.NO_BASELINE, Verdict.PASS)
"""The order in which verdicts outweigh each other."""


def _require(condition: bool, seen: str, accepted: str, where: str) -> None:
    if not condition:
        raise RecordError(seen, where=where, accepted=accepted)


def _finite(value: float, where: str) -> None:
    _require(math.isfinite(value), f"{value!r} is not a finite number", "finite numbers; absent means None", where)


@dataclass(frozen=True, slots=True)
class Case:
    """A workload with its parameters; hashable, and printed as `allreduce[16MiB-float32-2xcuda]`.

    message_size_bytes: S as nccl-tests counts it: bytes in each rank's buffer for allreduce, total gathered
        bytes for allgather; None for a training step.
    device: "cuda" or "cpu". world_size: ranks in all; ranks_per_node: ranks on each node.
    options: workload options that differ from their defaults, sorted by name.
    """

    workload: str
    dtype: str
    world_size: int
    device: str
    timing: TimingMode
    message_size_bytes: int | None = None
    ranks_per_node: int = 0
    options: tuple[tuple[str, Scalar], ...] = ()

    def __post_init__(self) -> None:
        size, world, names = self.message_size_bytes, self.world_size, [name for name, _ in self.options]
        if self.ranks_per_node == 0:
            object.__setattr__(self, "ranks_per_node", world)
        # Thousands of stored cases pass here for each one that does not: messages are made for that one only.
        if not (self.workload and world >= 1 and self.device in ("cuda", "cpu") and (size is None or size > 0)
                and 0 < self.ranks_per_node <= world and world % self.ranks_per_node == 0
                and (not names or names == sorted(set(names)))):
            self._refuse(names)

    def _refuse(self, names: list[str]) -> None:
        where = f"case of workload {self.workload!r}"
        _require(bool(self.workload), "a case without a workload", "a workload's name", where)
        _require(self.world_size >= 1, f"world size {self.world_size}", "at least 1", where)
        _require(self.device in ("cuda", "cpu"), f"device {self.device!r}", "cuda or cpu", where)
        size = self.message_size_bytes
        _require(size is None or size > 0, f"message size {size}", "a positive number of bytes or None", where)
        _require(0 < self.ranks_per_node <= self.world_size and self.world_size % self.ranks_per_node == 0,
                 f"{self.ranks_per_node} ranks per node of {self.world_size}", "a divisor of the world size", where)
        _require(names == sorted(set(names)), f"options {names}", "unique names in sorted order", where)

    @property
    def id(self) -> str:
        """The printed identity; also the pytest node id and the key in JSON: no two sizes have the same."""
        parts = [] if self.message_size_bytes is None else [exact_size(self.message_size_bytes)]
        nodes = self.world_size // self.ranks_per_node
        ranks = f"{self.world_size}x" if nodes == 1 else f"{nodes}x{self.ranks_per_node}x"
        parts += [self.dtype, ranks + self.device]
        if self.timing in (TimingMode.PIPELINED, TimingMode.GRAPH):
            parts.append(self.timing.value)
        parts += [f"{name}={value}" for name, value in self.options]
        return f"{self.workload}[{'-'.join(parts)}]"


@dataclass(frozen=True, slots=True)
class Environment:
    """Facts about the machine and the software, in two sets.

    must_match: another value means another baseline (GPU model and count, link class, backend, ...).
    reported: another value is shown beside the verdict and never blocks a comparison (driver, NCCL, torch, ...).
    Both map fact to value; a fact that could not be read is None.
    """

    must_match: dict[str, Scalar]
    reported: dict[str, Scalar] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that are equal exactly when the must-match sets are."""
        return hashlib.sha256(msgspec.json.encode(self.must_match, order="sorted")).hexdigest()[:16]


QUANTILES = (("min", 0.0), ("p10", 0.10), ("p25", 0.25), ("p50", 0.50), ("p75", 0.75), ("p90", 0.90),
             ("p95", 0.95), ("max", 1.0))


def quantile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile of ascending values, linear between neighbours (Hyndman and Fan 1996, type 7; NumPy's default)."""
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One metric of one case in one launch.

    value: the metric's own figure (the mean over iterations for `allreduce_seconds`).
    samples: what it came from, one per iteration, folded over ranks by the slowest, in order of measuring; may be
        empty for a derived metric, and after retention has pruned them.
    statistics: quantiles, mean and n of the samples ("p25", "mean", "n"), kept when samples are pruned.
    source: the tracer that a reading came from; empty for the ranks' own clocks. Readings of two tracers are never
        compared.
    """

    metric: str
    unit: Unit
    better: Better
    value: float
    samples: tuple[float, ...] = ()
    statistics: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        numbers = (self.value, *self.samples, *self.statistics.values())
        smallest = min(self.value, min(self.samples, default=self.value))
        if not (all(map(math.isfinite, numbers)) and (smallest >= 0 or self.unit is Unit.RATIO)):
            where = f"measurement {self.metric}"
            for number in numbers:
                _finite(number, where)
            _require(False, f"{smallest!r} {self.unit.value}", "values of at least 0", where)
        if self.samples and not self.statistics:
            ordered = sorted(self.samples)
            summary = {name: quantile(ordered, q) for name, q in QUANTILES}
            summary["mean"] = math.fsum(ordered) / len(ordered)
            summary["n"] = float(len(ordered))
            object.__setattr__(self, "statistics", summary)

    def statistic(self, name: str) -> float | None:
        """The value a judge may use: "value", or one of the sample statistics; None where there are no samples."""
        return self.value if name == "value" else self.statistics.get(name)


@dataclass(frozen=True, slots=True)
class RankResult:
    """What one rank measured of one case in one launch: the file a rank process leaves behind.

    seconds: series by timing mode ("isolated", "pipelined", "graph", "step"), one value per iteration (isolated,
        step) or per batch divided by its calls (pipelined, graph), in order, warm-up excluded.
    work_bytes: S as nccl-tests counts it, as really run (after alignment); None for a training step.
    bus_factor: busbw over algbw for this collective and world size, as nccl-tests' PERFORMANCE.md derives it.
    samples_per_step: training samples one step consumes over all ranks; None for a collective.
    init_seconds: making the communicator and its first collective, once per launch; None where not timed.
    wrong_elements: result elements that differ from the one right answer, of checked_elements.
    error: what stopped this case on this rank, or None.
    """

    rank: int
    world_size: int
    case: Case
    seconds: dict[str, tuple[float, ...]] = field(default_factory=dict)
    work_bytes: int | None = None
    bus_factor: float | None = None
    samples_per_step: int | None = None
    init_seconds: float | None = None
    warmup_iterations: int = 0
    checked_elements: int = 0
    wrong_elements: int = 0
    error: str | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"rank {self.rank} of {self.case.id}"
        _require(0 <= self.rank < self.world_size, f"rank {self.rank}", f"0 to {self.world_size - 1}", where)
        for mode, series in self.seconds.items():
            _require(mode in {m.value for m in TimingMode}, f"timing mode {mode!r}", "a known timing mode", where)
            for value in series:
                _finite(value, where)
                _require(value >= 0, f"a duration of {value!r} s", "durations of at least 0", where)


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What a launcher hands to every rank process of one launch, as one JSON file.

    cases: in the order to run them. backend: "nccl" or "gloo". results_dir: where rank r leaves
        `rank{r}.case{i}.json` (a RankResult, i counting in the order of `cases`) as soon as it is measured, and
        `rank{r}.progress.jsonl` (one Progress a line).
    case_seconds: how long each timing mode of a case should be measured; rank 0 derives the iterations from it.
    shared_gpu: all ranks of a node share one GPU. multi_rank_gpu: the user has told NCCL (2.30 and newer) to let them;
        without it each poses as a node of its own.
    tracer: "none", "nsys" (open the profiler's capture range, NVTX on) or "kineto" (torch.profiler, files in
        results_dir). import_paths: appended to sys.path for a user's own step.
    """

    cases: tuple[Case, ...]
    seed: int
    backend: str
    results_dir: str
    case_seconds: float
    threads_per_rank: int = 1
    shared_gpu: bool = False
    tracer: str = "none"
    import_paths: tuple[str, ...] = ()
    multi_rank_gpu: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """A line of a rank's progress file: the operation it has just begun or finished, for live display and for
    naming the last finished operation of a rank that hangs.

    unix_time: seconds since the epoch. done: False when the operation begins, True when it has ended.
    """

    unix_time: float
    case: str
    operation: str
    done: bool
    iterations: int | None = None
    iterations_planned: int | None = None


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """One case in one launch after folding over ranks: measurements, or the reason there are none."""

    case: Case
    measurements: tuple[Measurement, ...] = ()
    error: str | None = None
    warnings: tuple[str, ...] = ()

    def get(self, metric: str) -> Measurement | None:
        """The measurement of that name, or None when it was not measured."""
        return next((m for m in self.measurements if m.metric == metric), None)


@dataclass(frozen=True, slots=True)
class Launch:
    """One fresh start of all rank processes: the independent sample of every statistic.

    role: "head" for the code under test, "base" for the interleaved base reference, "traced" for the profiled one.
    session: which of the gate's measuring sessions it belongs to (0 screening, then one per confirmation).
    evidence: what a traced launch showed beside its metrics: what the communication library chose ("AllReduce 16MiB":
        "RING SIMPLE, 24 channels"), and what tracing cost.
    wall_seconds: start to end of the launcher; rank_wall_seconds: the longest rank process.
    """

    index: int
    role: str
    seed: int
    started_at: str
    wall_seconds: float
    rank_wall_seconds: float
    outcomes: tuple[CaseOutcome, ...]
    session: int = 0
    error: str | None = None
    warnings: tuple[str, ...] = ()
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """One detector's opinion of one metric of one case.

    now, baseline: the judged statistic over this run's launches and over the baseline; change: now/baseline - 1,
    positive when the figure grew whatever the direction; interval: confidence interval of that change.
    significant: unlikely to be noise; relevant: big enough to matter; a regression is both.
    p_value: two-sided, before correction for the number of series; None where the detector makes no test.
    needed_launches: how many launches would decide an inconclusive finding.
    limit: the absolute bound the figure was held against, in the metric's unit; None for other detectors.
    """

    case: str
    metric: str
    unit: Unit
    detector: str
    verdict: Verdict
    statistic: str
    reason: str
    now: float | None = None
    baseline: float | None = None
    change: float | None = None
    interval: tuple[float, float] | None = None
    launches: int = 0
    baseline_runs: int = 0
    p_value: float | None = None
    significant: bool = False
    relevant: bool = False
    needed_launches: int | None = None
    severity: str = "fail"
    gated: bool = True
    warnings: tuple[str, ...] = ()
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One rule's explanation: what it saw (evidence in numbers), the likely cause and the change to try.

    confidence: "high", "medium" or "low": how sure the cause is, however grave it is. consequences: what other rules
    saw that follows from this, each said here and nowhere else.
    """

    rule: str
    severity: str
    evidence: dict[str, Scalar]
    cause: str
    suggestion: str
    case: str | None = None
    confidence: str = "high"
    consequences: tuple[Diagnosis, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """The code that was measured; None where there is no repository or git cannot tell.

    main: whether it belongs to the branch baselines come from. time: committer time, ISO 8601.
    """

    sha: str | None = None
    subject: str | None = None
    author: str | None = None
    time: str | None = None
    branch: str | None = None
    dirty: bool = False
    main: bool = False


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Why a run became the anchor: who said so, when, and for which cases (all where None)."""

    reason: str
    who: str
    when: str
    cases: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Everything one invocation measured, in one environment, for one commit. Times are UTC, ISO 8601."""

    run_id: str
    started_at: str
    ended_at: str
    commit: Commit
    environment: Environment
    launches: tuple[Launch, ...]
    verdict: Verdict
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    attempt: int = 1
    partial: bool = False
    tool_version: str = ""
    health: dict[str, Scalar] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    artifacts: dict[str, str] = field(default_factory=dict)
    accepted: Acceptance | None = None
    schema: int = SCHEMA_VERSION

    def measured(self, case_id: str, metric: str, role: str = "head") -> tuple[Measurement, ...]:
        """That metric of that case in each launch that has it, in order of launching."""
        found = (outcome.get(metric) for launch in self.launches if launch.role == role
                 for outcome in launch.outcomes if outcome.case.id == case_id)
        return tuple(m for m in found if m is not None)


def to_json(value: Any) -> bytes:
    """The JSON form of any record of this module; floats keep every bit."""
    return msgspec.json.encode(value)


class _Head(msgspec.Struct):
    """The one field that is looked at before a stored run is read as a whole."""

    schema: Scalar = None


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""How a stored run of an older schema becomes one of the next, by the older version; applied in order on reading."""


def run_from_json(text: bytes | str, where: str) -> Run:
    """A run from its JSON form, of this or an older schema; `where` (the file) is named in errors.

    Raises RecordError for text that is not JSON, not a run, of a newer schema, or breaks a rule of this module.
    """
    try:
        version = msgspec.json.decode(text, type=_Head).schema
        if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
            raise RecordError(f"schema {version!r}", where=where, accepted=f"schema 1 to {SCHEMA_VERSION}",
                              next_step="a newer comm-regress wrote it: upgrade to read it"
                              if isinstance(version, int) else "this is not a comm-regress run")
        if version == SCHEMA_VERSION:
            return msgspec.json.decode(text, type=Run)
        content = msgspec.json.decode(text, type=dict[str, Any])
        for older in range(version, SCHEMA_VERSION):
            content = MIGRATIONS[older](content) | {"schema": older + 1}
        return msgspec.convert(content, type=Run)
    except RecordError as error:
        # A rule that a part of it breaks: the part does not know which file it is in.
        place = where if where in error.where else f"{where}: {error.where}" if error.where else where
        raise RecordError(error.seen, where=place, accepted=error.accepted, next_step=error.next_step) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(str(error), where=where, accepted="a run as `regress history export` writes it") from error


def rank_result_from_json(text: bytes, where: str) -> RankResult:
    """One rank's result of one case; RecordError when the file is cut or foreign."""
    try:
        return msgspec.json.decode(text, type=RankResult)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(str(error), where=where, accepted="a result file of a rank process") from error


def launch_spec_from_json(text: bytes, where: str) -> LaunchSpec:
    """The launch a rank process is part of; RecordError when the file is cut or foreign."""
    try:
        return msgspec.json.decode(text, type=LaunchSpec)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(str(error), where=where, accepted="a launch file written by the gate") from error


def without_samples(run: Run) -> Run:
    """The same run with statistics but without raw samples."""
    launches = tuple(
        replace(launch, outcomes=tuple(
            replace(outcome, measurements=tuple(replace(m, samples=()) for m in outcome.measurements))
            for outcome in launch.outcomes))
        for launch in run.launches)
    return replace(run, launches=launches)


def run_schema() -> dict[str, Any]:
    """The JSON Schema of a stored run."""
    return msgspec.json.schema(Run)
