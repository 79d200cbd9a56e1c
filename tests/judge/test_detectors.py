"""Each detector on series where the right answer is plain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from regress.judge.detectors import RunValues, Series
from regress.judge.detectors.drift import DriftOptions
from regress.judge.detectors.drift import judge as drift
from regress.judge.detectors.shift import ShiftOptions
from regress.judge.detectors.shift import judge as shift
from regress.judge.scale import Scale, choose_statistic, default_effect
from regress.options import Effect
from regress.record import Measurement, Verdict
from regress.units import Better, Unit
from tests.judge.made import CASE, METRIC, case, measurement


def series(now: list[float], window: list[list[float]], unit: Unit = Unit.SECONDS,
           better: Better = Better.LOWER) -> Series:
    """A series of figures without samples."""
    def made(values: list[float]) -> tuple[Measurement, ...]:
        return tuple(measurement(value, unit=unit, better=better) for value in values)

    runs = tuple(RunValues(f"run{i}", f"sha{i}", "2026-01-01", made(values)) for i, values in enumerate(window))
    return Series(CASE, METRIC, unit, better, made(now), runs, anchor=runs[0] if runs else None)


def test_no_baseline_is_not_shifts_question() -> None:
    assert shift(series([1.0], []), ShiftOptions()) is None


@pytest.mark.parametrize("window", [[[1.0]], [[1.0], [1.0]]])
def test_one_or_two_runs_of_one_launch_say_nothing_about_the_spread(window: list[list[float]]) -> None:
    found = shift(series([1.5], window), ShiftOptions())
    assert found is not None
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "say nothing about the spread yet" in found.reason


def test_a_count_that_is_what_it_always_was_needs_no_spread() -> None:
    same = shift(series([9.0], [[9.0], [9.0]], Unit.COUNT), ShiftOptions())
    assert same is not None
    assert (same.verdict, same.change, same.reason) == (Verdict.PASS, 0.0, "value 9 in every launch, now and before")


@pytest.mark.parametrize(("now", "before", "verdict"), [
    ([26.0], [[8.0]], Verdict.REGRESSION), ([26.0, 26.0], [[8.0], [8.0]], Verdict.REGRESSION),
    ([3.0], [[0.0]], Verdict.REGRESSION), ([2.0], [[8.0]], Verdict.IMPROVEMENT), ([8.4], [[8.0]], Verdict.PASS),
    ([26.0, 25.0], [[8.0]], Verdict.INCONCLUSIVE), ([26.0], [[8.0], [9.0]], Verdict.INCONCLUSIVE)])
def test_a_count_that_was_one_number_and_is_another_needs_no_spread_either(
        now: list[float], before: list[list[float]], verdict: Verdict) -> None:
    """DDP's collectives a step, in the only traced launch of a run: 8 before, 26 with small buckets."""
    found = shift(series(now, before, Unit.COUNT), ShiftOptions())
    assert found is not None
    assert found.verdict is verdict
    assert found.relevant is (verdict in (Verdict.REGRESSION, Verdict.IMPROVEMENT))


def test_a_duration_that_was_one_number_and_is_another_needs_its_spread() -> None:
    found = shift(series([2.0], [[1.0], [1.0]]), ShiftOptions())
    assert found is not None
    assert found.verdict is Verdict.INCONCLUSIVE


def test_one_run_of_three_launches_shows_only_what_is_enormous() -> None:
    window = [[1.0, 1.1, 0.9]]
    half, hundredfold = (shift(series([v * k for v in (1.0, 1.1, 0.95)], window), ShiftOptions()) for k in (1.5, 100))
    assert half is not None
    assert hundredfold is not None
    assert (half.verdict, hundredfold.verdict) == (Verdict.INCONCLUSIVE, Verdict.REGRESSION)


def test_identical_values_and_a_real_step() -> None:
    same = shift(series([1.0] * 3, [[1.0] * 3] * 5), ShiftOptions())
    step = shift(series([1.2] * 3, [[1.0] * 3] * 5), ShiftOptions())
    assert same is not None
    assert step is not None
    assert (same.verdict, step.verdict) == (Verdict.PASS, Verdict.REGRESSION)


def test_a_constant_zero_is_pass_and_leaving_it_is_seen() -> None:
    for unit in (Unit.BYTES, Unit.RATIO, Unit.SECONDS):
        none = shift(series([0.0] * 3, [[0.0] * 3] * 5, unit), ShiftOptions(effect=Effect(0.05)))
        assert none is not None
        assert none.verdict is Verdict.PASS
    zero = series([0.0] * 3, [[0.0] * 3] * 5, Unit.COUNT)
    same, more = shift(zero, ShiftOptions()), shift(series([4.0] * 3, [[0.0] * 3] * 5, Unit.COUNT), ShiftOptions())
    assert same is not None
    assert more is not None
    assert (same.verdict, same.change) == (Verdict.PASS, None)
    assert (more.verdict, more.change) == (Verdict.REGRESSION, None)
    assert "4 apart" in more.reason


def test_significant_but_small_and_large_but_unsure_are_told_apart() -> None:
    quiet = [[1.0, 1.0005, 0.9995]] * 10
    small = shift(series([1.01, 1.0101, 1.0099], quiet), ShiftOptions(effect=Effect(0.05)))
    wild = [[1.0, 1.6, 0.6], [1.2, 0.7, 1.5], [0.8, 1.3, 1.0]]
    unsure = shift(series([1.3, 2.0, 0.9], wild), ShiftOptions(effect=Effect(0.05)))
    assert small is not None
    assert unsure is not None
    assert (small.verdict, small.significant, small.relevant) == (Verdict.PASS, True, False)
    assert (unsure.verdict, unsure.significant, unsure.relevant) == (Verdict.INCONCLUSIVE, False, True)
    assert unsure.needed_launches is not None
    assert "would decide" in unsure.reason


