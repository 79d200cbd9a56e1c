"""The judge on recorded launches and public histories, beside the rules of other tools: tables of docs/quality.md.

    python perf/judge_recorded.py [--builds 200]    # about 10 minutes on two cores
"""

from __future__ import annotations

import argparse
import lzma
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from regress.judge.backtest import backtest
from regress.judge.history_csv import histories, read_rows
from regress.judge.statistics import rank_test
from regress.judge.verdict import judge
from regress.options import Effect
from regress.record import Launch, Verdict
from tests.quality.recorded import DATA, Recorded, Setting, builds, load, policies, window_of

SEED = 20260101
NAMES = ("value", "min", "p10", "p25", "p50", "p95")


def spreads(recorded: Recorded) -> None:
    """Standard deviation over launches, log scale, of each statistic of a launch."""
    print("\n| case | " + " | ".join(NAMES) + " |\n|" + "---|" * (len(NAMES) + 1))
    for case in recorded.cases:
        rows = [m for launch in recorded.by_condition["same"] for o in launch.outcomes if o.case == case
                for m in o.measurements]
        cells = [f"{np.std(np.log([m.statistic(name) or 1.0 for m in rows]), ddof=1):.2f}" for name in NAMES]
        print(f"| {case.id} | {' | '.join(cells)} |")


