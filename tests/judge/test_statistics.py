"""Each statistic against a slow literal computation or a published figure."""

from __future__ import annotations

import itertools
import math
import statistics as plain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from regress.judge import statistics as judge_statistics
from regress.judge.statistics import (
    FRESH_LOOKS,
    PAIRED_LOOKS,
    SHAMOS,
    WIDE,
    WIDE_SHARE,
    bootstrap_ratio,
    compare_levels,
    compare_sides,
    compare_with_window,
    holm,
    launches_needed,
    median_variance,
    pairwise_spread,
    rank_test,
    sequential_p,
)

FIGURES = st.lists(st.floats(-50, 50), min_size=3, max_size=9)


def test_constants_are_quantiles_of_a_distance_of_normal_values() -> None:
    assert pytest.approx(math.sqrt(2) * stats.norm.ppf(0.75), abs=1e-7) == SHAMOS
    assert pytest.approx(math.sqrt(2) * stats.norm.ppf((1 + WIDE_SHARE) / 2), abs=1e-6) == WIDE


def test_spread_is_the_median_of_all_distances_inside_groups() -> None:
    groups = [[1.0, 4.0, 9.0], [2.0, 2.5], [7.0]]
    distances = [abs(a - b) for group in groups for a, b in itertools.combinations(group, 2)]
    assert pairwise_spread(groups) == pytest.approx(plain.median(distances) / SHAMOS)
    assert pairwise_spread([[1.0], [2.0]]) is None


def test_spread_of_normal_values_is_their_standard_deviation() -> None:
    values = np.random.default_rng(7).normal(0, 3, 2000)
    assert pairwise_spread([values.tolist()]) == pytest.approx(3, rel=0.05)


@given(FIGURES, FIGURES)
def test_shift_is_the_median_of_all_differences(now: list[float], before: list[float]) -> None:
    found = compare_sides(now, before)
    assert found is not None
    assert found.estimate == pytest.approx(plain.median([a - b for a in now for b in before]))
    assert found.degrees == min(len(now), len(before)) - 1


@given(FIGURES, FIGURES, st.floats(-10, 10))
def test_moving_one_side_moves_the_estimate_and_nothing_else(now: list[float], before: list[float], by: float) -> None:
    still, moved = compare_sides(now, before), compare_sides([value + by for value in now], before)
    assert still is not None
    assert moved is not None
    assert moved.estimate == pytest.approx(still.estimate + by, abs=1e-9)
    assert moved.standard_error == pytest.approx(still.standard_error, rel=1e-6)


def test_too_few_launches_are_no_comparison() -> None:
    assert compare_sides([1.0, 2.0], [1.0, 2.0, 3.0]) is None
    assert compare_levels([1.0, 2.0], [1.0, 2.0]) is None
    assert compare_with_window([1.0], [[1.0], [1.0]]) is None
    assert compare_with_window([], [[1.0, 2.0]]) is None
    assert compare_with_window([1.0], []) is None


def test_identical_figures_are_not_taken_for_certainty() -> None:
    found = compare_with_window([1.0005] * 3, [[1.0] * 3] * 5)
    assert found is not None
    assert found.p_value > 0.3
    surely = compare_with_window([1.05] * 3, [[1.0] * 3] * 5)
    assert surely is not None
    assert surely.p_value < 1e-6


def test_a_shared_session_counts_once() -> None:
    """Runs that differ by their session: more launches of this run do not make its level any more certain."""
    runs = [[level, level + 0.001, level - 0.001] for level in (0.0, 0.1, -0.1, 0.2, -0.2, 0.05, -0.05, 0.15)]
    few, many = (compare_with_window([0.3] * count, runs) for count in (3, 100))
    assert few is not None
    assert many is not None
    assert many.standard_error == pytest.approx(few.standard_error, rel=0.01)
    assert few.standard_error > 0.1


