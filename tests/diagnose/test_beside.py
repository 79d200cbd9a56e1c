"""What the gate's traced launch is explained with: its log, the ranks' output, health, and the run before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from regress.circumstances import TRACING, Beside, findings, known, known_before
from regress.diagnose import SEVERITIES
from regress.explain import known_of
from regress.record import Case, Commit, Environment, Launch, Run, TimingMode, Verdict
from regress.trace.analysis import Analysis
from regress.trace.nccl_log import NcclLog
from regress.trace.read import read_traces
from tests.trace.made import Export

STEP = Case("ddp_step", "float32", 2, "cuda", TimingMode.STEP)
ALLREDUCE = Case("allreduce", "float32", 2, "cuda", TimingMode.ISOLATED, 1 << 20)


def _trace(folder: Path, gemm_ns: int, case: Case = STEP) -> Path:
    """Two ranks, six steps inside the case's range."""
    made = Export()
    for rank, pid in enumerate((10, 11)):
        made.gpu(rank, rank, pid)
        made.nvtx(pid, 900_000, 80_000_000, f"case:{case.id}")
        for step in range(6):
            at = 1_000_000 + step * 10_000_000
            if case is STEP:
                made.nvtx(pid, at - 10_000, at + 9_000_000, "step")
            made.kernel(pid, at, at + gemm_ns, device=rank)
            made.all_reduce(pid, at + gemm_ns, at + gemm_ns + 100_000, device=rank)
    folder.mkdir(parents=True, exist_ok=True)
    return made.write(folder / "trace.sqlite")


def _analysis(folder: Path, gemm_ns: int, case: Case = STEP) -> Analysis:
    return read_traces([_trace(folder, gemm_ns, case)], within=f"case:{case.id}")


def _stored(**evidence: str) -> Run:
    launch = Launch(0, "traced", 1, "", 1.0, 1.0, (), evidence=dict(evidence) | {f"{TRACING}{STEP.id}": "+3 %"})
    return Run("earlier", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", Commit(), Environment({}), (launch,),
               Verdict.PASS)


def test_the_step_is_explained_against_the_kept_trace(tmp_path: Path) -> None:
    _trace(tmp_path / "kept", 1_000_000)
    now = _analysis(tmp_path / "now", 3_000_000)
    beside = Beside(before=_stored(), before_traces=tmp_path / "kept", cost_per_gpu_hour=2.0)
    before, why_not = known_before(STEP, now, beside)
    assert why_not is None
    assert before is not None
    found = findings(STEP, known(now, NcclLog(), (), beside), before)
    change = next(one for one in found if one.rule == "step_change")
    assert "+2.00 computing" in change.cause
    assert "cost_per_day" in change.evidence
    assert change.case == STEP.id


def test_the_runs_own_word_on_where_its_traces_are_is_taken(tmp_path: Path) -> None:
    now = _analysis(tmp_path / "now", 1_000_000)
    _trace(tmp_path / "kept", 1_000_000)
    named = replace(_stored(), artifacts={"trace": str(tmp_path / "kept")})
    assert known_before(STEP, now, Beside(before=named))[0] is not None


@pytest.mark.parametrize(("added", "severity"), [(0.0, "critical"), (0.002, "critical"), (0.0031, "warning")])
def test_what_the_traced_launch_may_have_alone_is_not_critical(tmp_path: Path, added: float, severity: str) -> None:
    """Rank 1 comes 6 ms late to the only collective of each step."""
    made = Export()
    for pid in (10, 11):
        made.nvtx(pid, 900_000, 400_000_000, f"case:{STEP.id}")
    for rank, pid, at in made.steps(30):
        made.kernel(pid, at, at + 1_000_000, device=rank)
        made.all_reduce(pid, at + (7_000_000 if rank else 1_000_000), at + 7_100_000, device=rank)
    now = read_traces([made.write(tmp_path / "trace.sqlite")], within=f"case:{STEP.id}")
    found = findings(STEP, known(now, NcclLog(), (), Beside()), None, added)
    straggler = next(one for one in found if one.rule == "straggler")
    assert straggler.evidence["cost_seconds_per_step"] == pytest.approx(0.006, rel=0.1)
    assert straggler.severity == severity
    assert ("this may be of that launch alone" in straggler.cause) == (severity == "warning")
    assert [one.severity for one in found] == sorted((one.severity for one in found), key=SEVERITIES.index)


