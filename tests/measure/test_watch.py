"""What is known of ranks from their folder and the process table."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regress.measure.guard import process_file
from regress.measure.watch import Watch


def test_a_rank_that_came_and_went_between_two_looks_has_lived_since_it_wrote_its_file(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    process_file(tmp_path, 0).write_text(str(gone.pid))
    written = time.time() - 100
    os.utime(process_file(tmp_path, 0), (written, written))
    watch = Watch(tmp_path, 1)
    watch.look()
    assert watch.running == []
    assert watch.rank_wall_seconds == pytest.approx(100, abs=30)


def test_a_file_from_the_future_gives_no_negative_time(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    process_file(tmp_path, 0).write_text(str(gone.pid))
    later = time.time() + 1000
    os.utime(process_file(tmp_path, 0), (later, later))
    watch = Watch(tmp_path, 1)
    watch.look()
    assert watch.rank_wall_seconds == 0.0
