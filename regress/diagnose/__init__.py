"""The shelf of rules: what a trace shows, the likely cause, and the change to try.

A rule is one `Rule` value in a file beside this one. It looks at one run, and where there is one at an earlier run to
compare with, and returns what it found: nothing where it does not apply or cannot tell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from regress.record import Diagnosis
from regress.shelf import variants

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

CRITICAL, WARNING, INFO = "critical", "warning", "info"
SEVERITIES = (CRITICAL, WARNING, INFO)
NEW = "new"
SHARE = "share_of_window"
"""The key of evidence that ranks findings of one severity: part of the window that the finding costs, at most."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing to look for.

    summary: what it finds, in one sentence. source: why that is a fault, and what its thresholds rest on.
    check: this run, and the run it is compared with or None.
    """

    name: str
    summary: str
    source: str
    check: Callable[[Analysis, Analysis | None], list[Diagnosis]]


def diagnose(analysis: Analysis, against: Analysis | None = None) -> tuple[Diagnosis, ...]:
    """What all rules find, worst first: by severity, what is new, the share of the window it costs, and name.

    With a run to compare with, evidence says under `new` whether the rule found nothing there, and so does the cause.
    """
    rules = variants(sys.modules[__name__], Rule).values()
    found = [finding for rule in rules for finding in rule.check(analysis, against)]
    if against is not None:
        before = {finding.rule for rule in rules for finding in rule.check(against, None)}
        found = [_compared(finding, finding.rule not in before) for finding in found]
    return tuple(sorted(found, key=lambda one: (SEVERITIES.index(one.severity), not one.evidence.get(NEW, True),
                                                -_share(one), one.rule)))


def _compared(finding: Diagnosis, new: bool) -> Diagnosis:
    said = "new: not so in the run compared with" if new else "as in the run compared with"
    return replace(finding, evidence={**finding.evidence, NEW: new}, cause=f"{finding.cause} ({said})")


def _share(finding: Diagnosis) -> float:
    share = finding.evidence.get(SHARE)
    return float(share) if isinstance(share, (int, float)) else 0.0
