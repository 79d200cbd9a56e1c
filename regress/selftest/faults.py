"""The faults: what is done to the ranks, which verdict it must get, and which cause must be named."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from regress.measure.fitness import assess
from regress.record import Diagnosis, Run, Verdict

ALLREDUCE, DDP_STEP = "allreduce", "ddp_step"
NOT_RED = (Verdict.PASS, Verdict.IMPROVEMENT, Verdict.INCONCLUSIVE)
"""Verdicts of a gate that does not fail the build, once there is a baseline."""
RED = (Verdict.REGRESSION,)
INVALID = (Verdict.INVALID,)


@dataclass(frozen=True, slots=True)
class Cause:
    """What the gate must name: a finding of one of `rules` (about that rank, where one is given), or words.

    text: the same for people. words: a regular expression that a warning, a health note, or a finding that is no pass
    ("METRIC: reason") must match. Neither rules nor words: the verdict alone counts.
    """

    text: str
    rules: tuple[str, ...] = ()
    words: str = ""
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. cpu, cuda: the cause to be named there; None where that device cannot show it.

    workload: the case it shows in; empty for all cases. verdicts: any of these is right. gpus: that many are needed for
    it to show. launches: of the gate; None for the thresholds file's. variables: of the ranks, beside the injection.
    case_deadline: seconds; None for the file's. load: processes that run beside, "cpu" or "cuda". times: gates.
    """

    name: str
    summary: str
    workload: str
    verdicts: tuple[Verdict, ...]
    cpu: Cause | None = None
    cuda: Cause | None = None
    gpus: int = 1
    launches: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    case_deadline: float | None = None
    load: str = ""
    times: int = 1

    @property
    def needs_baseline(self) -> bool:
        """Whether anything is compared: a launch that went wrong is invalid by itself."""
        return self.verdicts != INVALID

    def cause(self, device: str) -> Cause | None:
        """What must be named on "cpu" or "cuda"."""
        return self.cuda if device == "cuda" else self.cpu

    def obstacle(self, device: str, gpus: int) -> str | None:
        """Why this machine cannot show it; None where it can."""
        if self.cause(device) is None:
            return "needs a GPU" if device == "cpu" else "shows with gloo on a CPU only"
        if device == "cuda" and gpus < self.gpus:
            return f"needs {self.gpus} GPUs that talk to each other directly; {gpus} here"
        return None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a gate made of a fault. cause: the evidence that names it, None where nothing does."""

    verdict: Verdict
    cause: str | None
    caught: bool


def look(fault: Fault, cause: Cause, run: Run) -> Seen:
    """Whether the run has the verdict and names the cause."""
    named = next(_naming(cause, run), None)
    right = run.verdict in fault.verdicts and (named is not None or not (cause.rules or cause.words))
    return Seen(run.verdict, named, right)


def _naming(cause: Cause, run: Run) -> Iterator[str]:
    for diagnosis in _all(run.diagnoses):
        if diagnosis.rule in cause.rules and cause.rank in (None, diagnosis.evidence.get("rank")):
            yield f"{diagnosis.rule}: {diagnosis.cause}"
    if cause.words:
        said = [*(f"{finding.metric}: {finding.reason}" for finding in run.findings
                  if finding.verdict is not Verdict.PASS),
                *run.warnings, *(text for _, text in assess(run.health))]
        yield from (text for text in said if re.search(cause.words, text))


def _all(diagnoses: Iterable[Diagnosis]) -> Iterator[Diagnosis]:
    for diagnosis in diagnoses:
        yield diagnosis
        yield from _all(diagnosis.consequences)


def why_not(run: Run) -> str:
    """What the run says itself, for a fault that was not caught: the reason behind its verdict, and what cut it short.
    """
    behind = sorted((finding for finding in run.findings if finding.verdict is run.verdict),
                    key=lambda finding: not finding.relevant)
    told = [f"{finding.metric}: {finding.reason}" for finding in behind[:1]]
    return "; ".join([*told, *(text for text in run.warnings if "budget" in text or not told)])


FAULTS = (
    Fault("none", "nothing is wrong: the same code again", "", NOT_RED, times=3,
          cpu=Cause("none"), cuda=Cause("none")),
    Fault("sleep-one-rank", "rank 1 sleeps 50 ms in every step", DDP_STEP, RED,
          cpu=Cause("straggler, rank 1", ("straggler",), rank=1),
          cuda=Cause("straggler, rank 1", ("straggler",), rank=1)),
    Fault("sleep-all-ranks", "all ranks sleep 50 ms in every step", DDP_STEP, RED,
          cpu=Cause("a longer step", ("step_change",), words=r"^step_seconds: "),
          cuda=Cause("the device runs dry", ("launch_gaps", "step_change"))),
    Fault("small-buckets", "DDP reduces gradients in tiny buckets", DDP_STEP, RED,
          cpu=Cause("small collectives", ("small_collectives",)),
          cuda=Cause("small collectives", ("small_collectives",))),
    Fault("extra-synchronise", "ranks and devices are waited for inside every step", DDP_STEP, RED,
          cpu=Cause("barriers in the step", ("barriers",)),
          cuda=Cause("the host waits for its device", ("host_sync", "launch_gaps"))),
    Fault("wrong-value", "rank 1 adds a wrong value to an all-reduce", ALLREDUCE, INVALID, launches=1,
          cpu=Cause("wrong values", words=r"element 3 is|wrong result|differ from the only right"),
          cuda=Cause("wrong values", words=r"element 3 is|wrong result|differ from the only right")),
    Fault("rank-killed", "rank 1 is killed in the middle of a case", ALLREDUCE, INVALID, launches=1,
          cpu=Cause("rank 1 by SIGKILL", words=r"rank 1\b.*SIGKILL"),
          cuda=Cause("rank 1 by SIGKILL", words=r"rank 1\b.*SIGKILL")),
    Fault("hang", "rank 1 never comes to a collective", ALLREDUCE, INVALID, launches=1, case_deadline=8.0,
          cpu=Cause("where rank 1 hangs", words=r"(?s)where rank 1 was:.*sitecustomize"),
          cuda=Cause("where rank 1 hangs", words=r"(?s)where rank 1 was:.*sitecustomize")),
    Fault("nan-gradient", "a gradient of rank 1 is NaN", DDP_STEP, INVALID, launches=1,
          cpu=Cause("the loss is NaN", words=r"loss is nan"), cuda=Cause("the loss is NaN", words=r"loss is nan")),
    Fault("cpu-load", "other processes keep every core busy", DDP_STEP, NOT_RED, load="cpu",
          cpu=Cause("a busy CPU, not the code", words=r"of the CPU was busy")),
    Fault("gpu-load", "another process computes on the GPU", DDP_STEP, NOT_RED, load="cuda",
          cuda=Cause("another process on the GPU", words=r"other processes on the GPU|processes on the GPU while|"
                                                         r"memory in use before")),
    Fault("pageable-copies", "every step copies from memory that is not pinned", DDP_STEP, RED,
          cuda=Cause("pageable copies", ("pageable_copies",))),
    Fault("one-channel", "NCCL may use one channel only", ALLREDUCE, RED, gpus=2,
          variables={"NCCL_MAX_NCHANNELS": "1", "NCCL_MIN_NCHANNELS": "1"},
          cuda=Cause("few channels", ("few_channels",))),
    Fault("small-nccl-buffer", "NCCL's buffer is 32 KiB", ALLREDUCE, RED, gpus=2,
          variables={"NCCL_BUFFSIZE": "32768"}, cuda=Cause("the metric alone")),
    Fault("p2p-off", "GPUs may not talk to each other directly", ALLREDUCE, RED, gpus=2,
          variables={"NCCL_P2P_DISABLE": "1"}, cuda=Cause("another transport", ("fallback_transport",))),
)
"""In the order they are tried."""
