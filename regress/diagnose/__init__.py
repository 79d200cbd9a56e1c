"""The shelf of rules: what one run shows, the likely cause, and the change to try.

A rule is one `Rule` value in a file beside this one. It looks at one run, and where there is one at an earlier run to
compare with, and returns what it found: nothing where it cannot tell. What it needs to tell anything is declared, so
that "found nothing" and "could not look" are two answers.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from regress.record import Diagnosis, Environment, Scalar
from regress.shelf import variants

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis
    from regress.trace.nccl_log import NcclLog

CRITICAL, WARNING, INFO = "critical", "warning", "info"
SEVERITIES = (CRITICAL, WARNING, INFO)
HIGH, MEDIUM, LOW = "high", "medium", "low"
"""Confidence: the cause itself was seen; it is inferred from what was seen; other causes are as likely."""
NEW = "new"
SHARE = "share_of_window"
"""The key of evidence that ranks findings of one severity: part of the window that the finding costs, at most.

The window of `Lane.in_window` on a device, not the step ranges on its host: a host that runs ahead of its device
spends most of a range that is a small part of the step."""
COST = "cost_seconds_per_step"
"""The key of evidence that says the same in seconds of a mean step, where the trace has steps."""
PAGEABLE_BYTES_PER_STEP = 1 << 20
"""From here on a rank's pageable copies are a fault of their own, and waiting for them is part of it."""
ONE_NUMBER_BYTES = 8
"""Messages up to this size are single numbers: a loss, a norm, a barrier."""
_CARRIES = 0.5
"""A cause must cost at least this part of what its consequence costs: a small fault does not explain a big loss."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known of one run: its traces, and what was said and seen beside them.

    nccl: what NCCL's log says; None where there is none. decisions: what NCCL chose by operation and size, where that
    is kept of a run and its log is not. messages: lines of the ranks' output that speak of trouble
    in communication. health: facts of the GPUs and the host while it ran. environment: its facts. cost_per_gpu_hour:
    what an hour of one GPU costs, in the reader's currency.
    """

    analysis: Analysis
    nccl: NcclLog | None = None
    messages: tuple[str, ...] | None = None
    health: Mapping[str, Scalar] = field(default_factory=dict)
    environment: Environment | None = None
    cost_per_gpu_hour: float | None = None
    decisions: Mapping[str, str] = field(default_factory=dict)

    @property
    def chosen(self) -> Mapping[str, str]:
        """What NCCL chose, by operation and size; empty where nothing says."""
        return self.decisions or (self.nccl.decisions if self.nccl is not None else {})


