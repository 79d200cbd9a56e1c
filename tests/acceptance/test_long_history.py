"""A gate in a history that others fill too: their runs do not hide its own."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace

import pytest

from regress.errors import EXIT_REGRESSION
from regress.gate_work import RUNS_READ
from regress.history.store import open_history
from regress.record import Commit, Environment, Run
from tests.acceptance.conftest import Theatre
from tests.acceptance.recordings import ALLREDUCE


def of_another_machine(run: Run) -> Run:
    return replace(run, environment=Environment({**run.environment.must_match, "cpu_model": "Other CPU"}))


def of_a_pull_request(run: Run) -> Run:
    return replace(run, commit=Commit(sha="a" * 40, branch="topic"))


@pytest.mark.parametrize("foreign", [of_another_machine, of_a_pull_request])
def test_a_regression_is_found_behind_many_foreign_runs(theatre: Theatre, foreign: Callable[[Run], Run]) -> None:
    theatre.baseline()
    newest = theatre.runs()[-1]
    with open_history(str(theatre.folder / ".comm-regress")) as history:
        for number in range(RUNS_READ + 5):
            moment = datetime.datetime.fromisoformat(newest.started_at) + datetime.timedelta(milliseconds=number + 1)
            history.add(replace(foreign(newest), run_id=f"foreign{number}", started_at=moment.isoformat()))
    theatre.play({ALLREDUCE: 1.6})
    done = theatre.gate()
    assert done.ret == EXIT_REGRESSION
    assert "no earlier run" not in done.stdout.str()
    assert "NO BASELINE" not in done.stdout.str()
