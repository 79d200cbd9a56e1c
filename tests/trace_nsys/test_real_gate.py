"""The gate's own ranks under a real nsys: the launcher as it is, with our prefix in front of it."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from regress.measure.torchrun import TorchrunLauncher
from regress.record import Case, LaunchSpec, TimingMode
from regress.trace.nsys import Nsys
from regress.trace.nsys_run import collect, new_session, profile_command, shutdown_session
from regress.trace.sqlite import read_sqlite
from regress.trace.timeline import IdentitySource

CASE = Case("allreduce", "float32", 2, "cpu", TimingMode.ISOLATED, 4096)


def test_a_gloo_launch_of_the_gate_under_nsys_has_its_ranges_and_ranks(real_nsys: Nsys, nvtx_packages: Path,
                                                                       tmp_path: Path) -> None:
    output, session, started = tmp_path / "trace", new_session(), time.time()
    spec = LaunchSpec((CASE,), seed=1, backend="gloo", results_dir="", case_seconds=0.1, tracer="nsys")
    with TorchrunLauncher(2, scratch=tmp_path / "scratch") as launcher:
        result = launcher.launch(spec, index=0, role="traced", deadline_seconds=120,
                                 environment={"PYTHONPATH": str(nvtx_packages / "0.2.11")},
                                 command_prefix=profile_command(real_nsys, output, cuda=False, session=session))
    assert result.error is None
    log = "".join(path.read_text(errors="replace") for path in (tmp_path / "scratch").rglob("output.log"))
    found = collect(real_nsys, output, log=log, started=started, exit_status=0, cuda=False)
    assert found.error == ""
    assert found.sqlite is not None
    with closing(sqlite3.connect(found.sqlite)) as connection:
        rows = connection.execute("SELECT coalesce(text, value), count(*) FROM NVTX_EVENTS LEFT JOIN StringIds "
                                  "ON id = textId WHERE eventType IN (34, 59) GROUP BY 1").fetchall()
    counts = {text: count for text, count in rows if text is not None}
    assert counts[f"case:{CASE.id}"] == 2
    assert {text for text in counts if text.startswith("comm_regress.rank=")} == {
        "comm_regress.rank=0/2", "comm_regress.rank=1/2"}
    timeline = read_sqlite(found.sqlite)
    assert {(process.rank, process.world_size, process.source) for process in timeline.processes
            if process.rank is not None} == {(0, 2, IdentitySource.MARK), (1, 2, IdentitySource.MARK)}
    assert shutdown_session(real_nsys, session) == ""
