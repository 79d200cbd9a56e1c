"""Which runs are compared with, and what is said about the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regress.judge.baseline import as_window, environment_changes, select
from regress.record import Acceptance, Commit, Environment, Run, Verdict
from tests.judge.made import CASE, METRIC, case, launches, run

HERE = Environment({"gpu": "H200"})
NOW = "2026-01-20T00:00:00+00:00"
MINE = Commit(sha="mine", main=True)


def ids(*earlier: Run, commit: Commit = MINE, limit: int = 20) -> list[str]:
    """The window's runs for the case."""
    return [v.run_id for v in select(commit, HERE, NOW, earlier, limit=limit).window(CASE.id, METRIC)]


def test_runs_of_main_in_this_environment_oldest_first() -> None:
    assert ids(run([1.0], 0), run([1.0], 1), run([1.0], 2)) == ["run0", "run1", "run2"]
    assert ids(run([1.0], 0), run([1.0], 1), run([1.0], 2), limit=2) == ["run1", "run2"]


def test_what_is_left_out_is_counted() -> None:
    found = select(MINE, HERE, NOW, [
        run([1.0], 0), run([1.0], 1, partial=True), run([1.0], 2, verdict=Verdict.INVALID),
        run([1.0], 3, main=False), run([1.0], 4, sha="mine")])
    assert [v.run_id for v in found.window(CASE.id, METRIC)] == ["run0"]
    assert found.notes == ("earlier runs left out of the baseline: 1 invalid, 1 of other branches, "
                           "1 of this same commit, 1 partial",)


def test_a_regressed_case_is_no_baseline_for_itself_and_is_for_others() -> None:
    other = case("allgather")
    regressed = run([1.0], 1, verdict=Verdict.REGRESSION, verdicts={CASE.id: Verdict.REGRESSION})
    assert ids(run([1.0], 0), regressed) == ["run0"]
    sound = run([1.0], 1, verdict=Verdict.REGRESSION, verdicts={other.id: Verdict.REGRESSION, CASE.id: Verdict.PASS})
    assert ids(run([1.0], 0), sound) == ["run0", "run1"]


def test_a_case_left_undecided_where_others_regressed_is_no_baseline() -> None:
    other = case("allgather")
    undecided = {CASE.id: Verdict.INCONCLUSIVE, other.id: Verdict.REGRESSION}
    failed = run([1.0], 1, verdict=Verdict.REGRESSION, verdicts=undecided)
    noisy = run([1.0], 2, verdict=Verdict.INCONCLUSIVE, verdicts={CASE.id: Verdict.INCONCLUSIVE})
    assert ids(run([1.0], 0), failed, noisy) == ["run0", "run2"]


def test_reruns_of_one_commit_count_once_the_latest_of_them() -> None:
    assert ids(run([1.0], 0, sha="a"), run([1.0], 1, sha="b"), run([1.0], 2, sha="a")) == ["run1", "run2"]


def test_a_case_measured_again_alone_leaves_the_commits_other_cases_in_the_baseline() -> None:
    """`regress run --case` on a commit whose whole run is stored: the 1 MiB case keeps its run."""
    other = case(size=2**20)
    whole = run([1.0], 0, sha="a", made=launches([1.0]) + launches([2.0], of=other))
    again = run([3.0], 1, sha="a")
    found = select(MINE, HERE, NOW, [whole, again])
    assert [v.run_id for v in found.window(CASE.id, METRIC)] == ["run1"]
    assert [v.run_id for v in found.window(other.id, METRIC)] == ["run0"]
    assert found.renamed([CASE, other]) == ()


def test_reruns_of_this_very_commit_serve_where_there_is_nothing_else() -> None:
    found = select(MINE, HERE, NOW, [run([1.0], 0, sha="mine"), run([1.0], 1, sha="mine")])
    assert [v.run_id for v in found.window(CASE.id, METRIC)] == ["run0", "run1"]
    assert "compared with 2 earlier runs of this same commit" in found.notes[0]


