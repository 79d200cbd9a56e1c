"""Makes every all-reduce of one size slower in every rank, for `perf/aa_gates.py collect --delay`.

COMM_REGRESS_DELAY is "BYTES SECONDS": that long each rank spins before it calls all_reduce with a tensor of that size.
"""

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from regress import selftest

SIZE, SECONDS = os.environ.get("COMM_REGRESS_DELAY", "0 0").split()
INJECT = runpy.run_path(str(Path(selftest.__file__).parent / "inject" / "sitecustomize.py"))


def spin(_count: int, tensor: Any) -> None:
    """Busy, as a slower collective would be: a sleep of so little lasts as long as the timer likes."""
    if tensor.numel() * tensor.element_size() == int(SIZE):
        end = time.perf_counter() + float(SECONDS)
        while time.perf_counter() < end:
            pass


if "RANK" in os.environ and float(SECONDS):
    sys.meta_path.insert(0, INJECT["After"](*INJECT["before_allreduce"](spin)))
