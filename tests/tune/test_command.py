"""`regress tune` with real gloo ranks, and what it refuses at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regress.cli import main

THRESHOLDS = """\
schema: 1
devices: {cpu: {case_duration: 50ms}}
cases:
  - {workload: ddp_step, devices: [cpu]}
  - {workload: allgather, devices: [cpu], sizes: [1MiB]}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "thresholds.yaml").write_text(THRESHOLDS)
    monkeypatch.chdir(tmp_path)


def test_an_option_is_tried_on_real_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["tune", "--device", "cpu", "--case", "ddp_step*", "--rounds", "3", "--try", "bucket_cap_mb=0.1",
                   "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (status, found["rounds"]) == (0, 3)
    [tried] = found["tried"]
    assert (tried["setting"], tried["rounds"]) == ("bucket_cap_mb=0.1", 3)
    assert tried["interval"][0] < tried["change"] < tried["interval"][1]
    assert found["as_it_is"].keys() == {"ddp_step[float32-2xcpu]"}


@pytest.mark.parametrize(("arguments", "said"), [
    (["--budget=-5min"], "--budget: a budget of -5min; accepted: more than 0 s"),
    (["--effect=-10%"], "--effect: '-10%' is below 0"),
    (["--try", "NCCL_ALGO=Tree"], "gloo, which reads no NCCL variable"), (["--rounds", "2"], "fewer tell nothing"),
    (["--case", "nothing*"], "no case matches"), (["--case", "allgather*"], "nothing is worth a try"),
    (["--try", "bucket_cap=1"], "did you mean")])
def test_what_cannot_be_tried_is_a_usage_error(arguments: list[str], said: str,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--device", "cpu", *arguments]) == 4
    assert said in capsys.readouterr().err