def test_an_absolute_floor_keeps_microseconds_out() -> None:
    window = [[10e-6, 10.05e-6, 9.95e-6]] * 10
    now = series([12e-6, 12.05e-6, 11.95e-6], window)
    floored = shift(now, ShiftOptions(effect=Effect(0.05, 3e-6)))
    bare = shift(now, ShiftOptions(effect=Effect(0.05)))
    assert floored is not None
    assert bare is not None
    assert (floored.verdict, bare.verdict) == (Verdict.PASS, Verdict.REGRESSION)
    assert "a change matters from 3.00 µs (30.0 %)" in floored.reason


def test_twenty_steps_of_one_percent_are_caught_by_drift_and_not_by_shift() -> None:
    rng = np.random.default_rng(1)
    levels = [1.01**i for i in range(21)]
    window = [list(level * np.exp(rng.normal(0, 0.003, 3))) for level in levels]
    now = series(window[-1], window[:-1])
    assert (found := drift(now, DriftOptions())) is not None
    assert (step := shift(replace(now, window=now.window[-3:]), ShiftOptions())) is not None
    assert (found.verdict, step.verdict) == (Verdict.REGRESSION, Verdict.PASS)
    assert "of run run0" in found.reason


def test_drift_is_over_once_this_run_is_back() -> None:
    window = [[1.0, 1.001, 0.999]] + [[1.2, 1.201, 1.199]] * 10
    back, still = drift(series(window[0], window), DriftOptions()), drift(series(window[1], window), DriftOptions())
    assert back is not None
    assert still is not None
    assert (back.verdict, still.verdict) == (Verdict.PASS, Verdict.REGRESSION)


def test_drift_waits_for_five_runs_after_the_anchor() -> None:
    assert drift(series([2.0] * 3, [[1.0] * 3] * 5), DriftOptions()) is None


def sampled(rng: np.random.Generator, slow_share: float) -> Measurement:
    """A launch of 40 calls, some of which were interrupted."""
    calls = 1e-4 * np.exp(rng.normal(0, 0.05, 40)) + (rng.random(40) < slow_share) * 2e-3
    return Measurement(METRIC, Unit.SECONDS, Better.LOWER, float(np.mean(calls)), tuple(calls.tolist()))


def test_auto_judges_the_lower_quartile_of_a_mean_and_names_it() -> None:
    rng = np.random.default_rng(4)
    runs = tuple(RunValues(f"run{i}", None, "", tuple(sampled(rng, rng.uniform(0, 0.6)) for _ in range(3)))
                 for i in range(10))
    now = Series(CASE, METRIC, Unit.SECONDS, Better.LOWER, runs[0].launches, runs)
    assert choose_statistic(now, "auto") == "p25"
    assert choose_statistic(now, "p95") == "p95"
    found = shift(now, ShiftOptions())
    assert found is not None
    assert found.statistic == "p25"
    assert found.reason.startswith("p25 ")


def test_the_statistic_in_use_stays_unless_another_halves_the_spread() -> None:
    rng = np.random.default_rng(4)
    quiet = tuple(RunValues(f"run{i}", None, "", tuple(sampled(rng, 0) for _ in range(3)), statistic="p50")
                  for i in range(10))
    busy = tuple(replace(run, launches=tuple(sampled(rng, rng.uniform(0.3, 0.7)) for _ in range(3))) for run in quiet)
    assert choose_statistic(Series(CASE, METRIC, Unit.SECONDS, Better.LOWER, quiet[0].launches, quiet), "auto") == "p50"
    assert choose_statistic(Series(CASE, METRIC, Unit.SECONDS, Better.LOWER, busy[0].launches, busy), "auto") == "p25"


def test_a_metric_that_is_a_quantile_itself_is_judged_on_its_value() -> None:
    calls = tuple(float(i) for i in range(1, 21))
    tail = Measurement("allreduce_p95_seconds", Unit.SECONDS, Better.LOWER, 19.05, calls)
    assert choose_statistic(Series(CASE, tail.metric, tail.unit, tail.better, (tail,)), "auto") == "value"


def test_bounds_are_asymmetric_on_the_log_scale_and_infinite_where_nothing_can_reach() -> None:
    higher = Scale(log=True, worse=-1)
    assert higher.bound(Effect(0.5), 100.0) == pytest.approx(0.6931, abs=1e-4)
    assert higher.bound(Effect(0.5), 100.0, worse=False) == pytest.approx(0.4055, abs=1e-4)
    assert higher.bound(Effect(absolute=200.0), 100.0) == float("inf")


def test_default_effects_by_unit_and_device() -> None:
    assert default_effect(Unit.SECONDS, "cuda") == Effect(0.05, 3e-6)
    assert default_effect(Unit.SECONDS, case(device="cpu").device) == Effect(0.30, 30e-6)
    assert default_effect(Unit.RATIO, "cuda") == Effect(absolute=0.02)
    assert default_effect(Unit.BYTES_PER_SECOND, "cuda") == Effect(0.05)
    assert default_effect(Unit.COUNT, "cuda") == Effect(absolute=0.5)
