"""What is known of ranks from their folder and the process table."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from regress.measure.guard import process_file
from regress.measure.watch import Watch


def test_a_rank_that_came_and_went_between_two_looks_has_lived_since_it_came_under_guard(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the wall clock was set to meanwhile."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    process_file(tmp_path, 0).write_text(f"{gone.pid} {time.monotonic() - 100}")
    wall = time.time()
    monkeypatch.setattr(time, "time", lambda: wall - 3600)
    watch = Watch(tmp_path, 1)
    watch.look()
    assert watch.running == []
    assert watch.rank_wall_seconds == pytest.approx(100, abs=30)
