"""Reading files in worker processes: the same figures and the same errors as without them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from regress.cli import main
from regress.errors import RegressError, TraceInputError, TraceUnfitError
from regress.trace.nsys import probe
from regress.trace.nsys_export import export_sqlite
from regress.trace.read import read_traces
from tests.trace.made import Export, kineto, kineto_rank, two_ranks
from tests.trace_nsys.fake import Fake

ERRORS = [RegressError, *RegressError.__subclasses__()]


def _rank_file(path: Path, rank: int) -> Path:
    return kineto(path, kineto_rank(rank), distributedInfo={"rank": rank, "world_size": 2})


def _reports(folder: Path) -> list[Path]:
    """Two reports of one rank each, with what the stand-in for nsys exports them to beside them."""
    reports = []
    for rank, pid in enumerate((10, 11)):
        made = Export()
        made.row("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", 1_790_857_026_000_000_000)
        made.nvtx(pid, 10, None, f"comm_regress.rank={rank}/2", kind=34)
        made.all_reduce(pid, 50_000 + rank * 100, 90_000)
        made.write(folder / f"r{rank}.data")
        reports.append(folder / f"r{rank}.nsys-rep")
        reports[-1].write_bytes(b"report")
    return reports


def _installed(folder: Path) -> Path:
    """An nsys whose export of X.nsys-rep is a copy of X.data."""
    return Fake(export='for report in "$@"; do :; done; cp "${report%.nsys-rep}.data" "$output"').install(folder)


def test_reports_are_exported_in_workers(tmp_path: Path) -> None:
    nsys = probe(_installed(tmp_path / "nsys"))
    assert nsys is not None
    reports = _reports(tmp_path)
    alone, together = (read_traces(reports, export=partial(export_sqlite, nsys), workers=n) for n in (1, 2))
    assert [lane.rank for lane in together.lanes] == [0, 1]
    assert alone.matching.column("skew_ns").tolist() == together.matching.column("skew_ns").tolist() == [100]


def test_the_command_explains_big_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    """Reports beyond 64 MiB in all are read by workers, through the export that the command itself makes."""
    monkeypatch.setenv("REGRESS_NSYS", str(_installed(tmp_path / "nsys")))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    reports = _reports(tmp_path)
    for report in reports:
        os.truncate(report, 33 << 20)
    assert main(["explain", *map(str, reports), "--json"]) == 0, capsys.readouterr().err
    assert '"ranks": 2' in capsys.readouterr().out


def _truncated(folder: Path) -> list[Path]:
    path = two_ranks().write(folder / "cut.sqlite")
    os.truncate(path, path.stat().st_size // 2)
    return [path, _rank_file(folder / "0.json", 0)]


def _nothing_in_it(folder: Path) -> list[Path]:
    return [_rank_file(folder / "0.json", 0), kineto(folder / "none.json", [])]


def _refused_report(folder: Path) -> list[Path]:
    report = folder / "run.nsys-rep"
    report.write_bytes(b"report")
    return [report, _rank_file(folder / "0.json", 0)]


@pytest.mark.parametrize(("make", "kind"), [
    (_truncated, TraceInputError), (_nothing_in_it, TraceUnfitError), (_refused_report, TraceInputError)])
def test_an_error_of_a_worker_is_the_error_without_workers(
        make: Callable[[Path], list[Path]], kind: type[RegressError], tmp_path: Path) -> None:
    paths = make(tmp_path)
    said = []
    for workers in (1, 2):
        with pytest.raises(kind) as caught:
            read_traces(paths, workers=workers)
        said.append((type(caught.value), caught.value.text, str(caught.value), caught.value.exit_status))
    assert said[0] == said[1]


def _killed(report: Path, database: Path) -> None:
    """An export under which the process dies, as for want of memory."""
    os._exit(9)


def test_a_worker_that_is_killed_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceUnfitError, match=r"r0\.nsys-rep.*was killed, most likely for want of memory"):
        read_traces(_reports(tmp_path), export=_killed, workers=2)


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_survives_the_way_to_another_process(kind: type[RegressError]) -> None:
    error = kind("seen", where="where", accepted="accepted", next_step="next")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - what it wrote itself
    assert (type(again), again.text, str(again)) == (kind, error.text, str(error))
    assert (again.seen, again.where, again.accepted, again.next_step) == ("seen", "where", "accepted", "next")