def test_choices_of_the_stored_run_are_without_what_tracing_cost(tmp_path: Path) -> None:
    _trace(tmp_path / "kept", 1_000_000)
    stored = _stored(**{"AllReduce 1MiB": "RING LL, 2 channels"})
    before, _ = known_before(STEP, _analysis(tmp_path / "now", 1_000_000),
                             Beside(before=stored, before_traces=tmp_path / "kept"))
    assert before is not None
    assert before.chosen == {"AllReduce 1MiB": "RING LL, 2 channels"}


@pytest.mark.parametrize("beside", [Beside(), Beside(before=_stored()),
                                    Beside(before=_stored(), before_traces=Path("/nonexistent"))])
def test_without_a_kept_trace_nothing_is_compared(beside: Beside, tmp_path: Path) -> None:
    assert known_before(STEP, _analysis(tmp_path, 1_000_000), beside) == (None, None)


def test_a_kept_trace_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "trace.sqlite").write_bytes(b"not a trace")
    before, why_not = known_before(STEP, _analysis(tmp_path / "now", 1_000_000),
                                   Beside(before=_stored(), before_traces=tmp_path / "kept"))
    assert before is None
    assert str(why_not).startswith("not explained against run earlier: ")


def test_what_is_about_the_run_has_no_case_and_a_collective_only_warnings(tmp_path: Path) -> None:
    output = tmp_path / "rank0.stderr"
    output.write_text("[rank0]: Watchdog caught collective operation timeout\nnode:1:1 [0] NCCL INFO timeout desync\n")
    seen = known(_analysis(tmp_path / "now", 1_000_000, ALLREDUCE), NcclLog(), (str(output), "/nonexistent"),
                 Beside(health={"gpu0.processes_before": 1}))
    found = findings(ALLREDUCE, seen, None)
    assert [(one.rule, one.case) for one in found] == [("logged_problems", None), ("machine_health", None)]
    assert found[0].evidence["lines"] == 1


FATAL = (
    "[rank1]:[E1129 14:00:01.1 ProcessGroupNCCL.cpp:629] [Rank 1] Some NCCL operations have failed or timed out. Due "
    "to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
    "[rank1]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
    "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5")
NCCLS_OWN = ("node:1:1 [0] NCCL INFO timeout desync", "[rank0]: node:1:1 [0] NCCL INFO Socket Timeout",
             "node-1.x:1:1 [0] net.cc:12 (connect) NCCL INFO connection retry 3", "NCCL version 2.21.5+cuda12.4")


@pytest.mark.parametrize("line", FATAL)
def test_torchs_word_on_why_a_rank_died_is_kept(line: str, tmp_path: Path) -> None:
    """It names NCCL as NCCL's own lines do; those are judged by their level and not by what they say."""
    output = tmp_path / "rank0.stderr"
    output.write_text("\n".join([*NCCLS_OWN, line]) + "\n")
    analysis = _analysis(tmp_path / "now", 1_000_000)
    for seen in (known(analysis, NcclLog(), (str(output),), Beside()), known_of(analysis, [output])):
        assert seen.messages is not None
        assert [text in line for text in seen.messages] == [True]
        found = next(one for one in findings(STEP, seen, None) if one.rule == "logged_problems")
        assert (found.severity, found.evidence["lines"], found.evidence["grave"]) == ("critical", 1, 1)


def test_the_version_that_torch_names_in_an_error_is_no_second_nccl(tmp_path: Path) -> None:
    output = tmp_path / "rank0.stderr"
    output.write_text(FATAL[1] + "\n")
    alone = known_of(_analysis(tmp_path / "now", 1_000_000), [output])
    assert alone.nccl == NcclLog()
