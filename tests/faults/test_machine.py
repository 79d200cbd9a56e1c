"""What a gate says on a machine that cannot run it, and where the history cannot be kept."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.gate import ALLREDUCE, Place, thresholds


def test_without_torch(place: Place) -> None:
    status, text = place.run(fault="no_torch")
    assert status == 4
    assert text == ("ERROR: comm-regress: PyTorch is not installed; accepted: PyTorch 2.3 or newer with distributed; "
                    "install it: pip install torch\n\n")


def test_with_a_torch_that_has_no_distributed(place: Place) -> None:
    status, text = place.run(fault="no_distributed")
    assert status == 4, text
    assert "torch's launcher cannot be imported by" in text
    assert "accepted: PyTorch with distributed; install an official build for this Python: pip install torch" in text
    assert place.runs == []


def test_cases_for_more_ranks_than_there_are_cores(place: Place) -> None:
    place.configure(thresholds(ranks=", ranks: [512]"))
    status, text = place.run("-rs")
    assert status == 0, text
    assert "SKIPPED [1] comm-regress::allreduce[4KiB-float32-512xcpu]: 512 ranks on " in text
    assert "lower the world size: ranks that share a core measure the scheduler" in text
    status, text = place.run(environment={"CI": "true"})
    assert status == 10, text
    assert "CI is set, so this is no skip" in text


def test_a_profile_with_more_ranks_than_there_are_cores(place: Place) -> None:
    place.configure(thresholds().replace("launches: 1", "launches: 1, ranks: 512"))
    status, text = place.run()
    assert status == 4
    assert text.startswith("ERROR: comm-regress: 512 ranks on ")
    assert "accepted: at most " in text


def test_a_history_that_cannot_be_made(place: Place) -> None:
    (place.folder / "file").write_text("")
    status, text = place.run("--comm-regress-history", "file/history")
    assert status == 4, text
    assert text == (f"ERROR: comm-regress: {place.folder}/file/history: the history folder cannot be written: Not a "
                    "directory; accepted: a folder on a local disk that this user may write, or postgresql://...; give "
                    "another one with --comm-regress-history\n\n")


def test_foreign_files_in_the_history_are_named_and_left_alone(place: Place) -> None:
    folder = place.folder / ".comm-regress" / "runs"
    folder.mkdir(parents=True)
    (folder / "cut.json").write_text('{"run_id": "a')
    (folder / "foreign.json").write_text("[1, 2]")
    status, text = place.run()
    assert status == 0, text
    for name in ("cut.json", "foreign.json"):
        assert re.search(rf"^warning: .*{name}: ", text, re.M), text
        assert (folder / name).exists()


def test_a_disk_that_is_full_when_the_run_is_to_be_stored(place: Place) -> None:
    """The verdict stands and is told; the run's JSON is kept elsewhere and named."""
    status, text = place.run(fault="disk_full")
    assert status == 10, text
    assert "the run could not be stored: No space left on device; its JSON is kept in " in text
    (kept,) = place.folder.glob("comm-regress-*.json")
    assert f"`regress history import {kept}`" in text
    assert list(json.loads(kept.read_bytes())["verdicts"]) == [ALLREDUCE]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", "size=64k", "none", str(disk)],
                                       capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_history_on_a_disk_too_small_for_it(place: Place, small_disk: Path) -> None:
    status, text = place.run("--comm-regress-history", str(small_disk / "history"))
    assert status == 4, text
    assert text == (f"ERROR: comm-regress: {small_disk}/history/index.sqlite: the index cannot be opened: database or "
                    "disk is full; accepted: a folder on a local disk; free some disk space\n\n")
