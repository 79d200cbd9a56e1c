"""A CSV history in, alarms out; and every CSV that cannot be read."""

from __future__ import annotations

import csv
import io
import lzma
from pathlib import Path

import numpy as np
import pytest

from regress.errors import UsageError
from regress.judge.backtest import backtest
from regress.judge.change_points import change_points, run_change_points
from regress.judge.history_csv import Row, histories, read_rows
from regress.options import Effect
from regress.units import Better
from tests.judge.made import CASE, METRIC, run

DATA = Path(__file__).parents[1] / "data" / "judge"
HEADER = "timestamp,commit,metric,value,unit,better\n"


def stored(name: str) -> str:
    """A history of the data folder."""
    return lzma.decompress((DATA / f"{name}.csv.xz").read_bytes()).decode()


def rows_of(values: list[list[float]], better: str = "lower") -> tuple[Row, ...]:
    """One commit for each list of launches."""
    lines = [f"{i},c{i},time,{value},s,{better}" for i, launches in enumerate(values) for value in launches]
    return read_rows(HEADER + "\n".join(lines), "made.csv")


def noisy(levels: list[float], launches: int, seed: int) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    return [[float(level * np.exp(rng.normal(0, 0.01))) for _ in range(launches)] for level in levels]


def test_a_step_is_one_alarm_at_its_first_commit() -> None:
    found = backtest(rows_of(noisy([1.0] * 20 + [1.2] * 20, 3, 1)))
    assert [(a.commit, a.metric) for a in found.alarms] == [("c20", "time")]
    assert found.alarms[0].change == pytest.approx(0.2, abs=0.02)
    assert found.alarms[0].confirmed_by == "c20"
    assert found.runs == 37
    assert found.false_alarm_rate == pytest.approx(1 / 37)


def test_a_commit_with_one_figure_is_confirmed_by_the_next_ones() -> None:
    found = backtest(rows_of(noisy([1.0] * 20 + [1.2] * 20, 1, 2)))
    assert [a.commit for a in found.alarms] == ["c20"]
    assert found.alarms[0].confirmed_by in ("c22", "c23", "c24")


def test_a_lone_outlier_is_no_alarm_and_the_end_of_a_history_may_stay_suspected() -> None:
    values = noisy([1.0] * 30, 1, 3)
    values[12] = [1.9]
    assert backtest(rows_of(values)).alarms == ()
    last = backtest(rows_of([*noisy([1.0] * 30, 1, 4), [1.9]]))
    assert (last.alarms, last.suspected) == ((), (("c30", "time"),))


def test_an_improvement_is_no_alarm_and_moves_the_baseline() -> None:
    found = backtest(rows_of(noisy([1.0] * 20 + [0.7] * 20 + [1.0] * 20, 3, 5)))
    assert [a.commit for a in found.improvements] == ["c20"]
    assert [a.commit for a in found.alarms] == ["c40"]


def test_higher_is_better_turns_the_direction() -> None:
    found = backtest(rows_of(noisy([1.0] * 20 + [0.7] * 20, 3, 6), better="higher"))
    assert [a.commit for a in found.alarms] == ["c20"]


def test_unchanged_code_on_hosted_runners_alarms_in_at_most_one_percent_of_commits() -> None:
    found = backtest(read_rows(stored("fib_unchanged_code"), "fib.csv"), Effect(0.10), suggest=False)
    assert found.runs > 250
    assert found.false_alarm_rate <= 0.01


def test_the_nccl_ladder_has_exactly_one_alarm_at_the_drop() -> None:
    text = stored("nccl_version_ladder").replace("order,version", "timestamp,commit", 1)
    found = backtest(read_rows(text, "ladder.csv"))
    assert [(a.commit, round(a.change, 2)) for a in found.alarms] == [("2.11.4", -0.87)]


