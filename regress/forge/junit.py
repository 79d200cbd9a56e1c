"""JUnit XML from the gate's JSON, for forges that read it where pytest did not run (GitLab, Jenkins).

The same mapping as under pytest: a regression that fails the build is a failure, an invalid case an error, an
inconclusive one is skipped with its reason; `verdict` and `<metric>.now|baseline|change` are properties.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree  # written only, never parsed

from regress.record import Verdict
from regress.result import CaseRow, GateResult
from regress.terminal import failure_text, summary_line

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(result: GateResult) -> bytes:
    """One suite, a test case for each case; UTF-8."""
    outcomes = [_outcome(case) for case in result.cases]
    suite = ElementTree.Element("testsuite", {
        "name": "comm-regress", "tests": str(len(outcomes)), "failures": str(outcomes.count("failure")),
        "errors": str(outcomes.count("error")), "skipped": str(outcomes.count("skipped")),
        "timestamp": _plain(str(result.run.get("started_at", "")))})
    for case, outcome in zip(result.cases, outcomes, strict=True):
        suite.append(_test_case(case, outcome))
    ElementTree.SubElement(suite, "system-out").text = _plain("\n".join([summary_line(result), *result.warnings]))
    root = ElementTree.Element("testsuites", {"name": "comm-regress"})
    root.append(suite)
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _outcome(case: CaseRow) -> str | None:
    if case.verdict is Verdict.INVALID:
        return "error"
    failing = any(row.verdict is Verdict.REGRESSION and row.severity == "fail" for row in case.metrics)
    if case.verdict is Verdict.REGRESSION and failing:
        return "failure"
    return "skipped" if case.verdict is Verdict.INCONCLUSIVE else None


def _test_case(case: CaseRow, outcome: str | None) -> ElementTree.Element:
    element = ElementTree.Element("testcase", {"classname": "comm-regress", "name": _plain(case.case)})
    properties = ElementTree.SubElement(element, "properties")
    _property(properties, "verdict", case.verdict.value)
    for row in case.metrics:
        for name, value in (("now", row.now), ("baseline", row.baseline), ("change", row.change)):
            if value is not None:
                _property(properties, f"{row.metric}.{name}", repr(value))
    if outcome == "skipped":
        reasons = [row.reason for row in case.metrics if row.verdict is Verdict.INCONCLUSIVE]
        ElementTree.SubElement(element, outcome, {"message": _plain(f"inconclusive: {'; '.join(reasons)}")})
    elif outcome is not None:
        told = _plain(failure_text(case, ()))
        ElementTree.SubElement(element, outcome, {"message": told.split("\n", 1)[0]}).text = told
    return element


def _property(parent: ElementTree.Element, name: str, value: str) -> None:
    ElementTree.SubElement(parent, "property", {"name": _plain(name), "value": _plain(value)})


def _plain(text: str) -> str:
    """Text without the characters that XML 1.0 has no place for."""
    return _NOT_XML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
