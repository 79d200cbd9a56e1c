"""What any history must do, on a folder and on a real PostgreSQL server alike."""

from __future__ import annotations

import gzip
import io
import multiprocessing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regress.errors import HistoryError, RecordError
from regress.history import exchange
from regress.history.store import History, open_history
from regress.record import Acceptance, CaseOutcome, Run, to_json, without_samples
from tests.history.factory import ALLGATHER, ALLREDUCE, ELSEWHERE, HERE, launch, measurement, moment, run


def ids(runs: object) -> list[str]:
    return [item.run_id for item in runs if isinstance(item, Run)]  # type: ignore[attr-defined]


def test_a_run_comes_back_bit_for_bit(history: History) -> None:
    kept = run(1, value=0.1 + 0.2)
    history.add(kept)
    assert to_json(history.get("run00001")) == to_json(kept)
    assert to_json(next(history.runs())) == to_json(without_samples(kept))
    assert to_json(next(history.runs(samples=True))) == to_json(kept)


def test_an_empty_history_answers(history: History) -> None:
    assert history.latest() is None
    assert list(history.runs()) == []
    assert history.series(ALLREDUCE.id, "allreduce_seconds").empty
    assert history.medians().empty
    assert history.problems() == []
    assert history.reindex() == 0
    assert history.prune(0) == 0


def test_newest_first_whatever_the_order_of_adding(history: History) -> None:
    for number in (3, 1, 4, 0, 2):
        history.add(run(number))
    assert ids(history.runs()) == ["run00004", "run00003", "run00002", "run00001", "run00000"]
    assert ids(history.runs(2)) == ["run00004", "run00003"]
    latest = history.latest()
    assert latest is not None
    assert latest.run_id == "run00004"


def test_times_of_other_zones_are_ordered_as_moments(history: History) -> None:
    history.add(run(0, run_id="early", started_at="2026-01-01T12:00:00+05:00"))
    history.add(run(0, run_id="late", started_at="2026-01-01T08:00:00Z"))
    assert ids(history.runs()) == ["late", "early"]


def test_filters(history: History) -> None:
    history.add(run(0))
    history.add(run(1, main=False))
    history.add(run(2, environment=ELSEWHERE))
    history.add(run(3))
    assert ids(history.runs(main_only=True)) == ["run00003", "run00002", "run00000"]
    assert ids(history.runs(environment=HERE.fingerprint, main_only=True)) == ["run00003", "run00000"]
    assert ids(history.runs(since=moment(1), before=moment(3))) == ["run00002", "run00001"]
    with pytest.raises(RecordError, match="is not a time"):
        list(history.runs(since="yesterday"))


def test_the_same_run_again_changes_nothing(history: History) -> None:
    assert history.add(run(1)) == history.add(run(1))
    assert ids(history.runs()) == ["run00001"]
    history.add(replace(run(1), attempt=2))
    assert [(r.run_id, r.attempt) for r in history.runs()] == [("run00001", 2), ("run00001", 1)]
    assert history.get("run00001").attempt == 2


@pytest.mark.parametrize("run_id", ["../../etc/passwd", "a/b", "", ".hidden", "x" * 81, "a\x00b", "a\n"])
def test_a_run_id_that_could_leave_the_folder_is_refused(history: History, run_id: str) -> None:
    with pytest.raises(RecordError, match="run id"):
        history.add(replace(run(1), run_id=run_id))
    assert list(history.runs()) == []


def test_get_names_what_a_prefix_could_mean(history: History) -> None:
    history.add(run(1))
    history.add(run(2))
    assert history.get("run00002").run_id == "run00002"
    with pytest.raises(HistoryError, match=r"2 runs begin with 'run': run00001, run00002"):
        history.get("run")
    with pytest.raises(HistoryError, match="no run 'other'"):
        history.get("other")
    with pytest.raises(HistoryError):
        history.get("")


def test_an_exact_id_wins_over_longer_ones(history: History) -> None:
    history.add(run(1, run_id="abc"))
    history.add(run(2, run_id="abcd"))
    assert history.get("abc").run_id == "abc"


def test_accepting_marks_a_run_and_leaves_it_as_it_is(history: History) -> None:
    history.add(run(1))
    history.add(run(2))
    accepted = history.accept("run00001", "new ring order", "ada", moment(5), [ALLREDUCE.id])
    assert accepted.accepted == Acceptance("new ring order", "ada", moment(5), (ALLREDUCE.id,))
    assert ids(history.runs(accepted_only=True)) == ["run00001"]
    history.accept("run00001", "and this one", "bob", moment(6), [ALLGATHER.id])
    assert history.get("run00001").accepted == Acceptance("and this one", "bob", moment(6),
                                                          (ALLGATHER.id, ALLREDUCE.id))
    history.accept("run00001", "all of it", "bob", moment(7))
    found = next(history.runs(accepted_only=True)).accepted
    assert found is not None
    assert found.cases is None


