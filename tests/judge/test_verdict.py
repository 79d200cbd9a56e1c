"""What a build amounts to, from launches to exit status."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regress.judge.baseline import Baseline
from regress.judge.detectors import SeriesOptions
from regress.judge.detectors.limit import LimitOptions
from regress.judge.detectors.shift import ShiftOptions
from regress.judge.verdict import Downgrade, HealthNote, compare, detectors, judge
from regress.options import Effect
from regress.record import Case, CaseOutcome, Launch, Run, Verdict
from regress.units import Better, Unit
from tests.judge.made import CASE, METRIC, case, launches, policies, run

QUIET = (1.000e-3, 1.004e-3, 0.997e-3)


def window(count: int = 10, factor: float = 1.0) -> Baseline:
    runs = tuple(run([v * factor * (1 + 0.002 * (i % 3)) for v in QUIET], i) for i in range(count))
    return Baseline(runs, runs)


def test_the_shelf_holds_the_four_detectors() -> None:
    assert list(detectors()) == ["drift", "limit", "presence", "shift"]


def test_unchanged_is_pass_and_exit_0() -> None:
    found = judge(launches(QUIET), window(), policies(), planned=[CASE])
    assert (found.verdict, found.exit_status, found.suspects) == (Verdict.PASS, 0, ())


def test_a_suspicion_alone_fails_nothing_but_asks_to_be_measured_again() -> None:
    found = judge(launches([v * 1.5 for v in QUIET]), window(), policies(), planned=[CASE])
    assert (found.verdict, found.exit_status) == (Verdict.INCONCLUSIVE, 0)
    assert [s.case for s in found.suspects] == [CASE]
    assert "not yet seen in fresh launches" in found.findings[0].reason


def test_a_confirmed_suspicion_is_a_regression_that_says_how_much_and_how_sure() -> None:
    slow = [v * 1.5 for v in QUIET]
    measured = launches(slow) + launches([*slow, *slow[:2]], session=1)
    found = judge(measured, window(), policies(), planned=[CASE])
    assert (found.verdict, found.exit_status) == (Verdict.REGRESSION, 1)
    assert found.suspects == ()
    worst = found.findings[0]
    assert worst.change == pytest.approx(0.5, abs=0.02)
    assert worst.significant
    assert worst.relevant
    for part in ("+4", "confidence", "5 launches against 10 earlier runs (30 launches)", "p = ", "matters from"):
        assert part in worst.reason


def test_the_interleaved_base_decides_when_it_is_there() -> None:
    slow = [v * 1.5 for v in QUIET]
    pair = [*QUIET, 1.002e-3, 0.999e-3]
    both_slow = [v * 1.5 for v in pair]
    machine = launches(slow) + launches(both_slow, session=1) + launches(both_slow[::-1], role="base", session=1)
    assert judge(machine, window(), policies()).verdict is Verdict.PASS
    code = launches(slow) + launches(both_slow, session=1) + launches(pair, role="base", session=1)
    found = judge(code, window(), policies())
    assert (found.verdict, found.exit_status) == (Verdict.REGRESSION, 1)
    assert "interleaved launches of the base" in found.findings[0].reason


def test_an_improvement_needs_no_confirmation_and_fails_nothing() -> None:
    found = judge(launches([v * 0.5 for v in QUIET]), window(), policies())
    assert (found.verdict, found.exit_status) == (Verdict.IMPROVEMENT, 0)


def test_an_improvement_asks_to_be_accepted() -> None:
    found = judge(launches([v * 0.5 for v in QUIET]), window(), policies())
    assert any("improved by -50" in w and "accept the run" in w for w in found.warnings)


def test_a_renamed_case_is_said_to_start_anew() -> None:
    new = case("allreduce", size=2**25)
    found = judge(launches(QUIET, of=new), window(), policies((new, METRIC)), planned=[new])
    assert found.verdict is Verdict.NO_BASELINE
    assert any(new.id in w and CASE.id in w and "renamed" in w for w in found.warnings)


def test_higher_is_better_turns_the_direction() -> None:
    def bandwidth(values: list[float], session: int = 0) -> tuple[Launch, ...]:
        return launches(values, metric="busbw", unit=Unit.BYTES_PER_SECOND, better=Better.HIGHER, session=session)

    runs = tuple(run([], i, made=bandwidth([3e11, 3.01e11, 2.99e11])) for i in range(10))
    policy = policies((CASE, "busbw"))
    now = bandwidth([2e11, 2.01e11, 2e11]) + bandwidth([2e11, 2.01e11, 2e11, 2.01e11, 2e11], 1)
    assert judge(now, Baseline(runs, runs), policy).verdict is Verdict.REGRESSION
    better = bandwidth([4e11, 4.01e11, 4e11])
    assert judge(better, Baseline(runs, runs), policy).verdict is Verdict.IMPROVEMENT


def test_a_first_run_is_no_baseline_and_strict_mode_ends_with_10() -> None:
    found = judge(launches(QUIET), Baseline(), policies(), planned=[CASE])
    assert (found.verdict, found.exit_status) == (Verdict.NO_BASELINE, 0)
    strict = judge(launches(QUIET), Baseline(), policies(standing=SeriesOptions(no_baseline="fail")))
    assert (strict.verdict, strict.exit_status) == (Verdict.NO_BASELINE, 10)
    assert "has no baseline" in strict.warnings[-1]


def test_a_vanished_metric_is_invalid_unless_retired() -> None:
    other = launches(QUIET, metric="another")
    found = judge(other, window(), policies())
    assert (found.verdict, found.exit_status) == (Verdict.INVALID, 10)
    assert "retired: true" in found.findings[0].reason
    assert judge(other, window(), policies(standing=SeriesOptions(retired=True))).verdict is Verdict.PASS


def test_a_failed_case_is_invalid_and_a_regression_elsewhere_still_ends_with_1() -> None:
    broken = case("allgather")
    failed = tuple(Launch(index=i, role="head", seed=0, started_at="", wall_seconds=1.0, rank_wall_seconds=1.0,
                          outcomes=(CaseOutcome(broken, error="12 wrong elements on rank 1"),)) for i in range(2))
    found = judge(failed, window(), policies(), planned=[broken])
    assert (found.verdicts[broken.id], found.exit_status) == (Verdict.INVALID, 10)
    slow = launches([v * 1.5 for v in QUIET]) + launches([v * 1.5 for v in (*QUIET, *QUIET[:2])], session=1)
    found = judge(failed + slow, window(), policies())
    assert (found.verdict, found.exit_status) == (Verdict.INVALID, 1)


def test_a_planned_case_that_is_missing_from_a_launch_is_invalid() -> None:
    found = judge(launches(QUIET), window(), policies(), planned=[CASE, case("allgather")])
    assert found.verdicts[case("allgather").id] is Verdict.INVALID
    assert "missing" in found.findings[0].reason


ALONE = replace(CASE, world_size=1, ranks_per_node=1)


def turns(count: int, *, lost: int | None = None) -> tuple[Launch, ...]:
    """Screening as a gate does it: one launch of each world size in turn; `lost`: the launch that left nothing."""
    taken = [launch for pair in zip(launches(QUIET[:count], of=ALONE), launches(QUIET[:count]), strict=True)
             for launch in pair]
    return tuple(replace(launch, index=i, outcomes=launch.outcomes if i != lost else (),
                         error=None if i != lost else "rank 0 was killed by SIGKILL")
                 for i, launch in enumerate(taken))


def test_a_launch_is_expected_to_hold_the_cases_of_its_own_world_size() -> None:
    found = judge(turns(3), window(), policies((ALONE, METRIC), (CASE, METRIC)), planned=[ALONE, CASE])
    assert found.verdicts == {ALONE.id: Verdict.NO_BASELINE, CASE.id: Verdict.PASS}
    assert found.exit_status == 0
    missing = judge(turns(3), window(), policies(), planned=[ALONE, CASE, case("allgather")])
    assert [(f.case, f.verdict) for f in missing.findings if f.detector == "correctness"] == [
        (case("allgather").id, Verdict.INVALID)]


@pytest.mark.parametrize(("lost", "of"), [(2, ALONE), (5, CASE)])
def test_a_launch_that_left_nothing_makes_the_cases_of_its_world_size_invalid(lost: int, of: Case) -> None:
    found = judge(turns(3, lost=lost), window(), policies((ALONE, METRIC), (CASE, METRIC)), planned=[ALONE, CASE])
    assert [(f.case, f.reason) for f in found.findings if f.verdict is Verdict.INVALID] == [
        (of.id, f"launch {lost}: rank 0 was killed by SIGKILL")]
    assert found.exit_status == 10


def test_launches_that_all_left_nothing_make_every_case_invalid() -> None:
    empty = tuple(replace(launch, outcomes=(), error="no rank came up") for launch in turns(1))
    found = judge(empty, window(), policies(), planned=[ALONE, CASE])
    assert found.verdicts == {ALONE.id: Verdict.INVALID, CASE.id: Verdict.INVALID}


def test_a_planned_case_of_a_world_size_that_was_never_launched_is_invalid() -> None:
    found = judge(launches(QUIET), window(), policies(), planned=[ALONE, CASE])
    assert found.verdicts == {ALONE.id: Verdict.INVALID, CASE.id: Verdict.PASS}
    assert found.findings[0].reason == "it was planned, and no launch measured it"


@pytest.mark.parametrize(("level", "verdict", "status"), [(Downgrade.INCONCLUSIVE, Verdict.INCONCLUSIVE, 0),
                                                          (Downgrade.INVALID, Verdict.INVALID, 10)])
def test_a_sick_machine_takes_the_blame(level: Downgrade, verdict: Verdict, status: int) -> None:
    slow = [v * 1.5 for v in QUIET]
    measured = launches(slow) + launches([*slow, *slow[:2]], session=1)
    found = judge(measured, window(), policies(), health=[HealthNote(level, "GPU 0 ran at 900 of 1980 MHz")])
    assert (found.verdict, found.exit_status) == (verdict, status)
    assert "900 of 1980 MHz" in found.findings[0].reason
    assert judge(launches(QUIET), window(), policies(),
                 health=[HealthNote(level, "hot")]).verdict is Verdict.PASS


@pytest.mark.parametrize("speed", [0.5, 1.0, 1.5])
def test_where_no_duration_means_anything_none_passes(speed: float) -> None:
    """Ranks that take turns on one GPU: a turn lasts as long as it did before, whatever the code does."""
    measured = launches([v * speed for v in QUIET]) + launches([v * speed for v in QUIET], session=1)
    sliced = HealthNote(Downgrade.INVALID, "the GPU time-slices", timeless=True)
    found = judge(measured, window(), policies(), health=[sliced])
    assert found.verdict in (Verdict.INCONCLUSIVE, Verdict.INVALID)
    assert "the GPU time-slices" in found.findings[0].reason
    assert found.suspects == (), "more launches would not tell more"


def test_where_no_duration_means_anything_counts_still_do() -> None:
    sliced = HealthNote(Downgrade.INVALID, "the GPU time-slices", timeless=True)
    runs = tuple(run([], i, made=launches([5.0] * 3, unit=Unit.COUNT)) for i in range(3))
    before = Baseline(runs, runs)
    assert judge(launches([5.0] * 3, unit=Unit.COUNT), before, policies(), health=[sliced]).verdict is Verdict.PASS


def test_severity_warn_and_inform_do_not_fail_the_build() -> None:
    slow = [v * 1.5 for v in QUIET]
    measured = launches(slow) + launches([*slow, *slow[:2]], session=1)
    for severity in ("warn", "inform"):
        found = judge(measured, window(), policies(standing=SeriesOptions(severity=severity)))
        assert (found.verdict, found.exit_status) == (Verdict.PASS, 0)
        assert found.findings[0].verdict is Verdict.REGRESSION
        assert any("only warns" in w for w in found.warnings) is (severity == "warn")


def test_inconclusive_is_amber_until_it_lasts() -> None:
    noisy = launches([1.0e-3, 1.3e-3, 0.8e-3])
    runs = tuple(run([1e-3, 1.3e-3, 0.75e-3], i) for i in range(10))
    shift = ShiftOptions(effect=Effect(0.02))
    assert judge(noisy, Baseline(runs, runs), policies(shift=shift)).exit_status == 0
    strict = policies(shift=shift, standing=SeriesOptions(inconclusive="fail"))
    assert judge(noisy, Baseline(runs, runs), strict).exit_status == 10
    before = tuple(run([1e-3], i, verdict=Verdict.INCONCLUSIVE) for i in range(9))
    lasting = judge(noisy, Baseline(runs, before), policies(shift=shift))
    assert lasting.exit_status == 10
    assert any("10 runs in a row" in w for w in lasting.warnings)


def test_holm_over_many_series_demotes_what_one_series_alone_would_show() -> None:
    noisy = (1.00e-3, 1.04e-3, 0.97e-3)
    slow = [v * 1.18 for v in noisy]
    runs = [run([v * (1 + 0.02 * (i % 3)) for v in noisy], i) for i in range(10)]
    alone = judge(launches(slow), Baseline(tuple(runs), ()), policies(), stored=True)
    assert alone.verdict is Verdict.REGRESSION
    others = [case("allreduce", size=2**k) for k in range(3, 23)]
    many = launches(slow)
    for other in others:
        many += launches(QUIET, of=other)
        runs = [run([], i, made=r.launches + launches(QUIET, of=other)) for i, r in enumerate(runs)]
    found = judge(many, Baseline(tuple(runs), ()), policies((CASE, METRIC), *((o, METRIC) for o in others)),
                  stored=True)
    first = next(f for f in found.findings if f.case == CASE.id and f.detector == "shift")
    assert first.verdict is Verdict.INCONCLUSIVE
    assert "among 21 series" in first.reason


@pytest.mark.parametrize(("limit", "verdict"), [(LimitOptions(max=0.9e-3), Verdict.REGRESSION),
                                                (LimitOptions(max=1.1e-3), Verdict.PASS),
                                                (LimitOptions(min=1.1e-3), Verdict.REGRESSION),
                                                (LimitOptions(max=0.9995e-3), Verdict.INCONCLUSIVE)])
def test_a_limit_needs_no_baseline(limit: LimitOptions, verdict: Verdict) -> None:
    found = judge(launches(QUIET) + launches(QUIET, session=1), Baseline(), policies(limit=limit))
    finding = next(f for f in found.findings if f.detector == "limit")
    assert finding.verdict is verdict
    assert "the limit (at " in finding.reason


def test_a_limit_on_what_is_not_measured_here_is_said() -> None:
    found = judge(launches(QUIET), window(), policies((CASE, "sm_active_ratio"), limit=LimitOptions(min=0.5)))
    assert found.warnings == (f"sm_active_ratio of {CASE.id} is not measured here, so min does not apply",)


@pytest.mark.parametrize("before", [run(QUIET, 0, verdict=Verdict.REGRESSION), run(QUIET, 0, main=False),
                                    run(QUIET, 0, partial=True)], ids=["regressed", "pull request", "partial"])
def test_compare_takes_the_run_that_was_named_as_it_is(before: Run) -> None:
    assert compare(run([v * 1.5 for v in QUIET], 1), before, policies()).verdict is Verdict.REGRESSION


def test_compare_judges_two_stored_runs_without_asking_for_more() -> None:
    slow = compare(run([v * 1.5 for v in QUIET], 1), run(QUIET, 0), policies())
    assert (slow.verdict, slow.exit_status) == (Verdict.REGRESSION, 1)
    assert compare(run(QUIET, 1), run(QUIET, 0), policies()).exit_status == 0


def test_a_metric_whose_unit_changed_starts_anew() -> None:
    now = launches([5.0, 5.0, 5.0], unit=Unit.COUNT)
    found = judge(now, window(), policies())
    assert found.verdict is Verdict.NO_BASELINE
    assert "10 earlier runs that measured it otherwise are not compared" in found.warnings[0]
