"""How fast the history is with 2,000 runs of 200 series, each with 20 samples; bounds are checked, figures printed.

    python perf/history.py [--runs 2000] [--series 200]

One series from SQLite at most 5 ms, all medians of the last 200 runs at most 150 ms, the index made again from files
at most 10 s, writing one run at most 30 ms beside the raw file write; memory flat in the number of runs; one request
for a push of 200 series. Each time is the median of several, and the machine's own raw file write is printed beside.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from regress.history.runs import RunFiles
from regress.history.store import History, open_history
from tests.history.factory import HERE, big_run


def timed(action: Callable[[], object], repeats: int = 5) -> float:
    """Median seconds of several calls."""
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def report(name: str, seconds: float, bound: float) -> bool:
    verdict = "ok" if seconds <= bound else "TOO SLOW"
    print(f"{name:<52} {seconds * 1e3:10.2f} ms   bound {bound * 1e3:8.0f} ms   {verdict}")
    return seconds <= bound


def writing(root: Path, runs: int, series: int) -> bool:
    """Raw files first, then the last 20 runs through the history: the difference is what the index costs."""
    files = RunFiles(root)
    for number in range(runs - 40):
        files.write(big_run(number, series))
    history = open_history(str(root))
    history.latest()
    raw, whole = [], []
    for number in range(runs - 40, runs, 2):
        first, second = big_run(number, series), big_run(number + 1, series)
        begin = time.perf_counter()
        files.write(first)
        raw.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        history.add(second)
        whole.append(time.perf_counter() - begin)
    history.close()
    print(f"{'raw write of one run file':<52} {statistics.median(raw) * 1e3:10.2f} ms")
    return report("writing one run beside the raw file write", statistics.median(whole) - statistics.median(raw), 0.030)


def reading(history: History, series: int) -> list[bool]:
    case = big_run(0, series).launches[0].outcomes[series // 2].case.id
    one = timed(lambda: history.series(case, "allreduce_seconds"), 9)
    window = timed(lambda: sum(1 for _ in history.candidates(HERE.fingerprint, 200)))
    medians = timed(lambda: history.medians(200))
    print(f"{'what a gate reads for its baseline: 220 runs':<52} {window * 1e3:10.2f} ms")
    return [report("one series", one, 0.005), report("all medians of the last 200 runs", medians, 0.150)]


def peak_mib(root: Path) -> float:
    """Peak memory of a fresh process that makes the index again."""
    program = (f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r})\n"
               f"from regress.history.store import open_history\nopen_history({str(root)!r}).reindex()\n"
               "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--series", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root, tenth = Path(folder) / "history", Path(folder) / "tenth"
        good = [writing(root, arguments.runs, arguments.series)]
        with open_history(str(root)) as history:
            begin = time.process_time()
            good.append(report("index made again from files", timed(history.reindex, 1), 10.0))
            print(f"{'  of which on the processor':<52} {(time.process_time() - begin) * 1e3:10.2f} ms   load average "
                  f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
            good += reading(history, arguments.series)
        (tenth / "runs").mkdir(parents=True)
        for path in sorted((root / "runs").iterdir())[: arguments.runs // 10]:
            shutil.copy(path, tenth / "runs")
        small, large = peak_mib(tenth), peak_mib(root)
        index_mib = (root / "index.sqlite").stat().st_size / 2**20
        print(f"peak memory of re-indexing: {small:.0f} MiB for {arguments.runs // 10} runs, {large:.0f} MiB for "
              f"{arguments.runs}; ratio {large / small:.2f}; index {index_mib:.0f} MiB")
        good.append(large <= small * 1.25)
    print(f"this process at its peak: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())
