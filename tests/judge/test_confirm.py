"""What is measured next, and when it ends."""

from __future__ import annotations

from regress.judge.confirm import Budget, block_order, fitting, next_measurement, unaffordable
from regress.judge.verdict import Judgement, Suspect
from regress.record import Verdict
from tests.judge.made import CASE, METRIC

ENDLESS = Budget(None, 4.0)
DOUBT = Judgement(Verdict.INCONCLUSIVE, 0, {}, (), (Suspect(CASE, (METRIC,), 12),))
CLEAR = Judgement(Verdict.PASS, 0, {}, ())


def test_nothing_in_doubt_is_nothing_to_measure() -> None:
    assert next_measurement(CLEAR, 0, ENDLESS, has_base=True, seed=1) is None


def test_pairs_in_batches_up_to_thirty() -> None:
    fresh, sessions = 0, []
    while plan := next_measurement(DOUBT, fresh, ENDLESS, has_base=True, seed=1):
        assert plan.cases == (CASE,)
        assert plan.roles.count("head") == plan.roles.count("base")
        fresh += plan.roles.count("head")
        sessions.append(plan.session)
    assert (fresh, sessions) == (30, [1, 2, 3, 4, 5])


def test_without_a_base_fresh_launches_up_to_ten() -> None:
    plan = next_measurement(DOUBT, 5, ENDLESS, has_base=False, seed=1)
    assert plan is not None
    assert plan.roles == ("head",) * 5
    assert next_measurement(DOUBT, 10, ENDLESS, has_base=False, seed=1) is None


def test_every_block_holds_head_and_base_in_an_order_that_the_seed_repeats() -> None:
    order = block_order(50, seed=3)
    blocks = {order[i:i + 2] for i in range(0, 100, 2)}
    assert blocks == {("head", "base"), ("base", "head")}
    assert order == block_order(50, seed=3)
    assert order != block_order(50, seed=4)


def test_the_budget_cuts_a_batch_and_then_ends_it() -> None:
    plan = next_measurement(DOUBT, 0, Budget(33.0, 4.0), has_base=True, seed=1)
    assert plan is not None
    assert len(plan.roles) == 8
    assert "1 case in doubt: 4 pairs of base and head, interleaved, about 32.0 s" in plan.reason
    assert next_measurement(DOUBT, 0, Budget(17.0, 4.0), has_base=True, seed=1) is None
    last = next_measurement(DOUBT, 5, Budget(9.0, 4.0), has_base=True, seed=1)
    assert last is not None
    assert len(last.roles) == 2


def test_a_traced_launch_that_belongs_to_a_batch_is_paid_from_the_budget_too() -> None:
    traced = Judgement(Verdict.INCONCLUSIVE, 0, {}, (), (Suspect(CASE, (METRIC,), 12, traced=True),))
    plan = next_measurement(traced, 0, Budget(28.0, 4.0), has_base=True, seed=1)
    assert plan is not None
    assert (plan.traced, len(plan.roles)) == (True, 6)
    assert unaffordable(traced, Budget(28.0, 4.0), has_base=True) is None
    assert next_measurement(traced, 0, Budget(27.0, 4.0), has_base=True, seed=1) is None
    assert unaffordable(traced, Budget(27.0, 4.0), has_base=True) is not None


def test_what_fits_is_never_less_than_nothing_and_never_more_than_wished() -> None:
    assert fitting(5, Budget(-3.0, 4.0), has_base=False) == 0
    assert fitting(5, Budget(9.0, 4.0), has_base=False) == 2
    assert fitting(5, Budget(900.0, 4.0), has_base=True) == 5
    assert fitting(5, Budget(None, 4.0), has_base=True) == 5
    assert fitting(5, Budget(-1.0, 0.0), has_base=True) == 5


def test_an_exhausted_budget_says_what_would_decide() -> None:
    text = unaffordable(DOUBT, Budget(5.0, 4.0), has_base=True)
    assert text == (f"the time budget ended before {CASE.id} could be decided; about 12 launches a side (96.0 s) would "
                    "decide")
    assert unaffordable(DOUBT, ENDLESS, has_base=True) is None
    assert unaffordable(CLEAR, Budget(0.0, 4.0), has_base=True) is None
