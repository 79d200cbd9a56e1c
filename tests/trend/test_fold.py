"""Histories folded into series: order, gaps, several environments, facts that change."""

from __future__ import annotations

import random
from dataclasses import replace

from regress.record import Acceptance, CaseOutcome, Environment, Launch, Measurement, Run, Verdict
from regress.trend import ChangePoint, Trend
from regress.trend.fold import fold, headline_findings
from regress.trend.overview import belief, headline, recent_changes, rows, visible
from regress.units import Better, Unit
from tests.html.histories import HOSTILE, MUST_MATCH, Plan, allreduce, busbw, run, seconds, sha, story

CASE = allreduce(2**24)
PLANS = (seconds(CASE, "allreduce_seconds", 68e-6),)


def runs_of(count: int, plans: tuple[Plan, ...] = PLANS) -> list[Run]:
    rng = random.Random(4)  # noqa: S311 - noise, not secrets
    return [run(plans, i, rng) for i in range(count)][::-1]


def test_empty() -> None:
    trend = fold([])
    assert trend == Trend()
    assert rows(trend) == []
    assert headline(trend, []) is None


def test_points_stand_in_git_order_and_runs_of_one_commit_side_by_side() -> None:
    newest_first = runs_of(4)
    again = replace(newest_first[2], run_id="again", started_at="2030-01-01T00:00:00+00:00")
    order = [sha(2), sha(0), sha(1), sha(3)]
    trend = fold([again, *newest_first], order)
    assert [(facts.run_id, facts.x) for facts in trend.runs] == [
        ("run-00002", 0.0), ("run-00000", 1.0), ("run-00001", 1.85), ("again", 2.15), ("run-00003", 3.0)]
    assert trend.latest is again
    assert trend.latest_index == 3
    assert [point.run for point in trend.series[0].points] == [0, 1, 2, 3, 4]


def test_a_commit_that_git_does_not_know_follows_the_one_measured_before_it() -> None:
    trend = fold(runs_of(4), [sha(3), sha(0), sha(2)])
    assert [facts.commit.sha for facts in trend.runs] == [sha(3), sha(0), sha(1), sha(2)]


def test_without_git_the_time_of_running_orders() -> None:
    newest_first = [replace(r, commit=replace(r.commit, sha=None)) for r in runs_of(3)]
    trend = fold(newest_first)
    assert [facts.run_id for facts in trend.runs] == ["run-00000", "run-00001", "run-00002"]
    assert [facts.x for facts in trend.runs] == [0.0, 1.0, 2.0]


def test_values_are_medians_of_the_judged_statistic_over_launches() -> None:
    newest = runs_of(1)[0]
    samples = (5.0, 1.0, 2.0, 3.0, 4.0)

    def launch(index: int, factor: float, role: str) -> Launch:
        measured = Measurement("allreduce_seconds", Unit.SECONDS, Better.LOWER, 3.0, tuple(factor * s for s in samples))
        return Launch(index, role, 0, "", 1.0, 1.0, (CaseOutcome(CASE, (measured,)),))

    launches = (launch(0, 1.0, "head"), launch(1, 10.0, "head"), launch(2, 3.0, "head"), launch(3, 99.0, "base"),
                launch(4, 99.0, "traced"))
    finding = replace(newest.findings[0], statistic="p25")
    series, = fold([replace(newest, launches=launches, findings=(finding,))]).series
    assert series.statistic == "p25"
    assert series.points[0].launches == (2.0, 20.0, 6.0)
    assert series.points[0].value == 6.0


def test_a_metric_only_the_traced_launch_has_is_kept() -> None:
    newest = runs_of(1)[0]
    traced = replace(newest.launches[0], role="traced")
    series, = fold([replace(newest, launches=(traced,))]).series
    assert len(series.points[0].launches) == 1


def test_another_machine_is_another_series() -> None:
    newest_first = runs_of(4)
    other = Environment({**MUST_MATCH, "gpu_model": "NVIDIA B200"})
    mixed = [replace(r, environment=other) if i % 2 else r for i, r in enumerate(newest_first)]
    trend = fold(mixed)
    assert sorted(len(series.points) for series in trend.series) == [2, 2]
    assert [row.series.fingerprint for row in rows(trend)] == [newest_first[0].environment.fingerprint]


def test_environment_changes_and_their_noise() -> None:
    rng = random.Random(4)  # noqa: S311 - noise, not secrets
    made = [run(PLANS, i, rng, reported={"nccl_version": "2.28.3" if i < 20 else "2.29.1", "host": f"gpu-{i % 2}"})
            for i in range(30)]
    unread = replace(made[25], environment=Environment(MUST_MATCH, {"nccl_version": None, "host": "gpu-1"}))
    made[25] = unread
    trend = fold(made[::-1])
    assert [(c.run, c.fact, c.before, c.after) for c in trend.changes] == [(20, "nccl_version", "2.28.3", "2.29.1")]
    assert trend.restless == (("host", 29),)
    assert [c.run for c in recent_changes(trend)] == [20]


