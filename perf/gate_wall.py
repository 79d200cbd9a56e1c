"""The whole gate's wall clock beside what its rank processes took: the default cases on the CPU.

    python perf/gate_wall.py [LAUNCHES] [--traced]

Bounds: wall at most 1.1 x the sum of the launches' rank-process wall plus 2 s; with 3 launches on 2 idle cores at most
90 s in all. Without --traced the traced launch is left out, as it belongs to no gated figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    traced = "--traced" in sys.argv
    launches = next((word for word in sys.argv[1:] if word.isdecimal()), "3")
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--comm-regress", "-q", "--comm-regress-device", "cpu",
             "--comm-regress-launches", launches, "--comm-regress-trace", "auto" if traced else "none"], cwd=folder,
            check=False, capture_output=True, text=True)
        wall = time.perf_counter() - began
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        (path,) = Path(folder, ".comm-regress", "runs").glob("*.json")
        run = json.loads(path.read_text())
    ranks = [launch["rank_wall_seconds"] for launch in run["launches"]]
    bound = 1.1 * sum(ranks) + 2
    print(f"gate {wall:.1f} s; rank processes {sum(ranks):.1f} s in {len(ranks)} launches "
          f"({', '.join(f'{value:.1f}' for value in ranks)}); bound {bound:.1f} s: "
          f"{'kept' if wall <= bound else 'missed'} (ratio {wall / bound:.2f})")
    print(f"busy before the first launch: {run['health'].get('cpu.busy_before_ratio')}, "
          f"load per core {run['health'].get('cpu.load_before_per_core')}")


if __name__ == "__main__":
    main()
