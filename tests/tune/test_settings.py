"""What can be tried: how it is written, and what is refused with the reason."""

from __future__ import annotations

import pytest

from regress.catalog import open_shelves
from regress.errors import UsageError
from regress.record import Case, TimingMode
from regress.tuning.settings import Setting, default_settings, parse_setting, refusal


def _case(workload: str, device: str = "cuda", nodes: int = 1) -> Case:
    step = workload == "ddp_step"
    return Case(workload, "float32", 2 * nodes, device, TimingMode.STEP if step else TimingMode.ISOLATED,
                None if step else 1 << 20, 2)


def _setting(text: str) -> Setting:
    options: type = open_shelves().workloads["ddp_step"].options
    return parse_setting(text, options)


def test_variables_and_options_are_told_apart() -> None:
    setting = _setting("NCCL_ALGO=Ring bucket_cap_mb=50 static_graph=true comm_hook=bf16")
    assert setting.variables == {"NCCL_ALGO": "Ring"}
    assert setting.options == {"bucket_cap_mb": 50.0, "static_graph": True, "comm_hook": "bf16"}
    assert setting.changes_results
    assert setting.applied(_case("ddp_step")).options == (
        ("bucket_cap_mb", 50.0), ("comm_hook", "bf16"), ("static_graph", True))


@pytest.mark.parametrize(("text", "accepted"), [
    ("bucket_cap=5", "did you mean 'bucket_cap_mb'"), ("PATH=/bin", "NCCL_"), ("NCCL_ALGO", "NAME=VALUE"),
    ("", "NAME=VALUE"), ("static_graph=perhaps", "every step uses the same"), ("comm_hook=zip", "compressed")])
def test_what_is_not_understood_is_an_error(text: str, accepted: str) -> None:
    with pytest.raises(UsageError, match=accepted):
        _setting(text)


@pytest.mark.parametrize(("text", "workload", "reason"), [
    ("NCCL_ALGO=Tree", "allgather", "makes AllGather fail"),
    ("NCCL_ALGO=Tree", "allreduce", "makes Broadcast fail"),
    ("NCCL_ALGO=Tree", "ddp_step", "NCCL_ALGO=allreduce:tree"),
    ("NCCL_ALGO=allreduce:tree", "allreduce", None),
    ("NCCL_ALGO=allreduce:tree", "allgather", None),
    ("NCCL_ALGO=^tree", "allgather", None),
    ("NCCL_ALGO=ring,tree", "allgather", None),
    ("NCCL_ALGO=allreduce:nvls NCCL_PROTO=LL", "allreduce", "protocol Simple only"),
    ("NCCL_ALGO=allreduce:nvls NCCL_PROTO=Simple", "allreduce", None),
    ("NCCL_ALGO=allreduce:nvls NCCL_NVLS_ENABLE=0", "allreduce", "switched off"),
    ("NCCL_ALGO=allreduce:nvlstree", "allreduce", "more than one node"),
    ("NCCL_ALGO=allgather:pat", "allgather", "more than one node"),
    ("bucket_cap_mb=50", "allreduce", "option of training steps")])
def test_what_nccl_refuses_is_refused_before_a_launch(text: str, workload: str, reason: str | None) -> None:
    said = refusal(_setting(text), _case(workload))
    assert said is None if reason is None else said is not None and reason in said


def test_the_cpu_takes_no_nccl_variable_and_one_bucket_with_powersgd() -> None:
    assert "gloo" in str(refusal(_setting("NCCL_PROTO=LL"), _case("allreduce", "cpu")))
    assert "one bucket" in str(refusal(_setting("comm_hook=powersgd bucket_cap_mb=5"), _case("ddp_step", "cpu")))
    assert refusal(_setting("comm_hook=powersgd"), _case("ddp_step", "cpu")) is None


def test_several_nodes_have_nvlstree() -> None:
    assert refusal(_setting("NCCL_ALGO=allreduce:nvlstree"), _case("allreduce", nodes=2)) is None


def test_an_unknown_algorithm_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="nvlstree"):
        refusal(_setting("NCCL_ALGO=Trees"), _case("allreduce"))


def test_no_default_is_refused_where_it_is_a_default() -> None:
    options: type = open_shelves().workloads["ddp_step"].options
    for device in ("cuda", "cpu"):
        cases = (_case("allreduce", device), _case("ddp_step", device))
        for setting in default_settings(cases, options):
            assert any(refusal(setting, case) is None for case in cases), setting.name
    assert default_settings((_case("allreduce", "cpu"),), options) == ()