def gloo(count: int) -> None:
    """Builds of unchanged code and with one case slowed down."""
    recorded = load("gloo_2rank_same_code", "cpu")
    spreads(recorded)
    policy = policies(recorded.cases)
    print("\n| confirmation | order of launches | change | builds | red | inconclusive | pass |\n|" + "---|" * 7)
    for base in (True, False):
        for how in ("shuffled", "time", "independent"):
            setting = Setting(base=base, order=how)
            found = Counter(j.verdict for j in builds(recorded, policy, setting, count, SEED))
            _line("interleaved" if base else "window", how, "none", found)
            for factor in (1.2, 1.5, 2.0):
                slowed: Counter[Verdict] = Counter()
                for case in recorded.cases:
                    changed = replace(setting, slower=(case.id, factor))
                    slowed.update(j.verdicts[case.id] for j in builds(recorded, policy, changed, count // 6, SEED + 1))
                _line("interleaved" if base else "window", how, f"+{factor - 1:.0%} on one case", slowed)


def _line(confirmation: str, how: str, change: str, found: Counter[Verdict]) -> None:
    total = sum(found.values())
    shares = " | ".join(f"{100 * found[v] / total:.1f} %" for v in (Verdict.REGRESSION, Verdict.INCONCLUSIVE,
                                                                    Verdict.PASS))
    print(f"| {confirmation} | {how} | {change} | {total} | {shares} |", flush=True)


def nccl() -> None:
    """Each deliberate slow-down against the unchanged launches, as the few launches there are."""
    print("\n| machine | change | case | verdict | change measured | launches that would decide |\n|" + "---|" * 6)
    for name, conditions, each in (("nccl_1gpu_mps", ("small_buffer", "one_channel"), 3),
                                   ("nccl_2gpu_nvlink", ("no_p2p",), 4)):
        recorded = load(name, "cuda")
        window = window_of(recorded.by_condition["same"], each)
        for condition in conditions:
            found = judge(recorded.by_condition[condition], window, policies(recorded.cases), stored=True)
            for f in found.findings:
                if f.detector == "shift":
                    print(f"| {name} | {condition} | {f.case} | {f.verdict.value} | {f.change or 0:+.0%} | "
                          f"{f.needed_launches or '–'} |")


Rule = Callable[[Sequence[Launch], Sequence[Launch], str], bool]


def _figures(launches: Sequence[Launch], case: str, statistic: str) -> list[float]:
    return [m.statistic(statistic) or 0.0 for launch in launches for o in launch.outcomes if o.case.id == case
            for m in o.measurements]


def _calls(launches: Sequence[Launch], case: str) -> list[float]:
    return [s for launch in launches for o in launch.outcomes if o.case.id == case for m in o.measurements
            for s in m.samples]


def percent(limit: float) -> Rule:
    """Mean over everything measured against the run before, in percent."""
    return lambda before, now, case: bool(np.mean(_figures(now, case, "value"))
                                          > limit * np.mean(_figures(before[-3:], case, "value")))


def ranks_of_calls(before: Sequence[Launch], now: Sequence[Launch], case: str) -> bool:
    """As asv: Mann-Whitney on single calls, p < 0.002, and the ratio of medians above 1.1."""
    calls, old = _calls(now, case), _calls(before[-3:], case)
    return bool(np.median(calls) > 1.1 * np.median(old)) and rank_test(calls, old) < 0.002


def ranks_of_launches(before: Sequence[Launch], now: Sequence[Launch], case: str) -> bool:
    """As benchstat's users gate: Mann-Whitney on ten launches a side, p < 0.05, any size, slower."""
    new, old = _figures(now, case, "p50"), _figures(before[-10:], case, "p50")
    return rank_test(new, old) < 0.05 and bool(np.median(new) > np.median(old))


RULES: dict[str, tuple[Rule, int]] = {
    "mean of 3 launches + 10 % (pytest-benchmark)": (percent(1.1), 3),
    "mean of 3 launches, 200 % (github-action-benchmark)": (percent(2.0), 3),
    "Mann-Whitney of calls, factor 1.1 (asv)": (ranks_of_calls, 3),
    "Mann-Whitney of 10 launches a side (benchstat)": (ranks_of_launches, 10)}


def rivals(count: int) -> None:
    """Other tools' rules on the same launches: a build is red when any of its six cases is."""
    recorded = load("gloo_2rank_same_code", "cpu")
    same, rng = recorded.by_condition["same"], np.random.default_rng(SEED)
    cases = [case.id for case in recorded.cases]
    print("\n| rule | unchanged builds red | +50 % on one case found |\n|---|---|---|")
    for name, (rule, launches) in RULES.items():
        red = found = 0
        for number in range(count):
            order = [same[i] for i in rng.permutation(len(same))]
            before, now = order[:30], order[30:30 + launches]
            red += any(rule(before, now, case) for case in cases)
            slow = cases[number % len(cases)]
            found += rule(before, _slowed(now, slow), slow)
        print(f"| {name} | {100 * red / count:.1f} % | {100 * found / count:.1f} % |", flush=True)


def _slowed(launches: Sequence[Launch], case: str) -> list[Launch]:
    return [replace(launch, outcomes=tuple(
        replace(o, measurements=tuple(replace(m, value=1.5 * m.value, samples=tuple(1.5 * s for s in m.samples),
                                              statistics={}) for m in o.measurements)) if o.case.id == case else o
        for o in launch.outcomes)) for launch in launches]


def public() -> None:
    """Histories of unchanged code and of NCCL versions, replayed by `regress backtest`."""
    rows = read_rows(_stored("fib_unchanged_code"), "fib")
    print("\n| history | effect | commits | alarms | share | a fixed limit over the commit before |\n|" + "---|" * 6)
    for effect in (0.05, 0.10, 0.20):
        found = backtest(rows, Effect(effect), suggest=False)
        simple = {h.commits[i].commit for h in histories(rows)[0] for i in range(1, len(h.commits))
                  if np.median(h.commits[i].values) > (1 + effect) * np.median(h.commits[i - 1].values)}
        print(f"| fib_unchanged_code | {effect:.0%} | {found.runs} | {len(found.alarms)} | "
              f"{100 * found.false_alarm_rate:.2f} % | {100 * len(simple) / found.runs:.1f} % |", flush=True)
    ladder = backtest(read_rows(_stored("nccl_version_ladder").replace("order,version", "timestamp,commit", 1), "l"))
    print("\nnccl_version_ladder:", [(a.commit, f"{a.change:+.0%}") for a in ladder.alarms])


def _stored(name: str) -> str:
    return lzma.decompress((DATA / f"{name}.csv.xz").read_bytes()).decode()


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--builds", type=int, default=200)
    count = parser.parse_args().builds
    for section in (public, nccl):
        print(f"\n## {section.__name__}: {section.__doc__}")
        section()
    for measured in (rivals, gloo):
        print(f"\n## {measured.__name__}: {measured.__doc__}")
        measured(count)


if __name__ == "__main__":
    main()
