from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import regress.measure

ROOT = Path(__file__).resolve().parents[2]


def test_the_room_loads_nothing_heavy() -> None:
    """The gate's own process and the start of every rank pay for each import; torch belongs to rank processes."""
    modules = [f"regress.measure.{info.name}" for info in pkgutil.iter_modules(regress.measure.__path__)]
    assert "regress.measure.torchrun" in modules
    code = (f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
            "print([name for name in ('torch', 'numpy', 'pandas', 'pynvml') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.stdout == "[]\n"
