"""Many series, one build: what is significant alone may not be so among all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regress.judge.statistics import holm
from regress.record import Finding, Verdict


def corrected(findings: Sequence[Finding], fresh_cases: set[str], alpha: float) -> list[Finding]:
    """Holm's correction: what is significant alone may not be so among many series.

    Each detector's gated findings are one family, the others another. Series re-measured against an interleaved base
    form their own: those launches are independent of what made the series suspect, so only the suspects count.
    """
    corrected = list(findings)
    families: dict[tuple[str, bool, bool], list[int]] = {}
    for index, finding in enumerate(findings):
        if finding.p_value is not None:
            key = (finding.detector, finding.gated, finding.case in fresh_cases)
            families.setdefault(key, []).append(index)
    for members in families.values():
        p_values = holm([findings[i].p_value or 0.0 for i in members])
        for index, adjusted in zip(members, p_values, strict=True):
            finding = findings[index]
            if adjusted > alpha and finding.significant:
                corrected[index] = _demoted(finding, adjusted, len(members), alpha)
    return corrected


def _demoted(finding: Finding, adjusted: float, family: int, alpha: float) -> Finding:
    verdict = {Verdict.REGRESSION: Verdict.INCONCLUSIVE, Verdict.IMPROVEMENT: Verdict.PASS}.get(
        finding.verdict, finding.verdict)
    reason = f"{finding.reason}; among {family} series p = {adjusted:.2g}, which is above {alpha:g}"
    return replace(finding, significant=False, verdict=verdict,
                   reason=reason if verdict is not finding.verdict else finding.reason)
