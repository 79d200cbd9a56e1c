"""The shelf of rules: what a trace shows, the likely cause, and the change to try.

A rule is one `Rule` value in a file beside this one. It looks at one run, and where there is one at an earlier run to
compare with, and returns what it found: nothing where it does not apply or cannot tell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regress.record import Diagnosis
from regress.shelf import variants

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

CRITICAL, WARNING, INFO = "critical", "warning", "info"
SEVERITIES = (CRITICAL, WARNING, INFO)
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
    """What all rules find, worst first: by severity, then by the share of the window it costs, then by name."""
    rules = variants(sys.modules[__name__], Rule).values()
    found = [finding for rule in rules for finding in rule.check(analysis, against)]
    return tuple(sorted(found, key=lambda one: (SEVERITIES.index(one.severity), -_share(one), one.rule)))


def _share(finding: Diagnosis) -> float:
    share = finding.evidence.get(SHARE)
    return float(share) if isinstance(share, (int, float)) else 0.0
