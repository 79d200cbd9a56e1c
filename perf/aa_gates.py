"""Real A/A builds of the gloo suite: `collect` launches for as long as told, `replay` cuts them into gates.

    python perf/aa_gates.py collect launches.jsonl --seconds 3600     # resumable: appends
    python perf/aa_gates.py replay launches.jsonl                     # or --base; prints a table
    python perf/aa_gates.py replay launches.jsonl --slower 1.5        # the same with one case slowed down

Collecting runs the packaged CPU collectives through the gate's own launcher and keeps, for each launch, each metric's
value and quantiles, one JSON line a launch. Replaying takes the launches in the order of time: each gate screens with
the next three, is judged against the gates before it, and where the judge asks for more takes the next ones, as head
or, with --base, alternating as head and base. So every verdict is that of a build whose code never changed. How much
of the CPU other processes took is kept beside each launch, and weighs as it does in a gate.
"""

from __future__ import annotations

import argparse
import lzma
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from regress.catalog import open_shelves
from regress.config import load_config
from regress.judge.baseline import Baseline
from regress.judge.confirm import Budget, next_measurement
from regress.judge.verdict import Downgrade, HealthNote, Judgement, Policies, judge
from regress.measure.contention import Contention
from regress.measure.fitness import assess
from regress.measure.torchrun import TorchrunLauncher
from regress.outcomes import fold_launch
from regress.record import (
    Case,
    CaseOutcome,
    Commit,
    Environment,
    Launch,
    LaunchSpec,
    Measurement,
    Run,
    Verdict,
    to_json,
)