class Need(enum.Enum):
    """What a rule cannot do without; its value says so to people."""

    STEPS = "step ranges"
    DEVICE = "kernels of a GPU"
    SIZES = "message sizes"
    RANKS = "collectives matched across ranks"
    DURATIONS = "ranks that do not take turns on one GPU"
    BEFORE = "a run to compare with"
    HOST_BACKEND = "a trace of torch.profiler, as nsys does not see a CPU backend"
    NCCL_LOG = "NCCL's log"
    MESSAGES = "NCCL's log or the ranks' output"
    HEALTH = "readings of the machine's health"
    CHOICES = "what NCCL chose, in both runs"


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing to look for.

    summary: what it finds, in one sentence. source: why that is a fault, and what its thresholds rest on.
    check: looks at the traces of this run, and of the run it is compared with or None. examine: the same for a rule
    that looks at more than traces. needs: without these it is not applicable. explains: whether another finding
    (second argument) follows from a finding of this rule (first).
    """

    name: str
    summary: str
    source: str
    check: Callable[[Analysis, Analysis | None], list[Diagnosis]] | None = None
    examine: Callable[[Circumstances, Circumstances | None], list[Diagnosis]] | None = None
    needs: tuple[Need, ...] = ()
    explains: Callable[[Diagnosis, Diagnosis], bool] | None = None


def follows(*rules: str, same_rank: bool = False) -> Callable[[Diagnosis, Diagnosis], bool]:
    """What `Rule.explains` is for most rules: findings of these rules, of the same rank where that matters.

    Communication that mostly waits for a late rank follows from what makes the rank late and from nothing else, so it
    is left to the rules that name the rank.
    """
    def explains(cause: Diagnosis, other: Diagnosis) -> bool:
        if other.rule not in rules or (same_rank and cause.evidence.get("rank") != other.evidence.get("rank")):
            return False
        return not mostly_waits(other)
    return explains


def mostly_waits(finding: Diagnosis) -> bool:
    """Whether a finding about exposed communication is about waiting for a late rank."""
    share = finding.evidence.get("waiting_share_of_exposed")
    return isinstance(share, float) and share > 0.5


def missing(rule: Rule, seen: Circumstances, against: Circumstances | None) -> tuple[Need, ...]:
    """What the rule needs and these runs do not give; empty where it applies."""
    return tuple(need for need in rule.needs if not _given(need, seen, against))


def _given(need: Need, seen: Circumstances, against: Circumstances | None) -> bool:
    analysis = seen.analysis
    other = against.analysis if against is not None else None
    answers: dict[Need, Callable[[], bool]] = {
        Need.STEPS: lambda: analysis.steps is not None,
        Need.DEVICE: lambda: bool(analysis.device_lanes),
        Need.SIZES: lambda: any(bool((lane.collectives.size_bytes > 0).any()) for lane in analysis.lanes),
        Need.RANKS: lambda: analysis.matching.count > 0,
        Need.DURATIONS: lambda: not analysis.health.time_sliced and (other is None or not other.health.time_sliced),
        Need.BEFORE: lambda: against is not None,
        Need.HOST_BACKEND: lambda: analysis.tracer.value == "kineto",
        Need.NCCL_LOG: lambda: _logged(seen),
        Need.MESSAGES: lambda: _logged(seen) or seen.messages is not None,
        Need.HEALTH: lambda: bool(seen.health),
        Need.CHOICES: lambda: against is not None and bool(seen.chosen) and bool(against.chosen)}
    return answers[need]()


def _logged(seen: Circumstances) -> bool:
    return seen.nccl is not None and bool(seen.nccl.versions or seen.nccl.members)


def rules() -> dict[str, Rule]:
    """Every rule on the shelf, by name."""
    return variants(sys.modules[__name__], Rule)


def diagnose(analysis: Analysis, against: Analysis | None = None) -> tuple[Diagnosis, ...]:
    """`diagnose_run` where nothing but traces is known."""
    return diagnose_run(Circumstances(analysis), None if against is None else Circumstances(against))


def diagnose_run(seen: Circumstances, against: Circumstances | None = None) -> tuple[Diagnosis, ...]:
    """What all rules find, each root cause once with its consequences beneath it.

    Worst first: by severity, what is new, the time it costs per step, and name. With a run to compare with, evidence
    says under `new` whether the rule found nothing there, and so does the cause.
    """
    shelf = rules()
    found = _look(shelf, seen, against)
    if against is not None:
        before = {finding.rule for finding in _look(shelf, against, None)}
        found = [finding if Need.BEFORE in shelf[finding.rule].needs or Need.CHOICES in shelf[finding.rule].needs
                 else _compared(finding, finding.rule not in before) for finding in found]
    priced = [_priced(finding, seen.analysis) for finding in found]
    return tuple(_gathered(shelf, sorted(priced, key=_order)))


def _look(shelf: Mapping[str, Rule], seen: Circumstances, against: Circumstances | None) -> list[Diagnosis]:
    found: list[Diagnosis] = []
    for rule in shelf.values():
        if missing(rule, seen, against):
            continue
        if rule.check is not None:
            found += rule.check(seen.analysis, None if against is None else against.analysis)
        if rule.examine is not None:
            found += rule.examine(seen, against)
    return found


def _compared(finding: Diagnosis, new: bool) -> Diagnosis:
    said = "new: not so in the run compared with" if new else "as in the run compared with"
    return replace(finding, evidence={**finding.evidence, NEW: new}, cause=f"{finding.cause} ({said})")


def _priced(finding: Diagnosis, analysis: Analysis) -> Diagnosis:
    """The finding with its cost in seconds of a mean step, where the trace has steps."""
    if analysis.steps is None or SHARE not in finding.evidence:
        return finding
    lane = next((lane for lane in analysis.lanes if lane.rank == finding.evidence.get("rank")), analysis.lanes[0])
    span = lane.in_window.span_ns or lane.window.host.total
    return replace(finding, evidence={**finding.evidence, COST: _share(finding) * span / lane.window.steps / 1e9})


def _order(finding: Diagnosis) -> tuple[int, bool, float, str]:
    return (SEVERITIES.index(finding.severity), not finding.evidence.get(NEW, True), -_share(finding), finding.rule)


def _gathered(shelf: Mapping[str, Rule], ordered: list[Diagnosis]) -> list[Diagnosis]:
    """Only causes at the top, each with all that follows from it beneath, whether directly or through another."""
    causes = {place: cause for place in range(len(ordered)) if (cause := _cause(shelf, ordered, place)) is not None}
    beneath: dict[int, list[Diagnosis]] = {}
    for place in causes:
        root = place
        while root in causes:
            root = causes[root]
        beneath.setdefault(root, []).append(ordered[place])
    return [replace(finding, consequences=tuple(beneath.get(place, ())))
            for place, finding in enumerate(ordered) if place not in causes]


def _cause(shelf: Mapping[str, Rule], ordered: list[Diagnosis], place: int) -> int | None:
    """The first other finding, no less severe, that this one follows from. No two rules may explain each other."""
    mine = ordered[place]
    for other, cause in enumerate(ordered):
        if other == place or SEVERITIES.index(cause.severity) > SEVERITIES.index(mine.severity):
            continue
        if _follows(shelf[cause.rule], cause, mine):
            return other
    return None


def _follows(rule: Rule, cause: Diagnosis, other: Diagnosis) -> bool:
    if rule.explains is None or not rule.explains(cause, other):
        return False
    return SHARE not in cause.evidence or _share(cause) >= _CARRIES * _share(other)


def _share(finding: Diagnosis) -> float:
    share = finding.evidence.get(SHARE)
    return float(share) if isinstance(share, (int, float)) else 0.0
