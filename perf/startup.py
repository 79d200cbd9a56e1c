"""What pytest's start costs with the plugin installed but idle: paired runs, median of the differences.

    python perf/startup.py [PAIRS]

Bound: at most 5 ms. Each pair starts pytest twice in random order, once with `-p no:comm_regress`. Processor time
stands beside the wall clock, which also holds what else a shared machine does.
"""

from __future__ import annotations

import random
import resource
import statistics
import subprocess
import sys
import time


def start(*arguments: str) -> tuple[float, float]:
    """Seconds of wall clock and of processor time."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments,
                    "/dev/null"], check=False, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    coin = random.Random(1)  # noqa: S311 - an order, not a secret
    start(), start("-p", "no:comm_regress")
    on, off = [], []
    for _ in range(pairs):
        for plugin in ((True, False) if coin.random() < 0.5 else (False, True)):
            (on if plugin else off).append(start() if plugin else start("-p", "no:comm_regress"))
    for which, name in enumerate(("wall clock", "processor time")):
        without = statistics.median(values[which] for values in off)
        differences = [one[which] - other[which] for one, other in zip(on, off, strict=True)]
        low, middle, high = statistics.quantiles(differences, n=4)
        print(f"{name}: {without * 1e3:.1f} ms without the plugin, {middle * 1e3:+.1f} ms with it idle (quartiles "
              f"{low * 1e3:+.1f} to {high * 1e3:+.1f}), ratio {1 + middle / without:.3f}, {pairs} pairs")


if __name__ == "__main__":
    main()
