"""A trial on recorded launches: what helps is told from what hurts, does nothing, fails or is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from regress.catalog import open_shelves
from regress.config import load_config
from regress.errors import MeasurementError
from regress.measure.ranks import RankPlan
from regress.measuring import Campaign
from regress.record import Case, TimingMode
from regress.tuning.report import export_lines, helpful, trial_json, trial_text
from regress.tuning.settings import Setting, parse_setting
from regress.tuning.trial import Effectiveness, Trial, TrialResult
from tests.tune.played import Played

ALLREDUCE = Case("allreduce", "float32", 2, "cuda", TimingMode.ISOLATED, 1 << 20)
STEP = Case("ddp_step", "float32", 2, "cuda", TimingMode.STEP)
FACTORS = {"NCCL_PROTO=Simple": 0.85, "NCCL_PROTO=LL": 1.3, "bucket_cap_mb=50": 0.9}


class Silent:
    """An observer that says nothing."""

    def message(self, text: str) -> None:
        """Not shown."""

    def case_started(self, text: str) -> None:
        """Not shown."""

    def progress(self, text: str) -> None:
        """Not shown."""


def settings(*texts: str) -> tuple[Setting, ...]:
    options: type = open_shelves().workloads["ddp_step"].options
    return tuple(parse_setting(text, options) for text in texts)


def trial(player: Played, *texts: str, cases: tuple[Case, ...] = (ALLREDUCE, STEP), **bounds: Any) -> TrialResult:
    shelves = open_shelves()
    metrics = {name: shelves.metrics_of(name) for name in shelves.workloads}
    with Campaign(load_config(None, shelves.catalog()), RankPlan(2, "cuda", "nccl", False, 1), Path.cwd(), metrics,
                  Silent(), factory=lambda _: player) as campaign:
        found = Trial(campaign, cases, settings(*texts), seed=3, **bounds).run()
        assert campaign.environment == {}
    return found


def outcomes(result: TrialResult) -> Mapping[tuple[str, str], Effectiveness]:
    return {(one.setting.name, one.case.workload): one.outcome for one in result.tried}


def test_what_helps_hurts_and_does_nothing_is_told_apart() -> None:
    result = trial(Played(FACTORS), "NCCL_PROTO=Simple", "NCCL_PROTO=LL", "NCCL_BUFFSIZE=8388608", "bucket_cap_mb=50")
    assert outcomes(result) == {
        ("NCCL_PROTO=Simple", "allreduce"): Effectiveness.HELPS, ("NCCL_PROTO=Simple", "ddp_step"): Effectiveness.HELPS,
        ("NCCL_PROTO=LL", "allreduce"): Effectiveness.HURTS, ("NCCL_PROTO=LL", "ddp_step"): Effectiveness.HURTS,
        ("NCCL_BUFFSIZE=8388608", "allreduce"): Effectiveness.NOTHING,
        ("NCCL_BUFFSIZE=8388608", "ddp_step"): Effectiveness.NOTHING,
        ("bucket_cap_mb=50", "allreduce"): Effectiveness.REFUSED,
        ("bucket_cap_mb=50", "ddp_step"): Effectiveness.HELPS}
    simple = next(one for one in result.tried if one.setting.name == "NCCL_PROTO=Simple")
    assert simple.change is not None
    assert simple.interval is not None
    assert simple.change == pytest.approx(-0.15, abs=0.02)
    assert simple.interval[0] < simple.change < simple.interval[1] < 0
    assert [setting.name for setting in helpful(result)] == ["NCCL_PROTO=Simple", "bucket_cap_mb=50"]


def test_rounds_are_interleaved_in_an_order_of_their_own() -> None:
    player = Played()
    trial(player, "NCCL_PROTO=Simple", "NCCL_PROTO=LL", cases=(ALLREDUCE,), rounds=4)
    rounds = [player.made[k:k + 3] for k in range(0, 12, 3)]
    assert all(Counter(one) == Counter(rounds[0]) for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1


def test_what_is_decided_is_not_launched_again() -> None:
    player = Played({"NCCL_PROTO=LL": 3.0}, spread=0.002)
    result = trial(player, "NCCL_PROTO=LL", "NCCL_PROTO=Simple", cases=(ALLREDUCE,), rounds=30)
    assert result.stopped == "everything is decided"
    assert result.rounds <= 10
    assert player.made.count("NCCL_PROTO=LL") <= result.rounds


def test_noise_praises_nothing() -> None:
    result = trial(Played(spread=0.05), *(f"NCCL_BUFFSIZE={1 << k}" for k in range(16, 24)), cases=(ALLREDUCE,))
    assert {one.outcome for one in result.tried} <= {Effectiveness.NOTHING, Effectiveness.UNDECIDED}
    assert "Nothing that was tried helps" in trial_text(result)


def test_a_setting_that_fails_is_given_up_and_costs_nothing_else() -> None:
    player = Played(FACTORS, broken=frozenset(("NCCL_ALGO=allreduce:nvls",)))
    result = trial(player, "NCCL_ALGO=allreduce:nvls", "NCCL_PROTO=Simple", cases=(ALLREDUCE,))
    assert player.made.count("NCCL_ALGO=allreduce:nvls") == 2
    failed = result.tried[0]
    assert failed.outcome is Effectiveness.FAILED
    assert failed.reason.endswith("rank 0 failed: invalid usage")
    assert outcomes(result)["NCCL_PROTO=Simple", "allreduce"] is Effectiveness.HELPS


def test_a_refused_setting_is_never_launched() -> None:
    player = Played()
    result = trial(player, "NCCL_ALGO=Tree", "NCCL_PROTO=Simple", cases=(ALLREDUCE,), rounds=3)
    assert not [one for one in player.made if "Tree" in one]
    assert result.tried[0].outcome is Effectiveness.REFUSED
    assert "Broadcast" in result.tried[0].reason


def test_cases_that_fail_as_they_are_end_the_trial() -> None:
    with pytest.raises(MeasurementError, match=r"as they are: .*rank 0 failed"):
        trial(_Broken(), "NCCL_PROTO=Simple", cases=(ALLREDUCE,))


class _Broken(Played):
    """Every launch fails."""

    def launch(self, *arguments: Any, **more: Any) -> Any:
        self.broken = frozenset(("always=1",))
        return super().launch(*arguments, **{**more, "environment": {"always": "1"}})


class _Stopped(Played):
    """Ctrl-C is pressed during the launch of that number."""

    at: int = 0

    def launch(self, *arguments: Any, **more: Any) -> Any:
        if len(self.made) == self.at:
            raise KeyboardInterrupt
        return super().launch(*arguments, **more)


def test_what_was_measured_until_ctrl_c_is_judged() -> None:
    player = _Stopped(FACTORS)
    player.at = 9
    result = trial(player, "NCCL_PROTO=LL", cases=(ALLREDUCE,))
    assert (result.stopped, result.rounds) == ("interrupted", 4)
    assert result.tried[0].rounds >= 4
    player = _Stopped(FACTORS)
    with pytest.raises(KeyboardInterrupt):
        trial(player, "NCCL_PROTO=LL", cases=(ALLREDUCE,))


def test_the_text_says_what_to_copy_and_the_json_the_same() -> None:
    result = trial(Played(FACTORS), "NCCL_PROTO=Simple", "bucket_cap_mb=50", "NCCL_ALGO=Tree")
    text, found = trial_text(result), trial_json(result)
    assert "export NCCL_PROTO=Simple" in text
    assert "DistributedDataParallel(model, bucket_cap_mb=50)" in text
    assert "a change matters from 5% and 3.00 µs on" in text
    assert "refused" in text
    assert found["use"] == ["export NCCL_PROTO=Simple", "DistributedDataParallel(model, bucket_cap_mb=50)"]
    assert isinstance(found["tried"], list)
    assert len(found["tried"]) == 6


def test_every_option_has_a_line_to_copy() -> None:
    lines = export_lines(settings("NCCL_ALGO=allreduce:tree", "comm_hook=bf16", "comm_hook=powersgd", "compile=true",
                                  "static_graph=true gradient_as_bucket_view=true"))
    assert lines == [
        "export NCCL_ALGO='allreduce:tree'", "ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)",
        "ddp.register_comm_hook(PowerSGDState(process_group=None), powerSGD_hook)", "torch.compile(ddp)",
        "DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)"]
