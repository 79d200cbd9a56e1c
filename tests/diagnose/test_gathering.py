"""One root cause with its consequences beneath it; order, cost and confidence of findings; money."""

from __future__ import annotations

import itertools

import pytest

from regress.diagnose import COST, SHARE, Circumstances, diagnose, diagnose_run, follows, mostly_waits, rules
from regress.record import Diagnosis
from regress.result import explanation
from regress.trace.read import read_traces
from tests.trace.samples import NSYS, sample

READABLE = [name for name in NSYS if name != "public/nsys-ai_h100_2gpu_1s"]


@pytest.mark.parametrize(("name", "cause", "beneath"), [
    ("sliced/straggler", "straggler", {"launch_gaps", "host_sync"}),
    ("mps/pageable", "pageable_copies", {"launch_gaps"}),
    ("mps/sync_loop", "host_sync", {"launch_gaps"}), ("mps/accum_sync", "accumulation", {"exposed_comm"}),
    # Its healthy twin loses as much to exposed transfer: fewer pieces would win back a third of it at most.
    ("mps/small_buckets", "small_collectives", set()), ("nvlink/good", "straggler", {"launch_gaps", "exposed_comm"})])
def test_what_follows_stands_beneath_its_cause(name: str, cause: str, beneath: set[str]) -> None:
    found = next(one for one in diagnose(read_traces([sample(name)])) if one.rule == cause)
    assert {one.rule for one in found.consequences} == beneath


@pytest.mark.parametrize("name", READABLE)
def test_nothing_is_said_twice(name: str) -> None:
    found = diagnose(read_traces([sample(name)]))
    everything = [one for cause in found for one in (cause, *cause.consequences)]
    assert len({one.cause for one in everything}) == len(everything)
    assert all(not under.consequences for cause in found for under in cause.consequences)
    assert all(one.confidence in ("high", "medium", "low") for one in everything)


@pytest.mark.parametrize("name", READABLE)
def test_findings_of_one_severity_come_by_what_they_cost_a_step(name: str) -> None:
    found = diagnose(read_traces([sample(name)]))
    for _, group in itertools.groupby(found, key=lambda one: one.severity):
        costs = [float(one.evidence.get(SHARE) or 0.0) for one in group]
        assert costs == sorted(costs, reverse=True)


def test_a_cost_is_seconds_of_a_step() -> None:
    analysis = read_traces([sample("mps/pageable")])
    finding = diagnose(analysis)[0]
    lane = analysis.lanes[0]
    cost, share = finding.evidence[COST], finding.evidence[SHARE]
    assert isinstance(cost, float)
    assert isinstance(share, float)
    assert cost == pytest.approx(share * lane.in_window.span_ns / lane.window.steps / 1e9)
    assert not any(COST in one.evidence for one in diagnose(read_traces([sample("mps/micro_1channel")])))


def _finding(rule: str, **evidence: float) -> Diagnosis:
    return Diagnosis(rule, "warning", dict(evidence), rule, "try")


def test_waiting_for_a_late_rank_follows_from_nothing_but_the_rank() -> None:
    waiting = _finding("exposed_comm", waiting_share_of_exposed=0.9)
    assert mostly_waits(waiting)
    assert not follows("exposed_comm")(_finding("small_collectives"), waiting)
    assert follows("exposed_comm")(_finding("small_collectives"), _finding("exposed_comm"))
    straggler = rules()["straggler"].explains
    assert straggler is not None
    assert straggler(_finding("straggler", rank=1), waiting)
    assert not straggler(_finding("straggler", rank=1), _finding("launch_gaps", rank=0))


def test_no_two_rules_explain_each_other() -> None:
    shelf = rules()
    made = {name: _finding(name, rank=0) for name in shelf}
    for one, other in itertools.permutations(shelf, 2):
        first, second = shelf[one].explains, shelf[other].explains
        assert not (first is not None and second is not None and first(made[one], made[other])
                    and second(made[other], made[one])), (one, other)


def test_money_is_said_where_it_was_asked_for() -> None:
    now, before = (Circumstances(read_traces([sample(f"mps/{name}")])) for name in ("pageable", "good"))
    plain = next(one for one in diagnose_run(now, before) if one.rule == "step_change")
    assert "cost_per_day" not in plain.evidence
    priced = Circumstances(now.analysis, cost_per_gpu_hour=2.0)
    found = next(one for one in diagnose_run(priced, before) if one.rule == "step_change")
    daily = found.evidence["cost_per_day"]
    step, old = found.evidence["step_seconds"], found.evidence["step_seconds_before"]
    assert isinstance(daily, float)
    assert isinstance(step, float)
    assert isinstance(old, float)
    assert daily == pytest.approx(24 * 2.0 * (step / old - 1))
    assert "a day for the same work" in found.cause


def test_mfu_makes_no_claim_about_overlap_but_says_why_there_is_none() -> None:
    found = diagnose(read_traces([sample("public/nsys-ai_mfu_2gpu_before")]))
    assert [one.rule for one in found] == ["serial_comm"]
    assert "run on a stream that computes too" in found[0].cause


@pytest.mark.parametrize("name", ["mps/micro", "nvlink/micro", "sliced/micro_metrics"])
def test_a_benchmark_of_collectives_has_measurement_findings_only(name: str) -> None:
    found = diagnose(read_traces([sample(name)]))
    assert {one.rule for one in found} <= {"measurement_faults", "unfit_measurement"}
    reasons = {one.evidence["reason"] for one in found}
    assert "few_iterations" in reasons
    assert ("cold_start" in reasons) == (name == "sliced/micro_metrics")


def test_the_gates_json_has_causes_with_their_consequences() -> None:
    found = explanation(diagnose(read_traces([sample("mps/pageable")]))[0])
    assert found.keys() == {"rule", "severity", "confidence", "evidence", "cause", "try", "consequences"}
    assert [one["rule"] for one in found["consequences"]] == ["launch_gaps"]
    assert "consequences" not in found["consequences"][0]
