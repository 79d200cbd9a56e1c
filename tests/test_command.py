"""`python -m regress` is the `regress` command."""

from __future__ import annotations

import subprocess
import sys


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "regress", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("comm-regress ")
    wrong = subprocess.run([sys.executable, "-m", "regress", "nonsense"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 4
    assert "usage: regress" in wrong.stderr
