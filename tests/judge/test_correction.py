"""How many figures a build is said to have judged, and what that does to each."""

from __future__ import annotations

import pytest

from regress.judge.baseline import Baseline
from regress.judge.correction import corrected
from regress.judge.verdict import judge
from regress.record import Finding, Launch, Verdict
from regress.units import Better, Unit
from tests.judge.made import CASE, METRIC, case, launches, policies, run

ALPHA = 0.002
BUSBW = "busbw_bytes_per_second"
QUIET = (1.000e-3, 1.004e-3, 0.997e-3)


def finding(p_value: float, of: str = CASE.id, metric: str = METRIC, *, gated: bool = True,
            detector: str = "shift") -> Finding:
    """Significant alone, and a regression for it."""
    return Finding(case=of, metric=metric, unit=Unit.SECONDS, detector=detector, verdict=Verdict.REGRESSION,
                   statistic="p25", reason="seen", p_value=p_value, significant=True, relevant=True, gated=gated)


def verdicts(*findings: Finding, fresh: frozenset[str] = frozenset()) -> list[Verdict]:
    return [found.verdict for found in corrected(findings, set(fresh), ALPHA)]


def test_one_of_many_must_be_surer_than_one_alone() -> None:
    others = [finding(0.9, f"other{i}") for i in range(3)]
    assert verdicts(finding(0.0015))[0] is Verdict.REGRESSION
    found = corrected([finding(0.0015), *others], set(), ALPHA)[0]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert not found.significant
    assert found.reason == "seen; among 4 series p = 0.006, which is above 0.002"
    assert verdicts(finding(0.00049), *others)[0] is Verdict.REGRESSION


def test_a_time_and_its_bandwidth_count_once_and_fall_together() -> None:
    twins = (finding(0.00095), finding(0.00095 * (1 + 1e-12), metric=BUSBW))
    others = (finding(0.5, "other"), finding(0.5 * (1 - 1e-12), "other", BUSBW))
    assert verdicts(*twins, *others)[:2] == [Verdict.REGRESSION] * 2
    found = corrected([*twins, *others, finding(0.5, "third")], set(), ALPHA)
    assert [f.verdict for f in found[:2]] == [Verdict.INCONCLUSIVE] * 2
    assert "among 3 series" in found[0].reason
    assert "among 3 series" in found[1].reason


@pytest.mark.parametrize("other", [finding(0.00095, "other"), finding(0.00096, metric="step_seconds")],
                         ids=["another case", "another figure of the case"])
def test_what_only_looks_alike_counts_for_itself(other: Finding) -> None:
    found = corrected([finding(0.00095), other, finding(0.5, "third")], set(), ALPHA)
    assert "among 3 series" in found[0].reason


def test_series_of_which_nothing_can_be_said_are_not_one() -> None:
    """A p of 1 is where all things end that did not move at all."""
    found = corrected([finding(0.00095), finding(1.0, "other", "a"), finding(1.0, "other", "b")], set(), ALPHA)
    assert "among 3 series" in found[0].reason


@pytest.mark.parametrize("apart", [finding(0.9, "other", gated=False), finding(0.9, "other", detector="drift")],
                         ids=["not gated", "another detector"])
def test_families_are_apart(apart: Finding) -> None:
    assert verdicts(finding(0.0015), apart)[0] is Verdict.REGRESSION


def test_suspects_measured_against_an_interleaved_base_are_a_family_of_their_own() -> None:
    assert verdicts(finding(0.0015), finding(0.9, "other"))[0] is Verdict.INCONCLUSIVE
    assert verdicts(finding(0.0015), finding(0.9, "other"), fresh=frozenset({CASE.id}))[0] is Verdict.REGRESSION


def test_the_judge_gives_a_time_and_its_bandwidth_the_same_p() -> None:
    """What the rule above rests on, from launches to findings: S over a time is that time on the log scale."""
    size, other = 2.0**24, case(size=2**12)

    def both(values: tuple[float, ...], of: str) -> tuple[Launch, ...]:
        which = CASE if of == CASE.id else other
        return launches(values, of=which) + launches([size / v for v in values], of=which, metric=BUSBW,
                                                     unit=Unit.BYTES_PER_SECOND, better=Better.HIGHER)

    slow = tuple(value * 1.07 for value in QUIET)
    runs = tuple(run([], i, made=both(tuple(v * (1 + 0.004 * (i % 3)) for v in QUIET), CASE.id)
                     + both(QUIET, other.id)) for i in range(6))
    found = judge(both(slow, CASE.id) + both(QUIET, other.id), Baseline(runs, ()),
                  policies(*((of, metric) for of in (CASE, other) for metric in (METRIC, BUSBW))), stored=True)
    shifts = {(f.case, f.metric): f for f in found.findings if f.detector == "shift"}
    time, rate = shifts[CASE.id, METRIC], shifts[CASE.id, BUSBW]
    assert time.p_value == pytest.approx(rate.p_value, rel=1e-9)
    assert time.change == pytest.approx(1 / (1 + (rate.change or 0.0)) - 1)
    assert time.p_value is not None
    assert time.p_value < ALPHA
