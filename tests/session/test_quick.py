"""`regress run --quick`: the same gate, made short; what is asked for by name stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from regress.catalog import open_shelves
from regress.config import load_config
from regress.session import GateRequest, quickened


def test_quick_shortens_launches_cases_budget_and_trace() -> None:
    request, config = quickened(GateRequest(Path(), None, ".comm-regress", quick=True),
                                load_config(None, open_shelves().catalog()))
    assert request.budget == 60
    assert request.trace == "none"
    for profile in (config.devices.cpu, config.devices.cuda):
        assert profile.launches == 2
        assert profile.case_duration <= 0.1


def test_what_is_asked_for_by_name_stays() -> None:
    asked = GateRequest(Path(), None, ".comm-regress", launches=5, budget=300, trace="kineto", quick=True)
    request, _ = quickened(asked, load_config(None, open_shelves().catalog()))
    assert request == asked


def test_a_shorter_duration_is_not_made_longer() -> None:
    config = load_config(None, open_shelves().catalog())
    short = replace(config, devices=replace(config.devices, cpu=replace(config.devices.cpu, case_duration=0.01)))
    assert quickened(GateRequest(Path(), None, "x"), short)[1].devices.cpu.case_duration == 0.01
