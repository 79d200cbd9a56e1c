from __future__ import annotations

from pathlib import Path

import pytest

from regress.errors import EnvironmentUnfitError, UsageError
from regress.measure import ranks
from regress.measure.ranks import RankPlan, plan_ranks, visible_indices
from tests.measure.fakes import FakeDevices


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "allowed_cores", lambda: 4)
    monkeypatch.setattr(ranks, "nccl_version", lambda: "2.28.9")


@pytest.mark.parametrize(("gpus", "device", "world_size", "plan"), [
    (0, "auto", None, RankPlan(2, "cpu", "gloo", False, 2)),
    (0, "auto", 4, RankPlan(4, "cpu", "gloo", False, 1)),
    (8, "cpu", None, RankPlan(2, "cpu", "gloo", False, 2)),
    (1, "auto", None, RankPlan(2, "cuda", "nccl", True, 2)),
    (1, "cuda", 1, RankPlan(1, "cuda", "nccl", False, 4)),
    (4, "auto", None, RankPlan(4, "cuda", "nccl", False, 1)),
    (8, "cuda", 2, RankPlan(2, "cuda", "nccl", False, 2)),
])
def test_one_rank_for_each_gpu_two_on_the_only_one_else_the_cpu(gpus: int, device: str, world_size: int | None,
                                                                plan: RankPlan) -> None:
    assert plan_ranks(device, world_size, devices=FakeDevices(gpus), environment={}) == plan


@pytest.mark.parametrize(("gpus", "nccl", "variable", "by_nccl"), [
    (1, "2.30.7", "1", True), (1, "3.0", "1", True), (1, "2.30.7", None, False), (1, "2.30.7", "0", False),
    (1, "2.29.7", "1", False), (1, "2.9.6", "1", False), (1, None, "1", False), (1, "of another kind", "1", False),
    (2, "2.30.7", "1", False),
])
def test_ranks_share_the_only_gpu_by_nccls_leave_where_it_gives_one_and_the_user_asks(
        monkeypatch: pytest.MonkeyPatch, gpus: int, nccl: str | None, variable: str | None, by_nccl: bool) -> None:
    monkeypatch.setattr(ranks, "nccl_version", lambda: nccl)
    asked = {} if variable is None else {"NCCL_MULTI_RANK_GPU_ENABLE": variable}
    assert plan_ranks("cuda", devices=FakeDevices(gpus), environment=asked).multi_rank_gpu is by_nccl


@pytest.mark.parametrize(("gpus", "device", "world_size", "error", "text"), [
    (0, "tpu", None, UsageError, "--comm-regress-device: device 'tpu'; accepted: auto, cuda, cpu"),
    (0, "cpu", 0, UsageError, "0 ranks; accepted: at least 1"),
    (0, "cuda", None, EnvironmentUnfitError, "no usable NVIDIA GPU"),
    (1, "cuda", 3, EnvironmentUnfitError, "3 ranks on 1 visible GPU; accepted: at most 2: two ranks may share"),
    (4, "auto", 5, EnvironmentUnfitError, "5 ranks on 4 visible GPUs; accepted: at most 4: one rank for each GPU"),
    (0, "cpu", 5, EnvironmentUnfitError, "5 ranks on 4 CPU cores; accepted: at most 4"),
])
def test_what_the_machine_has_not_is_refused(gpus: int, device: str, world_size: int | None,
                                             error: type[UsageError | EnvironmentUnfitError], text: str) -> None:
    with pytest.raises(error) as caught:
        plan_ranks(device, world_size, devices=FakeDevices(gpus), environment={})
    assert text in str(caught.value)
    assert caught.value.exit_status == 4


@pytest.mark.parametrize(("text", "seen"), [
    (None, (0, 1, 2)), ("", ()), ("1", (1,)), ("2,0", (2, 0)), ("1,9,0", (1,)), ("-1", ()), ("0,0", (0,)),
    ("GPU-2a", (2,)), ("GPU-", ()), (" 1 , GPU-0", (1, 0)),
])
def test_cuda_visible_devices_is_read_as_cuda_reads_it(text: str | None, seen: tuple[int, ...]) -> None:
    environment = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert visible_indices(FakeDevices(3), environment) == seen


def test_missing_torch_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ranks, "package_folder", lambda _: None)
    with pytest.raises(EnvironmentUnfitError, match=r"PyTorch is not installed.*pip install torch"):
        plan_ranks("cpu")
    monkeypatch.setattr(ranks, "package_folder", lambda _: tmp_path)
    with pytest.raises(EnvironmentUnfitError, match=r"this PyTorch has no torch\.distributed"):
        plan_ranks("cpu")
