"""One run, every output: job summary, comment, annotations, JSON and JUnit tell the same figures and verdicts."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from regress.forge.github import GithubOptions, publish_github
from regress.forge.junit import junit_xml
from regress.forge.result_file import read_result
from regress.units import Unit, format_change, format_value
from tests.github.fake import fake_github
from tests.github.jobs import job, pull_event
from tests.github.runs import recorded_json

WORDS = {"REGRESSION": "regression", "INCONCLUSIVE": "inconclusive", "PASS": "pass", "NO BASELINE": "no-baseline",
         "IMPROVED": "improvement", "INVALID": "invalid"}
Figures = dict[tuple[str, str], tuple[str, str, str, str]]
"""(case, metric) to now, baseline, change and verdict as people read them."""


def of_json(content: bytes) -> Figures:
    return {(case["case"], row["metric"]): (
        format_value(row["now"], Unit(row["unit"])), format_value(row["baseline"], Unit(row["unit"])),
        format_change(row["change"]), row["verdict"])
        for case in json.loads(content)["cases"] for row in case["metrics"]}


def by_case(content: bytes) -> Figures:
    """The same with the verdict of the case, which is the one that JUnit has."""
    verdicts = {case["case"]: case["verdict"] for case in json.loads(content)["cases"]}
    return {(case, metric): (*figures[:3], verdicts[case]) for (case, metric), figures in of_json(content).items()}


def of_markdown(text: str) -> Figures:
    found: Figures = {}
    for line in text.splitlines():
        cells = [html.unescape(re.sub("</?code>", "", cell)).strip() for cell in line.split(" | ")]
        verdict = cells[-1].removesuffix(" |") if len(cells) == 8 else ""
        if verdict in WORDS:
            found[cells[1], cells[2]] = (cells[3], cells[4], cells[5].split(" [")[0], WORDS[verdict])
    return found


def of_annotations(lines: list[str]) -> Figures:
    found: Figures = {}
    for line in lines:
        match = re.fullmatch(r"::\w+ title=(.+?)%3A ([A-Z ]+)::([a-z_]+): (.+?) now, (.+?) in the baseline, "
                             r"(.+?)(?: \[.*)?, \d+ launches%0A.*", line.replace("%25", "%"))
        if match is not None:
            found[match[1], match[3]] = (match[4], match[5], match[6], WORDS[match[2]])
    return found


def of_junit(content: bytes, result: dict[str, Any]) -> Figures:
    units = {(case["case"], row["metric"]): Unit(row["unit"]) for case in result["cases"] for row in case["metrics"]}
    found: Figures = {}
    for case in ElementTree.fromstring(content).iter("testcase"):  # noqa: S314 - our own text
        properties = {item.attrib["name"]: item.attrib["value"] for item in case.iter("property")}
        for (name, metric), unit in units.items():
            if name == case.attrib["name"] and f"{metric}.now" in properties:
                numbers = {key: float(properties[f"{metric}.{key}"]) if f"{metric}.{key}" in properties else None
                           for key in ("now", "baseline", "change")}
                found[name, metric] = (format_value(numbers["now"], unit), format_value(numbers["baseline"], unit),
                                       format_change(numbers["change"]), properties["verdict"])
    return found


def of_report(page: str, expected: Figures) -> Figures:
    """The rows of the report's first table that are among the judged ones."""
    found: Figures = {}
    for row in re.findall(r"<tr.*?</tr>", page[page.index('id="overview"'):page.index("</table>")], re.DOTALL):
        name = re.search(r"<button[^>]*>(.*?) <b>(.*?)</b>", row)
        cells = dict(re.findall(r'<td data-head="(Now|Baseline|Change)"[^>]*>(.*?)</td>', row, re.DOTALL))
        if name is not None and (html.unescape(name[1]), name[2]) in expected:
            plain = [html.unescape(re.sub("<small>.*", "", cells[head])).strip()
                     for head in ("Now", "Baseline", "Change")]
            verdict = re.search(r'class="tag v-([a-z-]+)', row)
            assert verdict is not None
            found[html.unescape(name[1]), name[2]] = (plain[0], plain[1], plain[2], verdict[1])
    return found


def compare_outputs(content: bytes, folder: Path) -> None:
    """Publishes the gate's JSON and holds every output against it; for any result with a row for each metric."""
    lines: list[str] = []
    with fake_github() as server:
        environment = job(folder, server.url, pull_event())
        published = publish_github(content, environment, options=GithubOptions(comment="always", check="auto"),
                                   paths={"json-path": folder / "result.json"}, write=lines.append)
        (comment,), (check,) = server.bodies(7), server.checks
    assert published.failures == ()
    result = json.loads(content)
    expected = of_json(content)
    assert of_markdown((folder / "summary.md").read_text()) == expected
    assert of_markdown(comment) == expected
    assert of_markdown(check["output"]["summary"]) == expected
    assert of_junit(junit_xml(read_result(content, "made")), result) == by_case(content)
    told = of_annotations(lines)
    assert told == {key: value for key, value in expected.items() if value[3] in ("regression", "inconclusive")}
    outputs = (folder / "output").read_text()
    assert f"\n{result['verdict']}\n" in outputs
    assert f"\n{result['exit_status']}\n" in outputs


def test_every_output_of_one_run_tells_the_same(tmp_path: Path) -> None:
    content = recorded_json()
    assert len(of_json(content)) == 4
    compare_outputs(content, tmp_path)


def test_junit_counts_are_those_of_the_verdicts() -> None:
    suite = ElementTree.fromstring(junit_xml(read_result(recorded_json(), "made")))[0]  # noqa: S314 - our own text
    assert {name: suite.attrib[name] for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "0", "skipped": "1"}
    failure = next(suite.iter("failure"))
    assert "allreduce_seconds (value): 12.3 ms now, 9.88 ms in the baseline" in str(failure.text)


def test_junit_is_xml_whatever_the_texts_hold() -> None:
    content = recorded_json().replace(b"made to be regression", b"\\u0000\\u001b]]></failure>\\ufffe&")
    text = "".join(ElementTree.fromstring(junit_xml(read_result(content, "made"))).itertext())  # noqa: S314
    assert "\\u0000\\u001b]]></failure>\\ufffe&" in text