def test_a_run_accepted_at_birth_is_an_anchor_too(history: History) -> None:
    history.add(replace(run(1), accepted=Acceptance("first", "ada", moment(1))))
    history.add(run(2))
    assert ids(history.runs(accepted_only=True)) == ["run00001"]


def test_accepting_refuses_what_it_does_not_know(history: History) -> None:
    history.add(run(1))
    with pytest.raises(HistoryError, match=r"no case allreduce\[2MiB\]"):
        history.accept("run00001", "why", "ada", moment(5), ["allreduce[2MiB]"])
    with pytest.raises(HistoryError, match="without a reason"):
        history.accept("run00001", "  ", "ada", moment(5))
    assert list(history.runs(accepted_only=True)) == []


def test_series_folds_over_launches(history: History) -> None:
    history.add(run(1, value=0.002))
    history.add(run(0, value=0.001))
    history.add(run(2, environment=ELSEWHERE))
    frame = history.series(ALLREDUCE.id, "allreduce_seconds", environment=HERE.fingerprint)
    assert list(frame["run_id"]) == ["run00000", "run00001"]
    np.testing.assert_allclose(frame["value"], [0.0011, 0.0022])
    np.testing.assert_allclose(frame["low"], [0.001, 0.002])
    np.testing.assert_allclose(frame["high"], [0.0012, 0.0024])
    np.testing.assert_allclose(frame["p25"], [0.000825, 0.00165])
    assert list(frame["launches"]) == [3, 3]
    assert list(frame["verdict"]) == ["pass", "pass"]
    assert str(frame["started_at"].iloc[1]) == "2026-01-01 01:00:00+00:00"
    assert (frame.attrs["unit"], frame.attrs["better"]) == ("seconds", "lower")
    assert history.series(ALLREDUCE.id, "no_such_metric").empty


def test_base_launches_never_count_and_traced_ones_only_where_nothing_else_measured(history: History) -> None:
    traced = replace(launch(1, 9.0, "traced"), outcomes=(
        CaseOutcome(ALLREDUCE, (measurement(9.0), measurement(0.5, "skew_seconds"))),))
    history.add(replace(run(1), launches=(launch(0, 1.0), traced, launch(2, 70.0, "base"))))
    assert list(history.series(ALLREDUCE.id, "allreduce_seconds")["value"]) == [1.0]
    assert list(history.series(ALLREDUCE.id, "skew_seconds")["value"]) == [0.5]


def test_medians_of_the_last_runs(history: History) -> None:
    for number in range(4):
        history.add(run(number, value=0.001 * (number + 1)))
    frame = history.medians(2)
    assert list(frame.index) == [("run00002", 1), ("run00003", 1)]
    np.testing.assert_allclose(frame[ALLREDUCE.id, "allreduce_seconds"], [0.0033, 0.0044])
    np.testing.assert_allclose(frame[ALLGATHER.id, "allgather_seconds"], [0.0066, 0.0088])


def test_pruning_drops_samples_but_no_statistic_and_no_accepted_run(history: History) -> None:
    for number in range(4):
        history.add(run(number))
    history.accept("run00001", "anchor", "ada", moment(9))
    before = {r.run_id: r for r in history.runs(samples=True)}
    assert history.prune(1) > 0
    after = {r.run_id: r for r in history.runs(samples=True)}
    assert after["run00003"] == before["run00003"]
    assert after["run00001"] == before["run00001"]
    for run_id in ("run00000", "run00002"):
        assert after[run_id] == without_samples(before[run_id])
        assert after[run_id].launches[0].outcomes[0].measurements[0].statistics["p50"] == 0.001
    assert history.prune(1) == 0
    assert history.problems() == []
    np.testing.assert_allclose(history.series(ALLREDUCE.id, "allreduce_seconds")["value"], [0.0011] * 4)
    with pytest.raises(HistoryError):
        history.prune(-1)


@pytest.mark.parametrize("name", ["runs.ndjson", "runs.ndjson.gz"])
def test_runs_move_to_another_history_once(history: History, tmp_path: Path, name: str) -> None:
    for number in range(3):
        history.add(run(number))
    history.accept("run00001", "anchor", "ada", moment(9), [ALLREDUCE.id])
    target = str(tmp_path / name)
    assert exchange.export(history, target) == 3
    with open_history(str(tmp_path / "other")) as other:
        assert exchange.import_(other, target) == exchange.Imported(3, 0, ())
        assert exchange.import_(other, target) == exchange.Imported(0, 3, ())
        assert [to_json(r) for r in other.runs(samples=True)] == [to_json(r) for r in history.runs(samples=True)]
        assert ids(other.runs(accepted_only=True)) == ["run00001"]
    assert exchange.import_(history, target) == exchange.Imported(0, 3, ())


