"""The quality bar on simulated noise, small enough for every build; perf/judge_quality.py measures it at length."""

from __future__ import annotations

import numpy as np
import pytest

from regress.judge.change_points import change_points
from regress.judge.statistics import compare_sides
from regress.options import Effect
from tests.quality.simulated import Gate, Noise, rates

BAR = Noise(0.01, "spikes", autocorrelation=0.5, session=0.5)
GATE = Gate(Effect(0.02))


def test_unchanged_builds_stay_green() -> None:
    """At most 1 in 1,000: two red ones among 1,500 would be seen in 56 % of seeds at twice that rate."""
    found = rates(BAR, GATE, 0.0, 1500, seed=1)
    assert found.red <= 1 / 1000
    assert found.inconclusive < 0.01
    assert found.launches < 8


def test_five_percent_is_found_in_99_of_100_builds_within_ten_pairs() -> None:
    assert rates(BAR, GATE, 0.05, 500, seed=2).red_within_10 >= 0.985


def test_three_percent_is_found_in_95_of_100_builds_within_twenty_pairs() -> None:
    assert rates(BAR, GATE, 0.03, 500, seed=3).red_within_20 >= 0.95


@pytest.mark.parametrize("series", [12, 60])
def test_more_series_do_not_make_more_false_alarms(series: int) -> None:
    found = rates(BAR, Gate(Effect(0.02), series=series), 0.0, 600 // series, seed=4)
    assert found.red == 0


@pytest.mark.parametrize("shape", ["normal", "lognormal", "spikes", "bimodal"])
def test_noise_of_any_shape_is_not_called_a_regression(shape: str) -> None:
    noise = Noise(0.03, shape, autocorrelation=0.5, session=0.5)
    assert rates(noise, Gate(Effect(0.05)), 0.0, 200, seed=5).red <= 1 / 200
    assert rates(noise, Gate(Effect(0.05)), 0.20, 100, seed=6).red >= 0.9


def test_without_a_base_noise_of_the_session_is_not_mistaken_for_the_code() -> None:
    noise = Noise(0.03, "spikes", autocorrelation=0.5, session=0.5)
    found = rates(noise, Gate(Effect(0.05), base=False), 0.0, 400, seed=7)
    assert found.red <= 1 / 400


@pytest.mark.parametrize("shape", ["normal", "lognormal", "spikes", "bimodal"])
def test_the_confirmation_alone_errs_about_as_often_as_it_says(shape: str) -> None:
    rng = np.random.default_rng(8)
    noise, hits = Noise(0.01, shape), 0
    for _ in range(3000):
        values = noise.launches(rng, 20)
        found = compare_sides(values[:10].tolist(), values[10:].tolist())
        assert found is not None
        hits += found.p_value <= 0.01
    assert hits / 3000 <= 0.018


@pytest.mark.parametrize("noise", [Noise(0.02), Noise(0.02, "spikes"), Noise(0.02, autocorrelation=0.5)])
def test_unchanged_histories_show_no_change_points(noise: Noise) -> None:
    rng = np.random.default_rng(9)
    false = sum(bool(change_points([float(v) for v in np.exp(noise.launches(rng, 100))])) for _ in range(60))
    assert false <= 2
