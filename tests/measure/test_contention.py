"""What others take of the CPU while a launch runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from regress.measure.contention import Contention, CpuUse, read_use
from regress.measure.fitness import assess

IDLE = CpuUse(total=1000, idle=500, used=400, ours=100)


def after(*, total: int, idle: int, used: int, ours: int) -> CpuUse:
    """A reading that much later."""
    return CpuUse(IDLE.total + total, IDLE.idle + idle, IDLE.used + used, IDLE.ours + ours)


@pytest.mark.parametrize(("later", "contended"), [
    (after(total=1000, idle=50, used=900, ours=700), 1),   # others took 20 % and hardly anything was idle
    (after(total=1000, idle=50, used=900, ours=850), 0),   # all but 5 % was ours
    (after(total=1000, idle=400, used=600, ours=300), 0),  # others took 30 %, but there were idle cores
    (after(total=1000, idle=0, used=900, ours=900), 0)])   # the rest was interrupts, which are nobody's
def test_others_are_in_the_way_when_they_take_much_and_little_is_idle(later: CpuUse, contended: int) -> None:
    seen = Contention()
    seen.add(IDLE, later)
    assert (seen.launches, seen.contended) == (1, contended)


def test_what_cannot_be_read_is_not_counted() -> None:
    seen = Contention()
    seen.add(None, IDLE)
    seen.add(IDLE, IDLE)
    assert seen.launches == 0


def test_our_own_are_this_process_and_its_children_with_what_they_reaped(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    own = os.getpid()
    for pid, parent, times in ((own, 1, (1, 2, 3, 4)), (70000001, own, (10, 20, 30, 40)), (70000002, 1, (7, 7, 7, 7))):
        (proc / str(pid)).mkdir(parents=True)
        numbers = " ".join(map(str, times))
        (proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {parent} 0 0 0 0 0 0 0 0 0 {numbers} 0")
    (proc / "stat").write_text("cpu  100 10 50 800 20 5 5 10 0 0\ncpu0 1\n")
    assert read_use(tmp_path) == CpuUse(total=1000, idle=820, used=160, ours=110)
    assert read_use(tmp_path / "nothing") is None


def test_work_of_a_child_is_ours_once_it_has_ended() -> None:
    before = read_use()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    now = read_use()
    assert before is not None
    assert now is not None
    assert 45 <= now.ours - before.ours <= now.used - before.used + 5


@pytest.mark.parametrize(("contended", "watched", "level"), [
    (1, 6, "warn"), (2, 6, "inconclusive"), (6, 6, "inconclusive"), (1, 3, "warn"), (2, 3, "inconclusive")])
def test_a_third_of_the_launches_makes_a_would_be_regression_the_machines(contended: int, watched: int,
                                                                          level: str) -> None:
    facts = {"cpu.launches_watched": watched, "cpu.launches_contended": contended, "cpu.others_max_ratio": 0.42}
    assert assess(facts) == [(level, f"cpu: other processes took up to 42% of the CPU in {contended} of {watched} "
                                     "launches, and hardly any of it was idle")]
    assert assess({**facts, "cpu.launches_contended": 0}) == []