SCREENING = 3
CASE_SECONDS = 0.1
OTHERS = "others"
"""Key of a launch's evidence: the share of the CPU that others took where they were in the way, else 0."""


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("collect", "replay"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--base", action="store_true")
    parser.add_argument("--slower", type=float, default=1.0)
    arguments = parser.parse_args()
    if arguments.what == "collect":
        collect(arguments.file, arguments.seconds)
    else:
        report(arguments.file, with_base=arguments.base, slower=arguments.slower)


def cpu_cases() -> tuple[Case, ...]:
    """The packaged CPU cases that are collectives."""
    config = load_config(None, open_shelves().catalog())
    return tuple(case for case in config.plan("cpu", 2) if case.message_size_bytes is not None)


def collect(path: Path, seconds: float) -> None:
    """Appends one line a launch until the time is over."""
    shelves, cases = open_shelves(), cpu_cases()
    metrics = {case.workload: shelves.metrics_of(case.workload) for case in cases}
    end = time.monotonic() + seconds
    index = len(path.read_bytes().splitlines()) if path.exists() else 0
    with TorchrunLauncher(2) as launcher, path.open("ab") as out:
        while time.monotonic() < end:
            spec = LaunchSpec(cases=cases, seed=index, backend="gloo", results_dir="", case_seconds=CASE_SECONDS)
            contention = Contention()
            with contention.launch():
                result = launcher.launch(spec, index=index, role="head", deadline_seconds=120)
            kept = replace(_pruned(fold_launch(result, metrics, 0)), evidence={OTHERS: str(contention.worst)})
            out.write(to_json(kept) + b"\n")
            out.flush()
            index += 1


def _pruned(launch: Launch) -> Launch:
    """Quantiles instead of samples: what the judge reads, at a tenth of the size."""
    return replace(launch, outcomes=tuple(
        replace(outcome, measurements=tuple(replace(m, samples=()) for m in outcome.measurements))
        for outcome in launch.outcomes))


def gates(launches: list[Launch], *, with_base: bool, slower: float) -> Iterator[tuple[Judgement, int]]:
    """Each gate's final judgement and the launches it took; the window is the gates before it."""
    shelves = open_shelves()
    config = load_config(None, shelves.catalog())
    stream = iter(launches)
    earlier: list[Run] = []
    cases = sorted(_cases(launches), key=lambda case: case.id)
    policies: Policies = {(case.id, metric): config.policy(case, metric) for case in cases
                          for metric, known in shelves.metrics_of(case.workload).items()
                          if (known.gated and known.from_ranks is not None) or config.names(case, metric)}
    for number in range(len(launches)):
        slow = cases[number % len(cases)].id if slower != 1 and len(earlier) >= 10 else None
        taken: list[Launch] = []
        try:
            taken = [_as(next(stream), ("head", 0, i), slow, slower) for i in range(SCREENING)]
            baseline = Baseline(tuple(earlier[-20:]), tuple(earlier))
            found, fresh = judge(taken, baseline, policies, health=_notes(taken)), 0
            while earlier and (plan := next_measurement(found, fresh, Budget(None, 5.0), has_base=with_base,
                                                        seed=number)):
                taken += [_as(next(stream), (role, plan.session, len(taken)), slow, slower) for role in plan.roles]
                fresh += plan.roles.count("head")
                found = judge(taken, baseline, policies, health=_notes(taken))
        except StopIteration:
            return
        if slow is None:
            earlier.append(Run(run_id=f"gate{number}", started_at=taken[0].started_at, ended_at=taken[-1].started_at,
                               commit=Commit(), environment=Environment({}), launches=tuple(taken),
                               verdict=found.verdict, verdicts=found.verdicts, findings=found.findings))
        if len(earlier) > 1:
            yield found, len(taken)


def _notes(launches: list[Launch]) -> list[HealthNote]:
    """What speaks against the host, as a gate sees it."""
    worst = [float(launch.evidence.get(OTHERS, "0")) for launch in launches]
    facts = {"cpu.launches_watched": len(worst), "cpu.launches_contended": sum(map(bool, worst)),
             "cpu.others_max_ratio": max(worst)}
    return [HealthNote(Downgrade(level), text) for level, text in assess(facts) if level != "warn"]


def _cases(launches: list[Launch]) -> set[Case]:
    return {outcome.case for launch in launches for outcome in launch.outcomes}


def _as(launch: Launch, place: tuple[str, int, int], slow: str | None, factor: float) -> Launch:
    """The launch as (role, session, index) of a gate; with `slow`, that case of head is `factor` times as slow."""
    role, session, index = place
    outcomes = tuple(CaseOutcome(o.case, tuple(_slowed(m, factor) for m in o.measurements), o.error)
                     if role == "head" and o.case.id == slow else o for o in launch.outcomes)
    return replace(launch, role=role, session=session, index=index, outcomes=outcomes)


def _slowed(m: Measurement, factor: float) -> Measurement:
    if m.better.value == "higher":
        factor = 1 / factor
    return replace(m, value=m.value * factor, statistics={name: value if name == "n" else value * factor
                                                          for name, value in m.statistics.items()})


def report(path: Path, *, with_base: bool, slower: float) -> None:
    """Prints verdicts over all gates, launches used, and every red with its reason."""
    content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    launches = [msgspec.json.decode(line, type=Launch) for line in content.splitlines()]
    verdicts: Counter[Verdict] = Counter()
    used, statuses = [], Counter[int]()
    for found, count in gates(launches, with_base=with_base, slower=slower):
        verdicts[found.verdict] += 1
        statuses[found.exit_status] += 1
        used.append(count)
        for finding in found.findings:
            if finding.verdict is Verdict.REGRESSION and slower == 1:
                print(f"red: {finding.case} {finding.metric} {finding.detector}: {finding.reason}")
    total = sum(verdicts.values())
    print(f"{len(launches)} launches, {total} gates ({'with' if with_base else 'without'} base, x{slower:g}), "
          f"launches a gate: mean {sum(used) / max(1, len(used)):.1f}, most {max(used, default=0)}")
    for verdict, count in verdicts.most_common():
        print(f"  {verdict.value:13s} {count:4d}  {100 * count / total:5.1f} %")
    print("  exit status", dict(statuses))


if __name__ == "__main__":
    main()