def test_a_run_of_a_tree_with_uncommitted_changes_is_no_baseline() -> None:
    changed = run([9.0], 1, sha="a", dirty=True), run([9.0], 2, dirty=True)
    found = select(MINE, HERE, NOW, [run([1.0], 0, sha="a"), *changed])
    assert [v.run_id for v in found.window(CASE.id, METRIC)] == ["run0"]
    assert found.notes == ("earlier runs left out of the baseline: 2 of a tree with uncommitted changes",)
    only = select(MINE, HERE, NOW, [run([9.0], 0, dirty=True)])
    assert (only.runs, only.notes) == ((), ("earlier runs left out of the baseline: 1 of a tree with uncommitted "
                                            "changes",))


def test_an_accepted_run_of_such_a_tree_is_a_baseline_and_stands_beside_its_commits_clean_run() -> None:
    accepted = Acceptance("patched in CI", "me", NOW)
    assert ids(run([1.0], 0, sha="a", dirty=True, accepted=accepted), run([1.0], 1, sha="a"), run([1.0], 2)) \
        == ["run0", "run1", "run2"]


def test_a_tree_with_uncommitted_changes_is_compared_with_its_own_commits_clean_runs() -> None:
    mine = replace(MINE, dirty=True)
    found = select(mine, HERE, NOW, [run([1.0], 0), run([1.0], 1, sha="mine"), run([9.0], 2, sha="mine", dirty=True)])
    assert [v.run_id for v in found.window(CASE.id, METRIC)] == ["run0", "run1"]
    assert found.notes == ("earlier runs left out of the baseline: 1 of a tree with uncommitted changes",)


def test_where_no_clean_tree_was_measured_one_with_changes_is_compared_with_its_like_which_is_said() -> None:
    mine = replace(MINE, dirty=True)
    earlier = [run([1.0], i, sha="mine", dirty=True) for i in range(3)]
    found = select(mine, HERE, NOW, [*earlier, run([1.0], 3, dirty=True, main=False), run([1.0], 4, partial=True)])
    assert [v.run_id for v in found.window(CASE.id, METRIC)] == ["run0", "run1", "run2"]
    assert found.notes == (
        "no run of a tree without uncommitted changes is fit to be compared with: compared with 3 earlier runs of "
        "trees with such changes", "earlier runs left out of the baseline: 1 of other branches, 1 partial")
    accepted = replace(earlier[1], accepted=Acceptance("intended", "me", NOW))
    assert ids(earlier[0], accepted, earlier[2], commit=mine) == ["run1", "run2"]


def test_an_accepted_run_of_this_very_commit_counts() -> None:
    accepted = run([2.0], 1, sha="mine", verdict=Verdict.REGRESSION, accepted=Acceptance("intended", "me", NOW))
    found = select(MINE, HERE, NOW, [run([1.0], 0), accepted, run([2.0], 2, sha="mine")])
    assert [v.run_id for v in found.window(CASE.id, METRIC)] == ["run1"]
    assert found.notes == ("earlier runs left out of the baseline: 1 of this same commit",)
    assert ids(accepted, run([2.0], 2, sha="mine")) == ["run1", "run2"]


def test_outside_a_repository_every_run_counts() -> None:
    nowhere = Commit()
    assert ids(run([1.0], 0, sha=None, main=False), run([1.0], 1, sha=None, main=False), commit=nowhere) \
        == ["run0", "run1"]


def test_interleaved_branches_do_not_mix() -> None:
    earlier = [run([1.0], i, main=i % 2 == 0) for i in range(6)]
    assert ids(*earlier) == ["run0", "run2", "run4"]


def test_an_acceptance_restarts_the_window_of_its_cases() -> None:
    accepted = Acceptance("new algorithm", "me", NOW, cases=(CASE.id,))
    earlier = [run([1.0], 0), run([2.0], 1, verdict=Verdict.REGRESSION, accepted=accepted), run([2.0], 2)]
    found = select(MINE, HERE, NOW, earlier)
    assert [v.run_id for v in found.window(CASE.id, METRIC)] == ["run1", "run2"]
    anchor = found.anchor(CASE.id, METRIC)
    assert anchor is not None
    assert anchor.run_id == "run1"
    assert [v.run_id for v in found.window(case("allgather").id, METRIC)] == []


