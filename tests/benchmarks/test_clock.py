from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.clock import BATCHES, GROWTH, ROUNDS, STRETCH, TRACED, Plan, batches, further, single_calls


def played(plan: Plan, call_seconds: float) -> tuple[int, float]:
    """Values and seconds of a series whose calls all take that long."""
    values, count = 0, plan.first
    for _ in range(ROUNDS):
        values += count
        count = further(plan, values, values * plan.calls * call_seconds)
        if not count:
            break
    return values, values * plan.calls * call_seconds


@given(call_seconds=st.floats(1e-6, 0.05), wished=st.floats(0.05, 10))
def test_a_series_fills_the_wished_seconds_with_at_least_twenty_values(call_seconds: float, wished: float) -> None:
    plan = single_calls(wished)
    values, seconds = played(plan, call_seconds)
    assert values >= 20 or (values + 1.01) * call_seconds > STRETCH * wished
    assert seconds <= max(STRETCH * wished, plan.first * call_seconds) + call_seconds
    assert values == plan.most or seconds >= 0.85 * wished - call_seconds


def test_very_slow_calls_get_the_first_values_only() -> None:
    assert played(single_calls(0.5), 60.0) == (3, 180.0)


@given(call_seconds=st.floats(1e-6, 0.02), wished=st.floats(0.05, 2))
def test_batches_give_a_distribution_and_stay_near_the_wish(call_seconds: float, wished: float) -> None:
    plan = batches(call_seconds, wished)
    values, seconds = played(plan, call_seconds)
    assert 3 <= values <= BATCHES
    assert plan.calls >= 5
    assert seconds <= max(STRETCH * wished, plan.first * plan.calls * call_seconds) + plan.calls * call_seconds


def test_one_late_first_value_does_not_end_a_series() -> None:
    plan = single_calls(0.5)
    assert further(plan, 3, 0.6) > 0


@given(values=st.integers(1, 2000), spent=st.floats(1e-9, 100))
def test_no_round_grows_beyond_bounds(values: int, spent: float) -> None:
    plan = single_calls(1.0)
    more = further(plan, values, spent)
    assert 0 <= more <= GROWTH * values
    assert values + more <= max(plan.most, values)


def test_traced_series_have_their_fixed_length() -> None:
    assert played(TRACED, 0.001)[0] == 12
    assert played(TRACED, 1e-7)[0] == 12
