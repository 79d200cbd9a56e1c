"""All checks over the facts, and the two forms of what they found: text and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from regress.doctor.facts import Facts, Finding, Level
from regress.doctor.gpu_checks import check_gpus
from regress.doctor.host_checks import check_host
from regress.doctor.project_checks import check_project
from regress.doctor.software_checks import check_software, check_tracing
from regress.errors import EXIT_OK, EXIT_UNTRUSTED


def _check_plan(facts: Facts) -> Iterator[Finding]:
    """Why a gate would get no ranks, where nothing else says so already."""
    if facts.plan_error is not None and facts.torch.error is None and (facts.visible or facts.wish != "cuda"):
        yield Finding("gpu", "ranks", Level.BLOCKS, facts.plan_error, "change `devices` in the thresholds file")


_CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    check_gpus, _check_plan, check_software, check_tracing, check_host, check_project)


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, in the order it was looked at. measures: the ranks a gate would get, in words."""

    measures: str
    findings: tuple[Finding, ...]

    @property
    def obstacles(self) -> tuple[Finding, ...]:
        """What should keep a CI job from starting: what blocks, and what would leave its run inconclusive."""
        return tuple(finding for finding in self.findings if finding.level is Level.BLOCKS or finding.doubtful)

    @property
    def verdict(self) -> str:
        """One line: fit, fit with warnings, or what keeps it from being fit."""
        blocks = sum(finding.level is Level.BLOCKS for finding in self.findings)
        doubts = len(self.obstacles) - blocks
        warnings = sum(finding.level is Level.WARN for finding in self.findings)
        if blocks:
            return f"not fit to measure: {counted(blocks, 'obstacle')}"
        if doubts:
            return f"a run would be inconclusive: {counted(doubts, 'reason')}"
        return f"fit to measure, {counted(warnings, 'warning')}" if warnings else "fit to measure"

    @property
    def ci_status(self) -> int:
        """The exit status with --ci."""
        return EXIT_UNTRUSTED if self.obstacles else EXIT_OK


def counted(number: int, noun: str) -> str:
    """"1 warning", "2 warnings"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def examine(facts: Facts) -> Report:
    """All checks over the facts. Pure."""
    return Report(_measures(facts), tuple(finding for check in _CHECKS for finding in check(facts)))


def _measures(facts: Facts) -> str:
    plan = facts.plan
    if plan is None:
        return "nothing can be measured here"
    place = "on the CPU" if plan.device == "cpu" else "sharing one GPU" if plan.shared_gpu else "on a GPU each"
    return f"{plan.world_size} ranks {place}, through {'gloo' if plan.backend == 'gloo' else 'NCCL'}"


def report_lines(report: Report) -> Sequence[tuple[str, Level | None]]:
    """The text form: each line with the level that colours it, None for plain ones."""
    lines: list[tuple[str, Level | None]] = [(f"comm-regress doctor: {report.measures}", None)]
    width = max(len(finding.name) for finding in report.findings)
    area = ""
    for finding in report.findings:
        if finding.area != area:
            area = finding.area
            lines += [("", None), (area, None)]
        lines.append((f"  {finding.level.value:6}  {finding.name:{width}}  {finding.seen}", finding.level))
        if finding.fix:
            lines.append((f"  {'':6}  {'':{width}}  fix: {finding.fix}", None))
    return [*lines, ("", None), (report.verdict, None)]


def report_json(report: Report) -> dict[str, object]:
    """The JSON form; `obstacles` are what --ci ends with status 10 for."""
    return {
        "measures": report.measures, "verdict": report.verdict, "fit": not report.obstacles,
        "findings": [{"area": finding.area, "name": finding.name, "level": finding.level.value, "seen": finding.seen,
                      "fix": finding.fix or None, "doubtful": finding.doubtful} for finding in report.findings],
        "obstacles": [f"{finding.name}: {finding.seen}" for finding in report.obstacles]}
