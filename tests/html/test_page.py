"""The page as text: what stands in it before any script runs."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from regress.errors import UsageError
from regress.publish.html import build_report
from regress.publish.html.ceiling import nominal_bytes_per_second
from regress.record import Environment, Scalar, Verdict
from tests.html.histories import HOSTILE, MUST_MATCH, allreduce, story


def test_absent_bokeh_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "bokeh" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    with pytest.raises(UsageError, match=r"pip install 'comm-regress\[report\]'"):
        build_report([])


def test_unreadable_bokeh_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("bokeh")
    monkeypatch.setattr(importlib.util, "find_spec",
                        lambda name: ModuleSpec(name, None, origin=f"/nowhere/{module.__name__}/__init__.py"))
    with pytest.raises(UsageError, match="force-reinstall"):
        build_report([])


def test_page_names_no_outside_resource() -> None:
    html = build_report(story(20))
    own = html.split("<script>")[0]
    assert "default-src 'none'" in own
    assert "http://" not in own
    assert "https://" not in own
    assert "src=" not in own.replace("script-src", "").replace("img-src", "").replace("style-src", "").replace(
        "default-src", "")


def test_every_foreign_string_is_escaped_on_the_first_screen() -> None:
    runs = story(30)
    runs[0] = replace(
        runs[0], commit=replace(runs[0].commit, subject=HOSTILE, branch=HOSTILE), warnings=(HOSTILE,) * 5,
        health={HOSTILE: HOSTILE}, environment=Environment({**MUST_MATCH}, {"host": HOSTILE, HOSTILE: HOSTILE}),
        findings=tuple(replace(f, reason=HOSTILE) for f in runs[0].findings),
        diagnoses=tuple(replace(d, cause=HOSTILE, suggestion=HOSTILE, case=HOSTILE, evidence={HOSTILE: HOSTILE})
                        for d in runs[0].diagnoses))
    before_data = build_report(runs).split('<script type="application/json"')[0]
    assert "<img" not in before_data
    assert "\x1b" not in before_data
    assert "\u202e" not in before_data
    assert before_data.count("&lt;/script&gt;&lt;img src=x") > 10


@pytest.mark.parametrize(("verdict", "words"), [
    (Verdict.PASS, "Nothing is slower"), (Verdict.IMPROVEMENT, "Faster:"), (Verdict.INCONCLUSIVE, "Undecided:"),
    (Verdict.NO_BASELINE, "First look"), (Verdict.INVALID, "Not to be trusted"), (Verdict.REGRESSION, "Slower:")])
def test_each_verdict_in_words(verdict: Verdict, words: str) -> None:
    latest = story(30)[0]
    findings = tuple(replace(f, verdict=verdict) for f in latest.findings)
    html = build_report([replace(latest, verdict=verdict, findings=findings)])
    assert f"</span> {words}" in html


H200: dict[str, Scalar] = {"link_class": "NVLink 4.0 x18", "topology_class": "NVLink"}


@pytest.mark.parametrize(("facts", "rate"), [
    (H200, 450e9),
    ({**H200, "link_class": "NVLink 3.0 x12"}, 300e9),
    ({**H200, "link_class": "NVLink 5.0 x18"}, 900e9),
    ({"link_class": "PCIe 5 x16", "topology_class": "PHB"}, 63.015e9),
    ({"link_class": "PCIe 4 x16", "topology_class": "NODE+SYS"}, 31.508e9),
    ({**H200, "topology_class": "NODE+NVLink"}, None),
    ({**H200, "topology_class": "single"}, None),
    ({"link_class": "mixed", "topology_class": "NVLink"}, None),
    ({"link_class": "NVLink 9.0 x18", "topology_class": "NVLink"}, None),
    ({}, None),
])
def test_nominal_rate_of_the_link(facts: dict[str, Scalar], rate: float | None) -> None:
    found = nominal_bytes_per_second(Environment(facts), allreduce(2**20))
    assert found == (None if rate is None else pytest.approx(rate, rel=1e-4))


def test_no_nominal_rate_over_the_network() -> None:
    two_nodes = replace(allreduce(2**20), world_size=4, ranks_per_node=2)
    assert nominal_bytes_per_second(Environment(H200), two_nodes) is None