@pytest.mark.parametrize("unfit", [run([9.0], 2, main=False), run([9.0], 2, partial=True),
                                   run([9.0], 2, verdict=Verdict.INVALID)], ids=["pull request", "partial", "invalid"])
def test_an_acceptance_lets_no_other_case_of_an_unfit_run_in(unfit: Run) -> None:
    other = case("allgather")
    outcomes = (*launches([9.0]), *launches([9.0], of=other))
    accepted = replace(unfit, launches=outcomes, verdicts={CASE.id: unfit.verdict, other.id: Verdict.PASS},
                       accepted=Acceptance("new algorithm", "me", NOW, cases=(CASE.id,)))
    earlier = [run([], i, made=(*launches([1.0]), *launches([1.0], of=other))) for i in range(2)]
    found = select(MINE, HERE, NOW, [*earlier, accepted])
    assert [v.run_id for v in found.window(CASE.id, METRIC)] == ["run2"]
    assert [v.run_id for v in found.window(other.id, METRIC)] == ["run0", "run1"]


def test_without_an_acceptance_the_first_run_is_the_anchor() -> None:
    anchor = select(MINE, HERE, NOW, [run([1.0], 0), run([1.0], 1)]).anchor(CASE.id, METRIC)
    assert anchor is not None
    assert anchor.run_id == "run0"


def test_no_matching_environment_names_what_differs_in_the_closest() -> None:
    far = run([1.0], 0, facts={"gpu": "A100", "link": "PCIe"})
    near = run([1.0], 1, facts={"gpu": "H100"})
    found = select(MINE, HERE, NOW, [far, near])
    assert found.runs == ()
    assert found.differs == (("gpu", "H100", "H200"),)
    assert found.notes == ("none of 2 earlier runs was measured in this environment; the closest (run run1) differs: "
                           "gpu is H200, there H100",)


def test_an_empty_history_says_so() -> None:
    assert select(MINE, HERE, NOW, []).notes == ("no earlier run is stored: this one is the first",)


def test_a_stale_baseline_and_a_wrong_clock_are_said() -> None:
    assert "19 days old" in select(MINE, HERE, NOW, [run([1.0], 0)], stale_days=7).notes[0]
    future = select(MINE, HERE, "2025-12-30T00:00:00+00:00", [run([1.0], 0)])
    assert "2.0 days in the future: a clock is wrong" in future.notes[0]
    skewed = select(MINE, HERE, NOW, [run([1.0], 0, day=9), run([1.0], 1, day=3)])
    assert "the clock of run run1 is behind" in skewed.notes[0]
    assert [v.run_id for v in skewed.window(CASE.id, METRIC)] == ["run0", "run1"]


def test_inconclusive_in_a_row_counts_back_from_the_latest() -> None:
    verdicts = (Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE)
    found = select(MINE, HERE, NOW, [run([1.0], i, verdict=v) for i, v in enumerate(verdicts)])
    assert found.inconclusive_in_a_row(CASE.id) == 2


def test_reported_facts_that_differ_are_worded() -> None:
    now = Environment({}, {"nccl": "2.29.2", "torch": "2.13"})
    before = Environment({}, {"nccl": "2.28.9", "torch": "2.13", "driver": "580",
                              "variable.NCCL_PROTO": "LL"})
    assert environment_changes(now, before) == ("driver 580 → unknown", "nccl 2.28.9 → 2.29.2",
                                                "variable.NCCL_PROTO LL → unset")


def test_a_window_of_one_stored_run_takes_it_as_it_is() -> None:
    assert len(as_window(run([1.0, 2.0], main=False)).window(CASE.id, METRIC)[0].launches) == 2
