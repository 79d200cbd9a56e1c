"""Builds cut from recorded launches: the whole judge on real noise.

The launches are our own, made for this project: gloo on a busy 2-core host; NCCL with two ranks on one H200 under the
multi-process service; NCCL on two H200 over NVLink. One JSON line a launch: seconds per call, slowest rank.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from regress.judge.baseline import Baseline
from regress.judge.confirm import Budget, next_measurement
from regress.judge.detectors import SeriesOptions
from regress.judge.detectors.drift import DriftOptions
from regress.judge.detectors.limit import LimitOptions
from regress.judge.detectors.shift import ShiftOptions
from regress.judge.verdict import Judgement, Policies, judge
from regress.options import Effect
from regress.record import Case, CaseOutcome, Commit, Environment, Launch, Measurement, Run, TimingMode, Verdict
from regress.units import Better, Unit

DATA = Path(__file__).parents[1] / "data" / "judge"
SCREENING = 3
MOST = 400
"""Launches that a build can take, its window included."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Launches by condition ("same" is the unchanged code), in order of time."""

    by_condition: dict[str, tuple[Launch, ...]]
    cases: tuple[Case, ...]


def load(name: str, device: str) -> Recorded:
    """The launches of one recorded file; training steps are left out, they have a condition of their own."""
    lines = lzma.decompress((DATA / f"{name}.jsonl.xz").read_bytes()).decode().splitlines()
    found: dict[str, list[Launch]] = {}
    for index, line in enumerate(lines):
        entry = json.loads(line)
        outcomes = tuple(_outcome(key, samples, device) for key, samples in entry["samples"].items() if "/" in key)
        if outcomes:
            launch = Launch(index=index, role="head", seed=0, started_at="", wall_seconds=5.0, rank_wall_seconds=5.0,
                            outcomes=outcomes)
            found.setdefault(entry.get("condition", "same"), []).append(launch)
    return Recorded({key: tuple(value) for key, value in found.items()},
                    tuple(outcome.case for outcome in found["same"][0].outcomes))


def _outcome(key: str, samples: Sequence[float], device: str) -> CaseOutcome:
    name, size = key.split("/")
    workload = name.replace("_", "")
    case = Case(workload=workload, dtype="float32", world_size=2, device=device, timing=TimingMode.ISOLATED,
                message_size_bytes=int(size))
    return CaseOutcome(case, (Measurement(
        metric=f"{workload}_seconds", unit=Unit.SECONDS, better=Better.LOWER,
        value=float(np.mean(samples)), samples=tuple(samples)),))


def policies(cases: Sequence[Case], effect: Effect | None = None, statistic: str = "auto") -> Policies:
    """Every detector with its defaults on the headline time of each case."""
    policy: dict[str, object] = {"presence": SeriesOptions(), "limit": LimitOptions(), "drift": DriftOptions(),
                                 "shift": ShiftOptions(effect=effect, statistic=statistic)}
    return {(case.id, f"{case.workload}_seconds"): policy for case in cases}


@dataclass(frozen=True, slots=True)
class Setting:
    """How builds are made. runs: in the window. slower: factor on one case of head, by id; None for unchanged code.

    order: "shuffled" (so that no session is shared) or "time" (from a random start), both until all launches are used
    and then from the start again; or "independent", each drawn from all of them.
    """

    runs: int = 10
    base: bool = False
    order: str = "shuffled"
    slower: tuple[str, float] | None = None


def builds(recorded: Recorded, policy: Policies, setting: Setting, count: int, seed: int) -> Iterator[Judgement]:
    """Each build's final judgement: screening, and re-measuring as long as the judge asks for it."""
    same = recorded.by_condition["same"]
    rng = np.random.default_rng(seed)
    for number in range(count):
        stream = (same[i] for i in _order(rng, len(same), setting.order))
        runs = tuple(_run([next(stream) for _ in range(SCREENING)], i) for i in range(setting.runs))
        yield settle(stream, Baseline(runs), policy, setting, number)


def _order(rng: np.random.Generator, count: int, order: str) -> list[int]:
    if order == "independent":
        return [int(i) for i in rng.integers(count, size=MOST)]
    start = int(rng.integers(count))
    once = [int(i) for i in rng.permutation(count)] if order == "shuffled" else \
        [(start + i) % count for i in range(count)]
    return [once[i % count] for i in range(MOST)]


def settle(stream: Iterator[Launch], baseline: Baseline, policy: Policies, setting: Setting, seed: int) -> Judgement:
    """One build on the next launches of a stream."""
    taken = [_as(next(stream), "head", 0, setting) for _ in range(SCREENING)]
    found, fresh = judge(taken, baseline, policy), 0
    while plan := next_measurement(found, fresh, Budget(None, 5.0), has_base=setting.base, seed=seed):
        taken += [_as(next(stream), role, plan.session, setting) for role in plan.roles]
        fresh += plan.roles.count("head")
        found = judge(taken, baseline, policy)
    return found


def _run(launches: Sequence[Launch], number: int) -> Run:
    return Run(run_id=f"run{number}", started_at="", ended_at="", commit=Commit(), environment=Environment({}),
               launches=tuple(launches), verdict=Verdict.PASS)


def window_of(launches: Sequence[Launch], each: int) -> Baseline:
    """Runs of `each` launches in order of time, as a baseline."""
    runs = tuple(_run(launches[i:i + each], i) for i in range(0, len(launches) - each + 1, each))
    return Baseline(runs)


def _as(launch: Launch, role: str, session: int, setting: Setting) -> Launch:
    if setting.slower is None or role != "head":
        return replace(launch, role=role, session=session)
    slow, factor = setting.slower
    outcomes = tuple(CaseOutcome(o.case, tuple(_times(m, factor) for m in o.measurements))
                     if o.case.id == slow else o for o in launch.outcomes)
    return replace(launch, role=role, session=session, outcomes=outcomes)


def _times(m: Measurement, factor: float) -> Measurement:
    return replace(m, value=m.value * factor, samples=tuple(s * factor for s in m.samples), statistics={})
