"""Every traced launch of a run is kept whole, so that the next run and the report find each case in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from regress.catalog import open_shelves
from regress.circumstances import Beside
from regress.config import load_config
from regress.measure.launch import LaunchResult
from regress.measure.ranks import RankPlan
from regress.measuring import Campaign
from regress.record import Case, Commit, Environment, LaunchSpec, RankResult, Run, TimingMode, Verdict
from regress.step_picture import latest_picture
from regress.trace.kept import KEPT_RUNS, forget_old, keep_trace, kept_traces
from regress.tracing import Traced, Tracer, trace_cases
from tests.session.profiles import write_profiles

SMALL, WIDE = (Case("ddp_step", "float32", ranks, "cuda", TimingMode.STEP) for ranks in (2, 4))
DOUBTFUL = replace(SMALL, dtype="bfloat16")


class Silent:
    def message(self, text: str) -> None: ...
    def case_started(self, text: str) -> None: ...
    def progress(self, text: str) -> None: ...


class Profiled:
    """Ranks that leave a profile each."""

    def launch(self, spec: LaunchSpec, *, index: int, role: str, **_: Any) -> LaunchResult:
        ranks = spec.cases[0].world_size
        write_profiles(spec)
        results = tuple(tuple(RankResult(rank, ranks, case, {"step": (400e-6,) * 3}) for rank in range(ranks))
                        for case in spec.cases)
        return LaunchResult(index, role, spec.seed, "", spec.cases, results, 1.0, 1.0, folder=spec.results_dir)


@dataclass(slots=True)
class Runs:
    """Runs that are traced one after the other, each beside the run before."""

    traces: Path
    stack: ExitStack
    campaign: Campaign = field(init=False)
    before: Run | None = None

    def begin(self) -> None:
        shelves = open_shelves()
        self.campaign = self.stack.enter_context(Campaign(
            load_config(None, shelves.catalog()), RankPlan(4, "cuda", "nccl", False, 1), self.traces,
            {"ddp_step": shelves.metrics_of("ddp_step")}, Silent(), factory=lambda _: Profiled()))

    def trace(self, run: str, cases: Sequence[Case]) -> Traced:
        folder = self.traces / self.before.run_id if self.before is not None else None
        return trace_cases(Tracer("kineto"), self.campaign, cases, keep=self.traces / run,
                           beside=Beside(before=self.before, before_traces=folder))

    def end(self, run: str, traced: Traced) -> None:
        self.before = Run(run, "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", Commit(), Environment({}),
                          tuple(self.campaign.launches), Verdict.PASS, artifacts=dict(traced.artifacts))


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with ExitStack() as stack:
        made = Runs(tmp_path / "traces", stack)
        made.begin()
        yield made


def unexplained(runs: Runs) -> list[str]:
    """What the launches of this run say of cases that were not compared."""
    return [text for launch in runs.campaign.launches for outcome in launch.outcomes for text in outcome.warnings
            if "not explained" in text]


@pytest.mark.parametrize(("first", "again"), [((SMALL, DOUBTFUL), (DOUBTFUL,)), ((SMALL, WIDE), (SMALL,))],
                         ids=["what is in doubt again", "two world sizes"])
def test_the_next_run_is_explained_against_every_case(runs: Runs, first: tuple[Case, ...],
                                                      again: tuple[Case, ...]) -> None:
    runs.trace("one", first)
    runs.end("one", runs.trace("one", again))
    runs.begin()
    runs.trace("two", first)
    assert [outcome.case for launch in runs.campaign.launches for outcome in launch.outcomes] == list(first)
    assert unexplained(runs) == []


def test_the_artifact_holds_all_launches_newest_first(runs: Runs) -> None:
    runs.trace("one", (SMALL, WIDE))
    found = runs.trace("one", (SMALL,))
    assert found.artifacts == {"trace": str(runs.traces / "one")}
    assert [(files[0].parent.name, len(files)) for files in kept_traces(runs.traces / "one")] == [
        ("launch002", 2), ("launch001", 4), ("launch000", 2)]


def test_the_report_shows_a_step_of_the_newest_launch_that_has_one(runs: Runs) -> None:
    runs.end("one", runs.trace("one", (SMALL, WIDE)))
    assert runs.before is not None
    picture = latest_picture([runs.before])
    assert picture is not None
    assert [strip.rank for strip in picture.strips] == [0, 1, 2, 3]
    for file in (runs.traces / "one" / "launch001").iterdir():
        file.write_bytes(b"cut")
    picture = latest_picture([runs.before])
    assert picture is not None
    assert [strip.rank for strip in picture.strips] == [0, 1]


def test_a_run_that_an_earlier_version_kept_is_still_read(runs: Runs) -> None:
    runs.end("one", runs.trace("one", (SMALL,)))
    for file in (runs.traces / "one" / "launch000").iterdir():
        shutil.move(file, runs.traces / "one" / file.name)
    (runs.traces / "one" / "launch000").rmdir()
    runs.begin()
    runs.trace("two", (SMALL,))
    assert unexplained(runs) == []
    assert runs.before is not None
    assert latest_picture([runs.before]) is not None


def test_a_damaged_launch_is_told_before_one_without_the_case(runs: Runs) -> None:
    runs.trace("one", (SMALL,))
    runs.end("one", runs.trace("one", (DOUBTFUL,)))
    for file in (runs.traces / "one" / "launch000").iterdir():
        file.write_bytes(b"cut")
    runs.begin()
    runs.trace("two", (SMALL,))
    (text,) = unexplained(runs)
    assert "launch000" in text


def test_half_a_trace_is_not_kept_and_takes_no_other_launch_with_it(tmp_path: Path) -> None:
    file = tmp_path / "trace.sqlite"
    file.write_bytes(b"whole")
    keep_trace([file], tmp_path / "kept" / "one", 3)
    with pytest.raises(OSError, match="gone"):
        keep_trace([file, tmp_path / "gone"], tmp_path / "kept" / "one", 4)
    with pytest.raises(OSError, match="gone"):
        keep_trace([file, tmp_path / "gone"], tmp_path / "kept" / "two", 0)
    assert [path.relative_to(tmp_path / "kept").as_posix() for path in (tmp_path / "kept").rglob("*.sqlite")] == [
        "one/launch003/trace.sqlite"]
    assert not (tmp_path / "kept" / "two").exists()


def test_the_latest_runs_are_kept_with_all_their_launches(tmp_path: Path) -> None:
    file = tmp_path / "trace.sqlite"
    file.write_bytes(b"whole")
    for number in range(KEPT_RUNS + 2):
        for launch in (3, 1000, 999):
            keep_trace([file], tmp_path / "kept" / f"run{number}", launch)
        os.utime(tmp_path / "kept" / f"run{number}", (number, number))
    forget_old(tmp_path / "kept")
    left = sorted((tmp_path / "kept").iterdir())
    assert [path.name for path in left] == [f"run{number}" for number in range(2, KEPT_RUNS + 2)]
    assert [files[0].parent.name for files in kept_traces(left[0])] == ["launch1000", "launch999", "launch003"]


def test_nothing_kept_is_nothing_to_read(tmp_path: Path) -> None:
    assert kept_traces(tmp_path / "absent") == ()
    (tmp_path / "launch000").mkdir()
    assert kept_traces(tmp_path) == ()
