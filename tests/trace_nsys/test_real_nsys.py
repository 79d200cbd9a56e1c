"""What two real releases do, on a machine without a GPU: NVTX ranges of several processes, and every way to fail."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from regress.errors import TraceInputError
from regress.trace.nsys import Nsys, nvtx_package_warning, probe
from regress.trace.nsys_export import export_sqlite
from regress.trace.nsys_run import Collected, run

from .conftest import named_by

RECORDED, LOST = "0.2.11", "0.2.17"


TWO_PROCESSES = """
import subprocess, sys
if len(sys.argv) == 1:
    ranks = [subprocess.Popen([sys.executable, __file__, str(rank)]) for rank in range(2)]
    sys.exit(max(rank.wait() for rank in ranks))
import nvtx
for step in range(3):
    with nvtx.annotate("step"):
        with nvtx.annotate("allreduce/4096", domain="comm"):
            pass
"""


def environment(package: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(package), "HF_TOKEN": "hunter2hunter2"}


def launch(nsys: Nsys, folder: Path, program: str, package: Path) -> Collected:
    script = folder / "program.py"
    script.write_text(program)
    return run(nsys, [sys.executable, str(script)], folder / "t", cuda=False,
               environ=environment(package), timeout=120.0)


def link_or_copy(source: str, target: str) -> None:
    """A folder is 300 MB: links where source and target share a file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def ranges(sqlite: Path) -> Counter[tuple[str, int]]:
    """Completed ranges by text and process."""
    with closing(sqlite3.connect(sqlite)) as connection:
        return Counter(connection.execute(
            "SELECT coalesce(text, value), globalTid >> 24 & 16777215 FROM NVTX_EVENTS "
            'LEFT JOIN StringIds ON id = textId WHERE eventType = 59 AND "end" > start').fetchall())


def test_ranges_of_two_processes_are_recorded_and_exported(real_nsys: Nsys, nvtx_packages: Path,
                                                           tmp_path: Path) -> None:
    found = launch(real_nsys, tmp_path, TWO_PROCESSES, nvtx_packages / RECORDED)
    assert found.error == ""
    assert found.sqlite is not None
    counted = ranges(found.sqlite)
    processes = {process for _, process in counted}
    assert len(processes) == 2
    assert counted == Counter({(text, process): 3 for text in ("step", "allreduce/4096") for process in processes})
    assert nvtx_package_warning(real_nsys.version, RECORDED) is None


def test_a_newer_nvtx_package_loses_its_ranges_and_we_say_so(real_nsys: Nsys, nvtx_packages: Path,
                                                             tmp_path: Path) -> None:
    found = launch(real_nsys, tmp_path, TWO_PROCESSES, nvtx_packages / LOST)
    assert found.error == ""
    assert found.sqlite is not None
    assert ranges(found.sqlite) == Counter()
    assert "loses every range" in (nvtx_package_warning(real_nsys.version, LOST) or "")


def test_neither_report_nor_export_holds_a_secret(real_nsys: Nsys, nvtx_packages: Path, tmp_path: Path) -> None:
    found = launch(real_nsys, tmp_path, TWO_PROCESSES, nvtx_packages / RECORDED)
    assert found.report is not None
    assert found.sqlite is not None
    for path in (found.report, found.sqlite):
        assert b"hunter2hunter2" not in path.read_bytes()
    assert b"program.py" not in found.sqlite.read_bytes()


def test_a_capture_range_that_no_one_opens_is_named(real_nsys: Nsys, tmp_path: Path) -> None:
    found = run(real_nsys, ["true"], tmp_path / "t", timeout=60.0)
    assert found.exit_status == 0
    assert "no process opened the capture range" in found.error


def test_gpu_counters_without_a_gpu_cost_nothing_but_themselves(real_nsys: Nsys, tmp_path: Path) -> None:
    found = run(real_nsys, ["true"], tmp_path / "t", cuda=False, gpu_metrics=True, timeout=60.0)
    assert found.error == ""
    # 2022.4 takes the flag in silence where there is no GPU; 2023.4 refuses it.
    refused = [text for text in found.warnings if text.startswith("GPU counters left out")]
    assert bool(refused) == (real_nsys.number >= (2023,))


def test_a_program_that_hangs_is_ended_with_a_report(real_nsys: Nsys, tmp_path: Path) -> None:
    found = run(real_nsys, ["sleep", "600"], tmp_path / "t", cuda=False, timeout=2.0)
    assert found.error == ""
    assert "had not ended after 2 s" in found.warnings[0]


def test_a_program_that_fails_keeps_its_status(real_nsys: Nsys, tmp_path: Path) -> None:
    found = run(real_nsys, ["sh", "-c", "exit 7"], tmp_path / "t", cuda=False, timeout=60.0)
    assert (found.exit_status, found.error) == (7, "")


def test_an_importer_that_cannot_be_loaded_is_named_with_its_library(real_nsys: Nsys, tmp_path: Path) -> None:
    broken = tmp_path / "nsys"
    for part in ("target-linux-x64", "host-linux-x64"):
        shutil.copytree(real_nsys.path.parents[1] / part, broken / part, symlinks=True, copy_function=link_or_copy)
    (broken / "host-linux-x64" / "libssh.so").unlink()
    nsys = probe(broken / "target-linux-x64" / "nsys")
    assert nsys is not None
    assert nsys.importer.missing == ("libssh.so",)
    found = run(nsys, ["true"], tmp_path / "t", cuda=False, timeout=60.0)
    assert "left only the raw" in found.error
    assert "lacks libssh.so" in found.error


@pytest.mark.parametrize("size", [0, 2000])
def test_a_truncated_report_is_refused(real_nsys: Nsys, tmp_path: Path, size: int) -> None:
    whole = run(real_nsys, ["true"], tmp_path / "t", cuda=False, timeout=60.0)
    assert whole.report is not None
    os.truncate(whole.report, size)
    with pytest.raises(TraceInputError):
        export_sqlite(real_nsys, whole.report)


def test_a_report_from_a_newer_release_is_refused_by_name(tmp_path: Path) -> None:
    old, new = (probe(Path(named_by(name))) for name in ("REGRESS_NSYS_2022", "REGRESS_NSYS_2023"))
    assert old is not None
    assert new is not None
    found = run(new, ["true"], tmp_path / "t", cuda=False, timeout=60.0)
    assert found.report is not None
    with pytest.raises(TraceInputError, match=r"written by nsys 2023\.4, which nsys 2022\.4"):
        export_sqlite(old, found.report, tmp_path / "other.sqlite")
    older = run(old, ["true"], tmp_path / "o", cuda=False, timeout=60.0)
    assert older.report is not None
    assert export_sqlite(new, older.report, tmp_path / "other.sqlite").is_file()
