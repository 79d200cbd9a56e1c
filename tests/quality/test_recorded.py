"""The whole judge on recorded launches: unchanged stays green, every deliberate slow-down is named."""

from __future__ import annotations

from collections import Counter

import pytest

from regress.judge.verdict import judge
from regress.record import Verdict
from tests.quality.recorded import Setting, builds, load, policies, window_of


@pytest.mark.parametrize("base", [True, False])
def test_unchanged_gloo_builds_on_a_busy_host_are_never_red(base: bool) -> None:
    recorded = load("gloo_2rank_same_code", "cpu")
    found = list(builds(recorded, policies(recorded.cases), Setting(base=base), 50, seed=1))
    assert [j.exit_status for j in found] == [0] * 50
    if base:
        assert sum(j.verdict is Verdict.PASS for j in found) >= 48


def test_fifty_percent_on_one_gloo_case_is_found_against_an_interleaved_base() -> None:
    """Nine of ten here, in few builds; docs/quality.md has the rate over many."""
    recorded = load("gloo_2rank_same_code", "cpu")
    verdicts: Counter[Verdict] = Counter()
    for case in recorded.cases:
        setting = Setting(base=True, slower=(case.id, 1.5))
        for found in builds(recorded, policies(recorded.cases), setting, 8, seed=2):
            verdicts[found.verdicts[case.id]] += 1
            others = {name: v for name, v in found.verdicts.items() if name != case.id}
            assert Verdict.REGRESSION not in others.values()
    assert verdicts[Verdict.REGRESSION] >= 0.9 * verdicts.total()


def test_the_judged_statistic_on_the_busy_host_is_the_lower_quartile() -> None:
    recorded = load("gloo_2rank_same_code", "cpu")
    window = window_of(recorded.by_condition["same"][:30], 3)
    found = judge(recorded.by_condition["same"][30:33], window, policies(recorded.cases))
    assert {f.statistic for f in found.findings if f.detector == "shift"} == {"p25"}


def test_a_small_buffer_is_red_from_one_mebibyte() -> None:
    recorded = load("nccl_1gpu_mps", "cuda")
    found = judge(recorded.by_condition["small_buffer"], window_of(recorded.by_condition["same"], 3),
                  policies(recorded.cases), stored=True)
    red = {f.case.split("-")[0] for f in found.findings if f.verdict is Verdict.REGRESSION}
    assert found.exit_status == 1
    assert {"allreduce[16MiB", "allgather[16MiB", "allgather[1MiB"} <= red
    assert not {"allreduce[4KiB", "allgather[4KiB"} & red


def test_one_channel_is_never_green_at_16_mebibytes_and_says_what_would_decide() -> None:
    recorded = load("nccl_1gpu_mps", "cuda")
    found = judge(recorded.by_condition["one_channel"], window_of(recorded.by_condition["same"], 3),
                  policies(recorded.cases), stored=True)
    large = [f for f in found.findings if "16MiB" in f.case and f.detector == "shift"]
    assert len(large) == 2
    for finding in large:
        assert finding.verdict in (Verdict.REGRESSION, Verdict.INCONCLUSIVE)
        assert finding.verdict is Verdict.REGRESSION or (finding.needed_launches or 0) > 3


def test_without_peer_to_peer_both_collectives_are_red_from_16_mebibytes() -> None:
    recorded = load("nccl_2gpu_nvlink", "cuda")
    found = judge(recorded.by_condition["no_p2p"], window_of(recorded.by_condition["same"], 4),
                  policies(recorded.cases), stored=True)
    red = {f.case.split("-")[0] for f in found.findings if f.verdict is Verdict.REGRESSION}
    assert red == {"allreduce[16MiB", "allgather[16MiB", "allreduce[256MiB", "allgather[256MiB"}


def test_two_unchanged_launches_on_nvlink_pass_where_the_wire_dominates() -> None:
    recorded = load("nccl_2gpu_nvlink", "cuda")
    same = recorded.by_condition["same"]
    found = judge(same[2:], window_of(same[:2], 2), policies(recorded.cases))
    large = [f for f in found.findings if "256MiB" in f.case and f.detector == "shift"]
    assert [f.verdict for f in large] == [Verdict.PASS, Verdict.PASS]