def test_a_suggested_effect_keeps_the_wished_rate() -> None:
    rng = np.random.default_rng(8)
    walk = np.exp(np.cumsum(rng.normal(0, 0.03, 200)))
    rows = rows_of([[float(v)] for v in walk])
    found = backtest(rows, Effect(0.01), wished_rate=0.01)
    suggested = found.suggested["time"]
    assert suggested is not None
    assert backtest(rows, Effect(suggested), suggest=False).false_alarm_rate <= 0.01
    assert found.false_alarm_rate > 0.01


def test_json_form_has_the_documented_keys() -> None:
    plain = backtest(rows_of(noisy([1.0] * 10 + [2.0] * 10, 2, 9))).as_json()
    assert {"runs", "alarms", "false_alarm_rate"} <= set(plain)
    assert {"commit", "metric", "change"} <= set(plain["alarms"][0])


def test_a_short_history_is_said_to_be_too_short() -> None:
    found = backtest(rows_of([[1.0], [1.0]]))
    assert (found.runs, found.false_alarm_rate) == (0, 0.0)
    assert found.warnings == ("time has 2 commits, too few for a baseline",)


def test_rows_are_ordered_by_time_and_reruns_of_a_commit_count_once() -> None:
    text = HEADER + "2026-01-02T00:00:00Z,b,m,2,,\n2026-01-01T00:00:00+00:00,a,m,1,,\n2026-01-03,a,m,1.5,,\n"
    (history,), warnings = histories(read_rows(text, "x"))
    assert [(c.commit, c.values) for c in history.commits] == [("a", (1.0, 1.5)), ("b", (2.0,))]
    assert (history.better, warnings) == (Better.LOWER, ())


def test_a_changed_unit_is_another_history() -> None:
    made, warnings = histories(read_rows(HEADER + "1,a,m,1,s,\n2,b,m,1000,ms,\n", "x"))
    assert len(made) == 2
    assert "m is given in 2 units or directions" in warnings[0]


@pytest.mark.parametrize(("text", "part"), [
    ("", "an empty file"),
    ("timestamp,commit,value\n1,a,2\n", "no column metric"),
    (HEADER, "a header and no rows"),
    (HEADER + "1,a,m,fast,,\n", "line 2: value 'fast'"),
    (HEADER + "1,a,m,nan,,\n", "value 'nan'"),
    (HEADER + "1,a,m,,,\n", "no value"),
    (HEADER + "1,a,m,1,s,bigger\n", "better 'bigger'"),
    (HEADER + "yesterday,a,m,1,s,lower\n", "timestamp 'yesterday'"),
])
def test_what_cannot_be_read_is_named_with_its_line(text: str, part: str) -> None:
    with pytest.raises(UsageError, match="accepted: ") as caught:
        read_rows(text, "x.csv")
    assert part in caught.value.text
    assert caught.value.text.startswith("x.csv")
    assert caught.value.exit_status == 4


def test_change_points_of_a_database_are_its_steps_and_not_its_outlier() -> None:
    values = [float(row["value"]) for row in csv.DictReader(io.StringIO(stored("tigerbeetle_otava")))]
    places = [step.index for step in change_points(values)]
    assert places[0] == 15
    assert 71 in places
    assert any(95 <= place <= 97 for place in places)
    assert 10 not in places


def test_change_points_name_the_run_they_begin_at() -> None:
    levels = [1.0] * 12 + [1.3] * 12
    runs = [run([level * (1 + 0.001 * (i % 3))], i) for i, level in enumerate(levels)]
    (found,) = run_change_points(runs, CASE.id, METRIC)
    assert found[0] == "run12"
    assert found[1].change == pytest.approx(0.3, abs=0.01)
    assert run_change_points(runs[:6], CASE.id, METRIC) == ()


def test_constant_and_zero_histories_have_no_change_points() -> None:
    assert change_points([1.0] * 40) == ()
    assert change_points([0.0] * 40) == ()
    assert change_points([]) == ()
    (step,) = change_points([0.0] * 20 + [5.0] * 20)
    assert (step.index, step.change) == (20, None)
