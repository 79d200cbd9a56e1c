"""Real A/A builds of the gloo suite: `collect` launches for as long as told, `replay` cuts them into gates.

    python perf/aa_gates.py collect launches.jsonl --seconds 3600     # resumable: appends
    python perf/aa_gates.py replay launches.jsonl                     # or --base; prints a table
    python perf/aa_gates.py replay launches.jsonl --slower 1.5        # the same with one case slowed down
    python perf/aa_gates.py collect delayed.jsonl --seconds 1200 --delay 1048576 250e-6
    python perf/aa_gates.py replay delayed.jsonl --window launches.jsonl [--base]

Collecting runs the packaged CPU collectives through the gate's own launcher and keeps, for each launch, each metric's
value and quantiles, one JSON line a launch. Replaying takes the launches in the order of time: each gate screens with
the next three, is judged against the gates before it, and where the judge asks for more takes the next ones, as head
or, with --base, alternating as head and base. So every verdict is that of a build whose code never changed. How much
of the CPU other processes took is kept beside each launch, and weighs as it does in a gate.

With --delay every second launch is really slower: all ranks spin that many seconds before each all-reduce of that many
bytes. Its replay judges the slower launches as head, against the gates of --window and, with --base, against the
unchanged launches made next to them.
"""

from __future__ import annotations

