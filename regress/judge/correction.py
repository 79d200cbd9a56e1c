"""Many series, one build: what is significant alone may not be so among all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from regress.judge.statistics import holm
from regress.record import Finding, Verdict

SAME = 1e-6
"""Relative difference of two p below which they are one: far above rounding, far below what metrics share by luck."""


def corrected(findings: Sequence[Finding], fresh_cases: set[str], alpha: float) -> list[Finding]:
    """Holm's correction: what is significant alone may not be so among many series.

    Each detector's gated findings are one family, the others another. Series re-measured against an interleaved base
    form their own: those launches are independent of what made the series suspect, so only the suspects count.
    A case's time and its bandwidth are one figure in two forms: they stand or fall together and count once.
    """
    corrected = list(findings)
    families: dict[tuple[str, bool, bool], list[int]] = {}
    for index, finding in enumerate(findings):
        if finding.p_value is not None:
            key = (finding.detector, finding.gated, finding.case in fresh_cases)
            families.setdefault(key, []).append(index)
    for members in families.values():
        figures = _figures(findings, members)
        p_values = holm([findings[same[0]].p_value or 0.0 for same in figures])
        for same, adjusted in zip(figures, p_values, strict=True):
            for index in same:
                if adjusted > alpha and findings[index].significant:
                    corrected[index] = _demoted(findings[index], adjusted, len(figures), alpha)
    return corrected


def _figures(findings: Sequence[Finding], members: Sequence[int]) -> list[list[int]]:
    """Members by what they say: those of one case whose p is the same, but for rounding, rest on the same figure.

    On the log scale S over a time differs from that time by its sign and a constant, so its p is that of the time.
    A p of 1 is where many different things end, so it joins nothing.
    """
    figures: list[list[int]] = []
    for index in members:
        case, p_value = findings[index].case, findings[index].p_value or 0.0
        twin = next((same for same in figures if findings[same[0]].case == case and 0.0 < p_value < 1.0
                     and math.isclose(findings[same[0]].p_value or 0.0, p_value, rel_tol=SAME)), None)
        if twin is None:
            figures.append([index])
        else:
            twin.append(index)
    return figures


def _demoted(finding: Finding, adjusted: float, family: int, alpha: float) -> Finding:
    verdict = {Verdict.REGRESSION: Verdict.INCONCLUSIVE, Verdict.IMPROVEMENT: Verdict.PASS}.get(
        finding.verdict, finding.verdict)
    reason = f"{finding.reason}; among {family} series p = {adjusted:.2g}, which is above {alpha:g}"
    return replace(finding, significant=False, verdict=verdict,
                   reason=reason if verdict is not finding.verdict else finding.reason)
