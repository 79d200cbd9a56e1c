"""A clock that jumps: durations, the order of the history, the baseline, and what waits to be published."""

from __future__ import annotations

import datetime
import itertools
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import regress.gate_work
from regress.errors import EXIT_REGRESSION
from regress.history.store import open_history
from regress.judge.baseline import select
from regress.measure.torchrun import TorchrunLauncher
from regress.publish.spool import Spool
from regress.publish.webhook import WEBHOOK, WebhookOptions
from regress.record import Case, LaunchSpec, TimingMode
from tests import servers
from tests.acceptance.conftest import Theatre
from tests.acceptance.recordings import ALLREDUCE
from tests.history.factory import HERE, run
from tests.measure import programs
from tests.publish.factory import Fault, faulty_server, result


@pytest.mark.parametrize(("moment", "said"), [
    ("2001-01-01T00:00:00.000+00:00", ""), ("2099-01-01T00:00:00.000+00:00", "days in the future: a clock is wrong")])
def test_a_run_measured_while_the_clock_was_wrong(theatre: Theatre, monkeypatch: pytest.MonkeyPatch, moment: str,
                                                  said: str) -> None:
    """It is stored and compared; the next run, with the clock right again, has it in its window and still judges."""
    theatre.baseline()
    with monkeypatch.context() as patch:
        wrong = SimpleNamespace(now=lambda _zone: datetime.datetime.fromisoformat(moment))
        patch.setattr(regress.gate_work, "datetime", SimpleNamespace(datetime=wrong, timezone=datetime.timezone))
        assert theatre.gate().ret == 0
    assert moment[:10] in [stored.started_at[:10] for stored in theatre.runs()]
    theatre.play()
    done = theatre.gate("--comm-regress-json=result.json")
    assert done.ret == 0
    assert theatre.result()["verdict"] == "pass"
    assert any(said in text for text in theatre.result()["warnings"]) or not said
    theatre.play({ALLREDUCE: 1.6})
    assert theatre.gate().ret == EXIT_REGRESSION


def commits(folder: Path, count: int) -> list[str]:
    """That many commits, oldest first."""
    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words],
                              check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    shas = []
    for number in range(count):
        git("commit", "--quiet", "--allow-empty", "-m", f"change {number}")
        shas.append(git("rev-parse", "HEAD"))
    return shas


def test_order_and_baseline_follow_commits_when_the_clock_jumps_back(tmp_path: Path) -> None:
    """The third of four commits was measured with a clock that was a year behind."""
    shas = commits(tmp_path, 4)
    with open_history(str(tmp_path / "history"), repository=tmp_path) as history:
        for number, sha in enumerate(shas):
            made = run(number, sha=sha)
            history.add(replace(made, started_at="2025-01-01T00:00:00+00:00") if number == 2 else made)
        assert [found.commit.sha for found in history.runs()] == shas[::-1]
        earlier = list(history.runs())[::-1]
    chosen = select(replace(earlier[-1].commit, sha="f" * 40), HERE, "2026-01-01T05:00:00+00:00", earlier)
    assert [found.commit.sha for found in chosen.runs] == shas
    assert "the clock of run run00002 is behind that of the run before it; the order of commits is used" in chosen.notes


def test_durations_do_not_come_from_the_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("allreduce", "float32", 2, "cpu", TimingMode.ISOLATED, 4096)
    spec = LaunchSpec((case,), seed=7, backend="gloo", results_dir="", case_seconds=0.1)
    program = programs.write_program(tmp_path, programs.WELL)
    with TorchrunLauncher(2, program=program, scratch=tmp_path / "scratch") as launcher:
        now, began = time.time(), time.monotonic()
        jumps = itertools.count(1)
        monkeypatch.setattr(time, "time", lambda: now - 3600.0 * next(jumps))
        launch = launcher.launch(spec, index=0, role="head", deadline_seconds=60, case_deadline_seconds=60)
        took = time.monotonic() - began
    assert launch.error is None
    assert 0.0 < launch.rank_wall_seconds <= launch.wall_seconds <= took


def test_a_payload_kept_while_the_clock_was_ahead_is_sent_all_the_same(tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    now, years = time.time(), 10 * 365 * 86400.0
    spool, port = Spool(tmp_path), servers.free_port()
    options = WebhookOptions(f"http://127.0.0.1:{port}", all_branches=True)
    (first,) = spool.publish([(WEBHOOK, options)], result(), now + years)
    assert first.kept == 1
    back = Fault()
    with faulty_server(back) as url:
        moved = replace(options, url=url)
        (path,) = tmp_path.glob("*.json")
        path.write_text(path.read_text().replace(WEBHOOK.destination(options), WEBHOOK.destination(moved)))
        (second,) = spool.publish([(WEBHOOK, moved)], result(), now)
    assert (len(second.sent), second.kept, len(back.requests)) == (2, 0, 2)