def test_worst_first_and_since() -> None:
    plans = (seconds(CASE, "allreduce_seconds", 68e-6, steps=((22, 1.15),)),
             busbw(CASE, 247e9, steps=((25, 0.7),)),
             seconds(allreduce(4096), "allreduce_seconds", 12e-6))
    trend = fold(runs_of(30, plans))
    ordered = rows(trend)
    assert [(row.series.metric, row.since) for row in ordered] == [
        ("busbw_bytes_per_second", 25), ("allreduce_seconds", 22), ("allreduce_seconds", None)]
    points = {(CASE.id, "allreduce_seconds"): [ChangePoint("run-00021", 0.15), ChangePoint("run-00026", -0.01)]}
    exact = rows(trend, points)
    assert [(row.since, row.since_exactly) for row in exact] == [(25, False), (21, True), (None, False)]


def test_other_branches_neither_start_nor_end_a_regression() -> None:
    newest_first = runs_of(12, (seconds(CASE, "allreduce_seconds", 68e-6, steps=((8, 1.2),)),))

    def on_branch(made: Run, verdict: Verdict) -> Run:
        return replace(made, commit=replace(made.commit, branch="try", main=False),
                       findings=tuple(replace(f, verdict=verdict) for f in made.findings))

    newest_first[2] = on_branch(newest_first[2], Verdict.PASS)
    newest_first[4] = on_branch(newest_first[4], Verdict.REGRESSION)
    row, = rows(fold(newest_first))
    assert row.since == 8
    assert len(row.recent) == 10
    nobody_on_main = [replace(made, commit=replace(made.commit, main=False)) for made in newest_first]
    assert len(rows(fold(nobody_on_main))[0].recent) == 12


def test_an_undecided_run_does_not_end_a_regression() -> None:
    newest_first = runs_of(12, (seconds(CASE, "allreduce_seconds", 68e-6, steps=((6, 1.2),)),))
    noisy = newest_first[2]
    newest_first[2] = replace(noisy, findings=tuple(replace(f, verdict=Verdict.INCONCLUSIVE) for f in noisy.findings))
    assert rows(fold(newest_first))[0].since == 6


def test_a_vanished_metric_stays_in_the_table_without_a_value() -> None:
    trend = fold(runs_of(8, (*PLANS, busbw(CASE, 247e9, absent=frozenset({7})))))
    vanished = next(row for row in rows(trend) if row.series.metric == "busbw_bytes_per_second")
    assert vanished.now is None
    assert len(vanished.series.points) == 7


def test_headline_findings_take_the_worst_that_has_a_change() -> None:
    newest = runs_of(1)[0]
    base = newest.findings[0]
    limit = replace(base, detector="limit", verdict=Verdict.REGRESSION, change=None)
    shift = replace(base, detector="shift", verdict=Verdict.REGRESSION, change=0.2)
    drift = replace(base, detector="drift", verdict=Verdict.PASS, change=0.01)
    found = headline_findings(replace(newest, findings=(drift, limit, shift)))
    assert found == {(CASE.id, "allreduce_seconds"): shift}


def test_acceptance_is_kept() -> None:
    newest = replace(runs_of(1)[0], accepted=Acceptance("faster", "me", "now"))
    assert fold([newest]).runs[0].accepted == Acceptance("faster", "me", "now")


def test_belief() -> None:
    newest = runs_of(1)[0]
    assert belief(newest)[0].startswith("Yes")
    assert belief(replace(newest, warnings=("clocks fell",))) == ("With care. The run carries warnings.",
                                                                  ("clocks fell",))
    assert belief(replace(newest, partial=True))[0].startswith("Only in part")
    invalid = replace(newest.findings[0], verdict=Verdict.INVALID, reason="hung")
    assert belief(replace(newest, findings=(invalid,))) == (
        "No. Part of this run is invalid.", (f"{CASE.id} allreduce_seconds: hung",))


def test_the_story_in_words() -> None:
    trend = fold(story())
    words = headline(trend, rows(trend))
    assert words is not None
    assert words.sentence == "Slower: 2 of 20 series regressed"
    assert words.detail.startswith("allreduce[16MiB-float32-2xcuda] allreduce_seconds: 67.9 µs → 81.4 µs (+19.8 %, ")
    assert words.since == (f"First seen at {sha(114)[:9]} Tidy the docs (part 114) "
                           "(in the same run: nccl 2.28.3 → 2.29.1)")


def test_foreign_text_is_made_visible() -> None:
    assert visible(HOSTILE).isprintable()
    assert visible("a\nb\tc") == "a b c"
    assert visible("\x1b[31m\u202e") == "\\u001b[31m\\u202e"
