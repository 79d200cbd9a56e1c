"""The judge's quality, measured: prints the tables of docs/quality.md. Seeded; about 15 minutes on two cores.

    python perf/judge_quality.py              # everything
    python perf/judge_quality.py bar grid     # only these sections: bar, grid, families, confirm, steps
    python perf/judge_quality.py --scale 0.1  # a tenth of the builds, for a first look
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from regress.judge.change_points import change_points
from regress.judge.statistics import compare_sides
from regress.options import Effect
from tests.quality.simulated import Gate, Noise, rates

SEED = 20260101
BAR = Noise(0.01, "spikes", autocorrelation=0.5, session=0.5)
SHAPES = ("normal", "lognormal", "spikes", "bimodal")
CHANGES = (0.01, 0.02, 0.03, 0.05, 0.10, 0.20, 0.50)
EFFECT_AT = {0.002: 0.02, 0.01: 0.02, 0.03: 0.05, 0.08: 0.10}
"""By noise (CV), the effect that is set: none of them smaller than what twenty interleaved pairs can resolve."""


def bar(scale: float) -> None:
    """The quality bar: 1 % noise, 5 % spikes, autocorrelation 0.5, half of the variance shared by the session."""
    gate = Gate(Effect(0.02))
    count = int(20_000 * scale)
    unchanged = rates(BAR, gate, 0.0, count, SEED)
    print(f"\nUnchanged, 1 series, {count} builds: {100 * unchanged.red:.3f} % red, "
          f"{100 * unchanged.inconclusive:.2f} % inconclusive, {unchanged.launches:.1f} launches a build")
    print("\n| change | builds | red | within 10 pairs | within 20 | inconclusive | launches a build |\n"
          "|---|---|---|---|---|---|---|")
    for change in (0.03, 0.05, 0.10):
        found = rates(BAR, gate, change, int(3000 * scale), SEED + 1)
        print(f"| +{change:.0%} | {found.builds} | {100 * found.red:.1f} % | {100 * found.red_within_10:.1f} % | "
              f"{100 * found.red_within_20:.1f} % | "
              f"{100 * found.inconclusive:.1f} % | {found.launches:.1f} |")


def grid(scale: float) -> None:
    """Every noise and every change, one series, with an interleaved base."""
    print("\n| CV | shape | rho, session | effect | red at 0 | " + " | ".join(f"+{c:.0%}" for c in CHANGES)
          + " | inconclusive at 0 | launches at 0 |\n|" + "---|" * (len(CHANGES) + 7))
    for cv, effect in EFFECT_AT.items():
        for shape in SHAPES:
            for rho, session in ((0.0, 0.0), (0.5, 0.5)):
                noise, gate = Noise(cv, shape, rho, session), Gate(Effect(effect))
                none = rates(noise, gate, 0.0, int(1000 * scale), SEED)
                power = [rates(noise, gate, change, int(100 * scale), SEED + 2).red for change in CHANGES]
                print(f"| {cv:.1%} | {shape} | {rho:g}, {session:.0%} | {effect:.0%} | {100 * none.red:.1f} % | "
                      + " | ".join(f"{100 * p:.0f}" for p in power)
                      + f" | {100 * none.inconclusive:.1f} % | {none.launches:.1f} |", flush=True)


def families(scale: float) -> None:
    """More gated series, with a base and without one."""
    print("\n| series | base | builds | red | inconclusive | launches a build |\n|---|---|---|---|---|---|")
    for base in (True, False):
        for series, builds in ((1, 6000), (12, 500), (60, 100)):
            found = rates(BAR, Gate(Effect(0.02 if base else 0.05), base, 20, series), 0.0,
                          max(1, int(builds * scale)), SEED)
            print(f"| {series} | {'interleaved' if base else 'window only, effect 5 %'} | {found.builds} | "
                  f"{100 * found.red:.2f} % | {100 * found.inconclusive:.1f} % | {found.launches:.1f} |", flush=True)


def confirm(scale: float) -> None:
    """The confirmation step alone: how often its p falls below a level when nothing changed, over that level."""
    print("\n| noise (CV 1 %) | launches a side | p <= 0.01 | p <= 0.0008 |\n|---|---|---|---|")
    rng = np.random.default_rng(SEED)
    for noise in (Noise(0.01), Noise(0.01, "lognormal"), Noise(0.01, "spikes", 0.5), Noise(0.01, "bimodal")):
        for count in (5, 10, 20):
            trials = int(40_000 * scale)
            found = [compare_sides(x[:count].tolist(), x[count:].tolist())
                     for x in (rng.permutation(noise.launches(rng, 2 * count)) for _ in range(trials))]
            p_values = np.array([1.0 if c is None else c.p_value for c in found])
            print(f"| {noise.shape}, rho {noise.autocorrelation:g} | {count} | "
                  + " | ".join(f"{np.mean(p_values <= level) / level:.2f}" for level in (0.01, 0.0008)) + " |",
                  flush=True)


def _noises(rng: np.random.Generator) -> dict[str, Callable[[], list[float]]]:
    return {
        "30, normal": lambda: _history(rng, Noise(0.02), 30), "100, normal": lambda: _history(rng, Noise(0.02), 100),
        "100, lognormal": lambda: _history(rng, Noise(0.02, "lognormal"), 100),
        "100, 5 % spikes": lambda: _history(rng, Noise(0.02, "spikes"), 100),
        "100, bimodal": lambda: _history(rng, Noise(0.02, "bimodal"), 100),
        "100, autocorrelation 0.5": lambda: _history(rng, Noise(0.02, autocorrelation=0.5), 100),
        "300, autocorrelation 0.5": lambda: _history(rng, Noise(0.02, autocorrelation=0.5), 300),
        "100, autocorrelation 0.8": lambda: _history(rng, Noise(0.02, autocorrelation=0.8), 100)}


def _history(rng: np.random.Generator, noise: Noise, count: int) -> list[float]:
    return [float(v) for v in np.exp(noise.launches(rng, count))]


def steps(scale: float) -> None:
    """Change points over a history: false ones, and the delay until a true one is seen."""
    rng = np.random.default_rng(SEED)
    count = max(10, int(500 * scale))
    print(f"\n| runs, noise (CV 2 %) | unchanged histories with a change point, of {count} |\n|---|---|")
    for name, made in _noises(rng).items():
        false = sum(bool(change_points(made())) for _ in range(count))
        print(f"| {name} | {100 * false / count:.1f} % |", flush=True)
    print("\n| noise, step after 50 runs | found within 40 runs | median delay |\n|---|---|---|")
    for cv, step in ((0.01, 0.02), (0.01, 0.05), (0.03, 0.05), (0.03, 0.10)):
        delays = [_delay(rng, cv, step) for _ in range(max(10, int(60 * scale)))]
        seen = [d for d in delays if d is not None]
        print(f"| {cv:.0%}, +{step:.0%} | {100 * len(seen) / len(delays):.0f} % | "
              f"{np.median(seen) if seen else '–'} |", flush=True)


def _delay(rng: np.random.Generator, cv: float, step: float) -> int | None:
    values = list(rng.normal(0, cv, 50))
    for delay in range(1, 41):
        values.append(float(np.log1p(step) + rng.normal(0, cv)))
        if any(abs(found.index - 50) <= 3 for found in change_points([float(v) for v in np.exp(values)])):
            return delay
    return None


SECTIONS: dict[str, Callable[[float], None]] = {"bar": bar, "grid": grid, "families": families, "confirm": confirm,
                                                "steps": steps}


def main() -> None:
    """Prints the sections asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    for name in arguments.sections or SECTIONS:
        print(f"\n## {name}: {(SECTIONS[name].__doc__ or '').splitlines()[0]}", flush=True)
        SECTIONS[name](arguments.scale)


if __name__ == "__main__":
    main()