def test_runs_move_through_standard_streams(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history.add(run(1))
    out = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr("sys.stdout", out)
    assert exchange.export(history, "-") == 1
    out.seek(0)
    monkeypatch.setattr("sys.stdin", out)
    with open_history(str(tmp_path / "other")) as other:
        assert exchange.import_(other, "-").added == 1
        assert other.get("run00001") == run(1)


def test_an_acceptance_travels_to_a_history_that_has_the_run(history: History, tmp_path: Path) -> None:
    history.add(run(1))
    accepted = replace(run(1), accepted=Acceptance("anchor", "ada", moment(9)))
    source = tmp_path / "in.ndjson"
    source.write_bytes(to_json(accepted) + b"\n")
    assert exchange.import_(history, str(source)).already == 1
    assert ids(history.runs(accepted_only=True)) == ["run00001"]


def test_an_import_names_bad_lines_and_takes_the_good_ones(history: History, tmp_path: Path) -> None:
    source = tmp_path / "in.ndjson"
    hostile = msgspec.json.decode(to_json(run(2)))
    hostile["run_id"] = "../../escape"
    lines = [to_json(run(1)), b'{"not": "a run"}', b"{cut", b"", msgspec.json.encode(hostile), b"\xff\xfe",
             to_json(run(3))]
    source.write_bytes(b"\n".join(lines))
    result = exchange.import_(history, str(source))
    assert (result.added, result.already) == (2, 0)
    assert [p.location for p in result.problems] == [f"{source}:{n}" for n in (2, 3, 5, 6)]
    assert "run id" in result.problems[2].reason
    assert not (tmp_path.parent / "escape").exists()


def test_an_import_that_is_cut_says_so(history: History, tmp_path: Path) -> None:
    source = tmp_path / "in.ndjson.gz"
    source.write_bytes(gzip.compress(to_json(run(1)) + b"\n" + bytes(range(256)) * 500)[:-20])
    with pytest.raises(HistoryError, match="import stopped"):
        exchange.import_(history, str(source))
    with pytest.raises(HistoryError):
        exchange.import_(history, str(tmp_path / "absent.ndjson"))


def test_an_import_that_is_damaged_names_the_file_and_what_was_added(history: History, tmp_path: Path) -> None:
    source = tmp_path / "in.ndjson.gz"
    whole = gzip.compress(to_json(run(1)) + b"\n") + gzip.compress(to_json(run(2)) + b"\n")
    first = len(gzip.compress(to_json(run(1)) + b"\n"))
    for place in range(first + 10, len(whole), 7):  # behind the second header: in its deflate stream or its checksum
        source.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1:])
        with pytest.raises(HistoryError, match=r"in\.ndjson\.gz: the import stopped: .*; [01] runs were added before"):
            exchange.import_(history, str(source))


def test_runs_move_through_any_fsspec_url(history: History, tmp_path: Path) -> None:
    history.add(run(1))
    assert exchange.export(history, "memory://shared/runs.ndjson.gz") == 1
    with open_history(str(tmp_path / "other")) as other:
        assert exchange.import_(other, "memory://shared/runs.ndjson.gz").added == 1
    with pytest.raises(HistoryError, match="fsspec cannot open it"):
        exchange.export(history, "nosuch://bucket/runs.ndjson")


def test_reindexing_finds_the_same_again(history: History) -> None:
    for number in range(3):
        history.add(run(number, value=0.001 * (number + 1)))
    history.accept("run00001", "anchor", "ada", moment(9))
    before = [to_json(r) for r in history.runs()]
    frame = history.medians()
    assert history.reindex() == 3
    assert [to_json(r) for r in history.runs()] == before
    assert history.medians().equals(frame)


def write_many(url: str, worker: int, count: int) -> None:
    with open_history(url) as history:
        for number in range(count):
            history.add(run(worker * count + number))
            history.add(run(number, run_id=f"shared{number:03d}"))


def test_eight_writers_lose_nothing_and_duplicate_nothing(url: str) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write_many, args=(url, worker, 50)) for worker in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 8
    with open_history(url) as history:
        found = ids(history.runs())
        assert len(found) == 450
        assert set(found) == {f"run{n:05d}" for n in range(400)} | {f"shared{n:03d}" for n in range(50)}
        assert history.medians(1000).shape == (450, 2)
        assert history.problems() == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=5))
def test_every_value_is_found_again_exactly(history: History, values: list[float]) -> None:
    name = f"h{abs(hash(tuple(values))):x}"
    launches = tuple(launch(i, value) for i, value in enumerate(values))
    history.add(replace(run(1, run_id=name), launches=launches))
    assert [m.value for m in history.get(name).measured(ALLREDUCE.id, "allreduce_seconds")] == values
    frame = history.series(ALLREDUCE.id, "allreduce_seconds")
    assert float(frame[frame["run_id"] == name]["value"].iloc[0]) == float(np.median(values))
