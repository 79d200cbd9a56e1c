"""Faults planted in real training steps of two gloo ranks, named by the gate's own traced launch (torch.profiler).

Marked slow: who waits for whom in real ranks is decided by what else the host does, so they need one that is idle. The
same rules are held to recorded traces in `test_rules.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from regress.catalog import open_shelves
from regress.config import load_config
from regress.measure.ranks import RankPlan
from regress.measuring import Campaign
from regress.record import Case, Diagnosis, TimingMode
from regress.tracing import Tracer, trace_cases

pytestmark = pytest.mark.slow

PLANTED = {"small_buckets": "small_collectives", "extra_barrier": "barriers", "late_rank": "straggler",
           "accum_sync": "accumulation"}


class Silent:
    """An observer that says nothing."""

    def message(self, text: str) -> None:
        """Not shown."""

    def case_started(self, text: str) -> None:
        """Not shown."""

    def progress(self, text: str) -> None:
        """Not shown."""


@pytest.fixture(scope="module")
def traced() -> dict[str, list[Diagnosis]]:
    """What the gate's traced launch of all these steps says, by step."""
    shelves = open_shelves()
    config = load_config(None, shelves.catalog())
    config = replace(config, devices=replace(config.devices, cpu=replace(config.devices.cpu, case_duration=0.4)))
    cases = {step: Case("ddp_step", "float32", 2, "cpu", TimingMode.STEP, options=(("step", f"planted_steps:{step}"),))
             for step in ("good", *PLANTED)}
    with Campaign(config, RankPlan(2, "cpu", "gloo", False, 1), Path(__file__).parent,
                  {"ddp_step": shelves.metrics_of("ddp_step")}, Silent()) as campaign:
        found = trace_cases(Tracer("kineto"), campaign, tuple(cases.values()))
        errors = [launch.error for launch in campaign.launches if launch.error]
    assert not errors
    assert not [text for text in found.warnings if "not traced" in text]
    return {step: [one for one in found.diagnoses if one.case == case.id] for step, case in cases.items()}


@pytest.mark.parametrize(("step", "rule"), PLANTED.items())
def test_a_planted_fault_is_named_first(step: str, rule: str, traced: dict[str, list[Diagnosis]]) -> None:
    found = traced[step]
    assert (found[0].rule, found[0].severity) == (rule, "critical")
    if rule == "straggler":
        assert found[0].evidence["rank"] == 1
    if rule == "accumulation":
        assert found[0].evidence["reductions_per_step"] == 4


def test_a_step_without_a_fault_has_nothing_critical(traced: dict[str, list[Diagnosis]]) -> None:
    assert [one.rule for one in traced["good"] if one.severity == "critical"] == []
