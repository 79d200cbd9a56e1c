"""Histories made from a seed: steps, noise, sick runs, upgrades, gaps. Newest run first, as the report reads them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from regress.publish.html import CollectiveSkew, RankStrip, TraceView
from regress.record import (
    Acceptance,
    Case,
    CaseOutcome,
    Commit,
    Diagnosis,
    Environment,
    Finding,
    Launch,
    Measurement,
    Run,
    Scalar,
    TimingMode,
    Verdict,
)
from regress.units import Better, Unit

START = datetime(2026, 1, 5, 8, 0, tzinfo=timezone.utc)
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"> [red]x[/red] \x1b[31m\u202egnp.exe"
MUST_MATCH: dict[str, Scalar] = {
    "backend": "nccl", "gpu_model": "NVIDIA H200", "gpu_count": 2, "gpu_partitioning": "none",
    "link_class": "NVLink 4.0 x18", "topology_class": "NVLink"}
REPORTED: dict[str, Scalar] = {
    "driver_version": "570.124.06", "torch_cuda_version": "12.8", "nccl_version": "2.28.3", "torch_version": "2.13.0",
    "host": "gpu-07", "load_average": 0.5, "image": None, "NCCL_DEBUG": "WARN"}
SUBJECTS = ("Bucket gradients by arrival", "Pin the loader's threads", "Tidy the docs", "Fuse the optimizer",
            "Bump the base image", "Test the sampler", "Overlap the last bucket", "Log less")


def allreduce(size: int, timing: TimingMode = TimingMode.ISOLATED) -> Case:
    return Case("allreduce", "float32", 2, "cuda", timing, message_size_bytes=size)


STEP = Case("ddp_step", "bf16", 2, "cuda", TimingMode.STEP)


@dataclass(frozen=True, slots=True)
class Plan:
    """One series to invent. steps: relative factor from run index on. absent: run indices without it."""

    case: Case
    metric: str
    unit: Unit
    better: Better
    level: float
    noise: float = 0.01
    steps: tuple[tuple[int, float], ...] = ()
    absent: frozenset[int] = frozenset()
    judged: bool = True

    def factor(self, index: int) -> float:
        product = 1.0
        for start, factor in self.steps:
            product *= factor if index >= start else 1.0
        return product


def seconds(case: Case, metric: str, level: float, **more: object) -> Plan:
    return replace(Plan(case, metric, Unit.SECONDS, Better.LOWER, level), **more)  # type: ignore[arg-type]


def busbw(case: Case, level: float, **more: object) -> Plan:
    plan = Plan(case, "busbw_bytes_per_second", Unit.BYTES_PER_SECOND, Better.HIGHER, level)
    return replace(plan, **more)  # type: ignore[arg-type]


def sha(index: int) -> str:
    return hashlib.sha1(str(index).encode(), usedforsecurity=False).hexdigest()


def commit(index: int, subject: str | None = None) -> Commit:
    when = (START + timedelta(hours=3 * index - 1)).isoformat()
    return Commit(sha(index), subject or f"{SUBJECTS[index % len(SUBJECTS)]} (part {index})", f"Dev {index % 5}",
                  when, "main", main=True)


def finding(plan: Plan, now: float, index: int, *, invalid: bool, noisy: bool) -> Finding:
    baseline = plan.level * plan.factor(index - 1 if index and not plan.steps else -1)
    change = now / baseline - 1
    wide = 0.3 if noisy else 3 * plan.noise
    worse = change > 0 if plan.better is Better.LOWER else change < 0
    verdict, reason = Verdict.PASS, "inside the relevant change"
    if invalid:
        verdict, reason = Verdict.INVALID, "another process used the GPU"
    elif noisy:
        verdict, reason = Verdict.INCONCLUSIVE, "launches disagree; 9 more would decide"
    elif index < 5:
        verdict, reason = Verdict.NO_BASELINE, "fewer than 5 earlier runs"
    elif abs(change) > 0.08:
        verdict = Verdict.REGRESSION if worse else Verdict.IMPROVEMENT
        reason = f"{change:+.1%} against 20 runs, beyond 5 %"
    known = verdict is not Verdict.NO_BASELINE
    return Finding(plan.case.id, plan.metric, plan.unit, "shift", verdict, "value", reason, now,
                   baseline if known else None, change if known else None,
                   (change - wide / 2, change + wide / 2) if known else None, 5, min(index, 20))


def run(plans: tuple[Plan, ...], index: int, rng: random.Random, *, launches: int = 5, invalid: bool = False,
        noisy: bool = False, reported: dict[str, str] | None = None) -> Run:
    present = [plan for plan in plans if index not in plan.absent]
    spread = 12.0 if noisy else 1.0
    drawn = {plan: [plan.level * plan.factor(index) * rng.lognormvariate(0, plan.noise * spread)
                    for _ in range(launches)] for plan in present}
    started = START + timedelta(hours=3 * index)
    made = tuple(
        Launch(i, "head", i, started.isoformat(), 20.0, 18.0,
               tuple(CaseOutcome(case, tuple(Measurement(p.metric, p.unit, p.better, drawn[p][i])
                                             for p in present if p.case == case))
                     for case in dict.fromkeys(p.case for p in present)))
        for i in range(launches))
    findings = tuple(finding(p, sorted(drawn[p])[launches // 2], index, invalid=invalid, noisy=noisy)
                     for p in present if p.judged)
    verdicts = {f.verdict for f in findings}
    overall = next((v for v in (Verdict.INVALID, Verdict.REGRESSION, Verdict.INCONCLUSIVE, Verdict.IMPROVEMENT,
                                Verdict.NO_BASELINE) if v in verdicts), Verdict.PASS)
    environment = Environment(dict(MUST_MATCH), {**REPORTED, "load_average": (index % 7) / 4, **(reported or {})})
    return Run(f"run-{index:05d}", started.isoformat(), (started + timedelta(minutes=4)).isoformat(), commit(index),
               environment, made, overall, {}, findings,
               health={"sm_clock_max_mhz": 1980, "sm_clock_under_load_mhz": 1965, "temperature_max_celsius": 54})


SIZES = tuple(4 * 2**10 * 4**i for i in range(9))


def sweep_plans(steps: tuple[tuple[int, float], ...] = ()) -> tuple[Plan, ...]:
    """Time and busbw of nine sizes: latency-bound below, 300 GB/s above."""
    made: list[Plan] = []
    for size in SIZES:
        level = 12e-6 + size / 300e9
        noise = 0.03 if size < 2**20 else 0.006
        slower = steps if size == 2**24 else ()
        made += [seconds(allreduce(size), "allreduce_seconds", level, noise=noise, steps=slower),
                 busbw(allreduce(size), size / level, noise=noise, steps=tuple((i, 1 / f) for i, f in slower))]
    return tuple(made)


def story(count: int = 120, seed: int = 7) -> list[Run]:
    """The demonstration: an NCCL upgrade brings +20 % at 16 MiB, after an accepted step, sick and noisy runs, a gap."""
    rng = random.Random(seed)  # noqa: S311 - noise, not secrets
    bad = count - 6
    plans = (
        *sweep_plans(((bad, 1.2),)),
        seconds(STEP, "step_seconds", 0.0421, noise=0.004, steps=((count // 3, 0.86),)),
        Plan(STEP, "exposed_comm_ratio", Unit.RATIO, Better.LOWER, 0.17, 0.02,
             absent=frozenset(range(count // 2, count // 2 + 15))),
        Plan(STEP, "sm_active_ratio", Unit.RATIO, Better.HIGHER, 0.71, 0.01, judged=False),
    )
    runs = []
    for index in range(count):
        nccl = {"nccl_version": "2.29.1"} if index >= bad else {}
        driver = {"driver_version": "575.51.03"} if index >= count // 2 else {}
        made = run(plans, index, rng, invalid=index == count - 40, noisy=index in (count - 55, count - 20),
                   reported={**nccl, **driver})
        if index == count // 3 + 2:
            made = replace(made, accepted=Acceptance("fused optimizer is faster", "Dev 2", made.started_at))
        runs.append(made)
    runs[-1] = replace(runs[-1], diagnoses=DIAGNOSES)
    return runs[::-1]


DIAGNOSES = (
    Diagnosis("algorithm_changed", "critical", {"before": "RING/LL128", "now": "RING/SIMPLE", "channels": 16},
              "NCCL picks another protocol for this size since the upgrade",
              "set NCCL_PROTO=^SIMPLE for one run to confirm, then pin NCCL 2.28.3 or report it",
              allreduce(2**24).id),
    Diagnosis("launch_gaps", "info", {"launch_gap_ratio": 0.041}, "The CPU launches kernels late now and then",
              "capture the step in a CUDA graph"),
)


def wide(series: int, count: int, seed: int = 3, launches: int = 5) -> Iterator[Run]:
    """Many series over many commits, newest first, one run in memory at a time."""
    plans = tuple(seconds(allreduce(4096 * (i + 1)), "allreduce_seconds", 20e-6 * (1 + i), noise=0.006,
                          steps=((count - 9, 1.15),) if i == 0 else ()) for i in range(series))
    for index in range(count - 1, -1, -1):
        rng = random.Random(f"{seed} {index}")  # noqa: S311 - noise, not secrets
        yield run(plans, index, rng, launches=launches)


def trace_view(ranks: int = 2, collectives: int = 24, seed: int = 5) -> TraceView:
    """A step whose backward overlaps with bucketed allreduces; rank 1 is late."""
    rng = random.Random(seed)  # noqa: S311 - noise, not secrets
    strips, skews = [], []
    for rank in range(ranks):
        compute = tuple((i * 4e-4, i * 4e-4 + 3.4e-4) for i in range(100))
        communication = tuple((0.014 + i * 1e-3 + rank * 2e-4, 0.014 + i * 1e-3 + 7e-4) for i in range(collectives))
        strips.append(RankStrip(rank, compute, communication))
    for _ in range(collectives):
        skews.append(CollectiveSkew("allreduce 25MiB", abs(rng.gauss(2e-4, 5e-5)), 1.02e-4, int(rng.random() < 0.8)))
    return TraceView("ddp_step, third traced step", tuple(strips), tuple(skews), DIAGNOSES)