import argparse
import lzma
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

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
DELAYED = "delayed"
"""Key of a launch's evidence that only delayed launches have: how large a message, and by how many seconds."""
DELAY_FOLDER = str(Path(__file__).parent / "delay")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("collect", "replay"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--base", action="store_true")
    parser.add_argument("--slower", type=float, default=1.0)
    parser.add_argument("--delay", nargs=2, metavar=("BYTES", "SECONDS"))
    parser.add_argument("--window", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "collect":
        collect(arguments.file, arguments.seconds, arguments.delay)
    elif arguments.window is not None:
        report(delayed_gates(read(arguments.file), read(arguments.window), with_base=arguments.base), tell_reds=False)
    else:
        report(gates(read(arguments.file), with_base=arguments.base, slower=arguments.slower),
               tell_reds=arguments.slower == 1)


def cpu_cases() -> tuple[Case, ...]:
    """The packaged CPU cases that are collectives."""
    config = load_config(None, open_shelves().catalog())
    return tuple(case for case in config.plan("cpu", 2) if case.message_size_bytes is not None)


def collect(path: Path, seconds: float, delay: Sequence[str] | None) -> None:
    """Appends one line a launch until the time is over; with a delay, every second one has it."""
    shelves, cases = open_shelves(), cpu_cases()
    metrics = {case.workload: shelves.metrics_of(case.workload) for case in cases}
    slow = {} if delay is None else {"PYTHONPATH": os.pathsep.join((DELAY_FOLDER, os.environ.get("PYTHONPATH", ""))),
                                     "COMM_REGRESS_DELAY": " ".join(delay)}
    end = time.monotonic() + seconds
    index = len(path.read_bytes().splitlines()) if path.exists() else 0
    with TorchrunLauncher(2) as launcher, path.open("ab") as out:
        while time.monotonic() < end:
            delayed = bool(slow) and index % 2 == 1
            spec = LaunchSpec(cases=cases, seed=index, backend="gloo", results_dir="", case_seconds=CASE_SECONDS)
            contention = Contention()
            with contention.launch():
                result = launcher.launch(spec, index=index, role="head", deadline_seconds=120,
                                         environment=slow if delayed else None)
            evidence = {OTHERS: str(contention.worst)} | ({DELAYED: " ".join(delay or ())} if delayed else {})
            out.write(to_json(replace(_pruned(fold_launch(result, metrics, 0)), evidence=evidence)) + b"\n")
            out.flush()
            index += 1


def _pruned(launch: Launch) -> Launch:
    """Quantiles instead of samples: what the judge reads, at a tenth of the size."""
    return replace(launch, outcomes=tuple(
        replace(outcome, measurements=tuple(replace(m, samples=()) for m in outcome.measurements))
        for outcome in launch.outcomes))


class Gate(NamedTuple):
    """What a gate came to, and the launches it took."""

    judgement: Judgement
    taken: tuple[Launch, ...]

    def as_run(self, number: int) -> Run:
        """What the history would hold of it."""
        return Run(run_id=f"gate{number}", started_at=self.taken[0].started_at, ended_at=self.taken[-1].started_at,
                   commit=Commit(), environment=Environment({}), launches=self.taken, verdict=self.judgement.verdict,
                   verdicts=self.judgement.verdicts, findings=self.judgement.findings)


def gates(launches: list[Launch], *, with_base: bool, slower: float) -> Iterator[Gate]:
    """The gates that have two before them; the window of each is the gates before it."""
    cases, stream, earlier = _cases(launches), iter(launches), list[Run]()
    policies = _policies(cases)
    for number in range(len(launches)):
        slow = cases[number % len(cases)].id if slower != 1 and len(earlier) >= 10 else None
        try:
            gate = _gate(lambda role, slow=slow: _slower(next(stream), slow if role == "head" else None, slower),
                         earlier, policies, with_base=with_base, seed=number)
        except StopIteration:
            return
        if slow is None:
            earlier.append(gate.as_run(number))
        if len(earlier) > 1:
            yield gate


def delayed_gates(launches: list[Launch], window: list[Launch], *, with_base: bool) -> Iterator[Gate]:
    """Gates whose head launches are the delayed ones, against the gates of `window`.

    A delayed launch and the unchanged one made before it are a pair: head and base of a confirmation are of one pair.
    """
    policies = _policies(_cases(launches))
    earlier = [gate.as_run(i) for i, gate in enumerate(gates(window, with_base=False, slower=1.0))]
    sides = {"head": [launch for launch in launches if DELAYED in launch.evidence],
             "base": [launch for launch in launches if DELAYED not in launch.evidence]}
    at = {"head": 0, "base": 0}

    def take(role: str) -> Launch:
        at[role] += 1
        return sides[role][at[role] - 1]

    for number in range(len(launches)):
        start = max(at.values())
        at |= {"head": start, "base": start + SCREENING}
        try:
            yield _gate(take, earlier, policies, with_base=with_base, seed=number)
        except IndexError:
            return


def _gate(take: Callable[[str], Launch], earlier: list[Run], policies: Policies, *, with_base: bool,
          seed: int) -> Gate:
    """Screens, and measures again what is in doubt, as a gate does; `take` gives the next launch of a role."""
    # A list and no generator: in a generator the end of the launches would become a RuntimeError.
    taken = tuple([replace(take("head"), role="head", session=0, index=i) for i in range(SCREENING)])
    baseline = Baseline(tuple(earlier[-20:]), tuple(earlier))
    found, fresh = judge(taken, baseline, policies, health=_notes(taken)), 0
    while earlier and (plan := next_measurement(found, fresh, Budget(None, 5.0), has_base=with_base, seed=seed)):
        for role in plan.roles:
            taken = (*taken, replace(take(role), role=role, session=plan.session, index=len(taken)))
        fresh += plan.roles.count("head")
        found = judge(taken, baseline, policies, health=_notes(taken))
    return Gate(found, taken)


def _policies(cases: list[Case]) -> Policies:
    shelves = open_shelves()
    config = load_config(None, shelves.catalog())
    return {(case.id, metric): config.policy(case, metric) for case in cases
            for metric, known in shelves.metrics_of(case.workload).items()
            if (known.gated and known.from_ranks is not None) or config.names(case, metric)}


def _notes(launches: Sequence[Launch]) -> list[HealthNote]:
    """What speaks against the host, as a gate sees it."""
    worst = [float(launch.evidence.get(OTHERS, "0")) for launch in launches]
    facts = {"cpu.launches_watched": len(worst), "cpu.launches_contended": sum(map(bool, worst)),
             "cpu.others_max_ratio": max(worst)}
    return [HealthNote(Downgrade(level), text) for level, text in assess(facts) if level != "warn"]


def _cases(launches: list[Launch]) -> list[Case]:
    return sorted({outcome.case for launch in launches for outcome in launch.outcomes}, key=lambda case: case.id)


def _slower(launch: Launch, slow: str | None, factor: float) -> Launch:
    """The launch as it would be if that case were `factor` times as slow."""
    outcomes = tuple(CaseOutcome(o.case, tuple(_slowed(m, factor) for m in o.measurements), o.error)
                     if o.case.id == slow else o for o in launch.outcomes)
    return replace(launch, outcomes=outcomes)


def _slowed(m: Measurement, factor: float) -> Measurement:
    if m.better.value == "higher":
        factor = 1 / factor
    return replace(m, value=m.value * factor, statistics={name: value if name == "n" else value * factor
                                                          for name, value in m.statistics.items()})


def read(path: Path) -> list[Launch]:
    """The launches of a file that `collect` wrote, also compressed."""
    content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    return [msgspec.json.decode(line, type=Launch) for line in content.splitlines()]


def report(found: Iterator[Gate], *, tell_reds: bool) -> None:
    """Prints verdicts over all gates, launches used, and what was red: each with its reason, or how often by case."""
    verdicts: Counter[Verdict] = Counter()
    used, statuses, reds = [], Counter[int](), Counter[str]()
    for judgement, taken in found:
        verdicts[judgement.verdict] += 1
        statuses[judgement.exit_status] += 1
        used.append(len(taken))
        red = [finding for finding in judgement.findings if finding.verdict is Verdict.REGRESSION]
        reds.update({finding.case for finding in red})
        if tell_reds:
            for finding in red:
                print(f"red: {finding.case} {finding.metric} {finding.detector}: {finding.reason}")
    total = sum(verdicts.values())
    print(f"{total} gates, launches a gate: mean {sum(used) / max(1, total):.1f}, most {max(used, default=0)}")
    for verdict, number in verdicts.most_common():
        print(f"  {verdict.value:13s} {number:4d}  {100 * number / total:5.1f} %")
    print("  exit status", dict(statuses))
    for case, number in reds.most_common():
        print(f"  red in {number:4d}  {case}")


if __name__ == "__main__":
    main()