def test_prediction_is_calibrated_where_half_of_the_variance_is_the_sessions() -> None:
    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(2000):
        runs = [rng.normal(rng.normal(), 1, 3).tolist() for _ in range(20)]
        found = compare_with_window(rng.normal(rng.normal(), 1, 3).tolist(), runs)
        assert found is not None
        hits += found.p_value <= 0.05
    assert 0.03 < hits / 2000 < 0.07


def test_interval_and_p_agree() -> None:
    found = compare_sides([1.0, 1.2, 1.4, 1.1], [0.5, 0.7, 0.6, 0.9])
    assert found is not None
    low, high = found.interval(1 - found.p_value)
    assert min(abs(low), abs(high)) == pytest.approx(0, abs=1e-9)


def test_median_variance_is_not_below_the_exact_one() -> None:
    rng = np.random.default_rng(3)
    for count in (1, 2, 3, 5, 9):
        exact = float(np.var(np.median(rng.normal(0, 1, (40_000, count)), axis=1)))
        assert median_variance(count) >= exact * 0.98


def test_rank_test_is_the_published_minimum_for_separated_samples() -> None:
    """Smallest two-sided p of Mann and Whitney's test: 2 / C(2n, n)."""
    for count, published in ((4, 0.0286), (5, 0.0079), (6, 0.0022)):
        now, before = [float(i) for i in range(count)], [float(i) + 100 for i in range(count)]
        assert rank_test(now, before) == pytest.approx(published, abs=5e-5)
    assert rank_test([1.0, 1.0, 2.0], [1.0, 2.0, 2.0]) > 0.3


def test_bootstrap_interval_holds_the_ratio_and_repeats() -> None:
    rng = np.random.default_rng(2)
    now, before = (rng.normal(1.2, 0.02, 30)).tolist(), rng.normal(1.0, 0.02, 30).tolist()
    low, high = bootstrap_ratio(now, before, seed=1)
    assert low < 1.2 < high
    assert high - low < 0.05
    assert bootstrap_ratio(now, before, seed=1) == (low, high)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_the_literal_step_down_rule(p_values: list[float]) -> None:
    alpha, count = 0.05, len(p_values)
    ordered = sorted(p_values)
    rejected = 0
    while rejected < count and ordered[rejected] <= alpha / (count - rejected):
        rejected += 1
    expected = sorted(p_values)[:rejected]
    found = [p for p, adjusted in zip(p_values, holm(p_values), strict=True) if adjusted <= alpha + 1e-15]
    assert len(found) == pytest.approx(len(expected), abs=sum(math.isclose(p * k, alpha) for p in p_values
                                                             for k in range(1, count + 1)))


def test_holm_on_the_textbook_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize("looks", [PAIRED_LOOKS, FRESH_LOOKS])
def test_no_more_error_is_spent_than_there_is(looks: dict[int, float]) -> None:
    assert sum(looks.values()) == pytest.approx(1)
    for look, share in looks.items():
        assert sequential_p(0.0001, look, looks) == pytest.approx(0.0001 / share)
    assert sequential_p(0.5, 5, looks) == 1.0


def test_launches_needed_agrees_with_a_simulated_power() -> None:
    count = launches_needed(spread=0.02, effect=0.05, alpha=0.002, power=0.9)
    rng = np.random.default_rng(5)
    now, before = rng.normal(0.05, 0.02, (4000, count)), rng.normal(0, 0.02, (4000, count))
    power = float(np.mean(stats.ttest_ind(now, before, axis=1).pvalue <= 0.002))
    assert 0.85 < power < 0.97
    assert launches_needed(0.0, 0.05, 0.002) == 3
    assert launches_needed(0.02, 0.01, 0.002) > count


def test_public_names_are_few() -> None:
    public = [name for name, value in vars(judge_statistics).items()
              if callable(value) and not name.startswith("_") and value.__module__ == judge_statistics.__name__]
    assert len(public) <= 12
