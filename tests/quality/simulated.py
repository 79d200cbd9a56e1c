"""Builds made of noise with known effects, run through the judge's own decision, batch for batch.

Everything is seeded. A build has `series` independent series of which the first one may be slower by `effect`; each
has a window of earlier runs with three launches a run. Screening, suspicion, re-measurement, looks and Holm's
correction are those of `regress.judge`; only the records around the numbers are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regress.judge.confirm import block_order
from regress.judge.decision import Decision, decide
from regress.judge.detectors import ALPHA
from regress.judge.scale import Scale
from regress.judge.statistics import FRESH_LOOKS, PAIRED_LOOKS, holm
from regress.options import Effect
from regress.record import Verdict

SCREENING = 3
MOST = max(PAIRED_LOOKS)
LOWER = Scale(log=True, worse=1)

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Noise:
    """How launches of unchanged code vary.

    cv: standard deviation of a launch on the log scale, spikes apart. shape: "normal", "lognormal" (long right tail),
    "spikes" (5 % of launches are slower by 10 to 50 %), "bimodal" (3 of 10 launches sit four standard deviations of
    the lower mode higher; scaled back to cv). autocorrelation: between neighbouring launches of a run (AR(1)).
    session: share of the variance that all launches of one run have in common.
    """

    cv: float
    shape: str = "normal"
    autocorrelation: float = 0.0
    session: float = 0.0

    def launches(self, rng: np.random.Generator, count: int) -> Values:
        """Log times of `count` launches of one run, in order."""
        common = rng.normal() * np.sqrt(self.session)
        own = self._correlated(rng, count) * np.sqrt(1 - self.session)
        values = self.cv * (common + own)
        if self.shape == "spikes":
            hit = rng.random(count) < 0.05
            values = values + hit * np.log1p(rng.uniform(0.1, 0.5, count))
        return np.asarray(values)

    def _correlated(self, rng: np.random.Generator, count: int) -> Values:
        fresh = self._independent(rng, count)
        if not self.autocorrelation:
            return fresh
        rho, out = self.autocorrelation, np.empty(count)
        out[0] = fresh[0]
        for i in range(1, count):
            out[i] = rho * out[i - 1] + np.sqrt(1 - rho**2) * fresh[i]
        return out

    def _independent(self, rng: np.random.Generator, count: int) -> Values:
        if self.shape == "lognormal":
            sigma = 0.75
            raw = rng.lognormal(0.0, sigma, count)
            mean, variance = np.exp(sigma**2 / 2), (np.exp(sigma**2) - 1) * np.exp(sigma**2)
            return np.asarray((raw - mean) / np.sqrt(variance))
        if self.shape == "bimodal":
            upper = rng.random(count) < 0.3
            raw = rng.normal(0, 1, count) + 4 * upper
            return np.asarray((raw - 1.2) / np.sqrt(1 + 16 * 0.21))
        return rng.normal(0, 1, count)


@dataclass(frozen=True, slots=True)
class Gate:
    """How builds are judged. base: interleaved confirmation. runs: earlier runs in the window."""

    effect: Effect
    base: bool = True
    runs: int = 20
    series: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """One build. launches: head and base launches together, screening included; pairs: fresh head launches."""

    verdict: Verdict
    launches: int
    pairs: int


def build(rng: np.random.Generator, noise: Noise, gate: Gate, change: float) -> Outcome:
    """One build whose first series changed by `change` (0.05 is 5 % slower)."""
    shifts = [np.log1p(change)] + [0.0] * (gate.series - 1)
    windows = [[list(np.exp(noise.launches(rng, SCREENING))) for _ in range(gate.runs)] for _ in shifts]
    length = SCREENING + 2 * MOST
    sessions = [noise.launches(rng, length) for _ in shifts]
    screened = [decide(list(np.exp(s[:SCREENING] + shift)), window, [], LOWER, gate.effect)
                for s, shift, window in zip(sessions, shifts, windows, strict=True)]
    findings: dict[int, Decision | None] = dict(enumerate(screened))
    undecided = [i for i, found in findings.items()
                 if found is None or found.verdict in (Verdict.REGRESSION, Verdict.INCONCLUSIVE)]
    used, fresh = SCREENING, 0
    roles = _order(rng, gate.base)
    for look in PAIRED_LOOKS if gate.base else FRESH_LOOKS:
        suspects = [i for i in undecided if gate.base or _worse(findings[i])]
        if not suspects:
            break
        fresh = look
        taken = look * (2 if gate.base else 1)
        for i in suspects:
            measured = sessions[i][SCREENING:SCREENING + taken]
            head = np.exp(measured[roles[:taken]] + shifts[i])
            base = np.exp(measured[~roles[:taken]])
            findings[i] = decide(list(head), windows[i], list(base), LOWER, gate.effect, confirmed=True)
        used = SCREENING + taken
        settled = set(suspects) - set(_open(findings, suspects, len(suspects) if gate.base else gate.series))
        undecided = [i for i in undecided if i not in settled]
    return Outcome(_verdict(findings, undecided), used, fresh)


def _worse(found: Decision | None) -> bool:
    """Without a base only what looks worse is measured again."""
    return found is None or (found.relevant and found.comparison.estimate > 0)


def _order(rng: np.random.Generator, base: bool) -> npt.NDArray[np.bool_]:
    if not base:
        return np.ones(MOST, dtype=bool)
    order = block_order(MOST, int(rng.integers(2**31)))
    return np.array([role == "head" for role in order])


def _open(findings: dict[int, Decision | None], suspects: list[int], family: int) -> list[int]:
    """The suspects that are still undecided after this look, with Holm's correction for the family."""
    decisions = [(i, findings[i]) for i in suspects]
    p_values = [1.0 if found is None else found.p_value for _, found in decisions]
    adjusted = holm([*p_values, *[1.0] * (family - len(p_values))])
    still = []
    for (i, found), p in zip(decisions, adjusted, strict=False):
        sure = found is not None and found.significant and found.relevant and p <= ALPHA
        if not sure and (found is None or found.verdict is not Verdict.PASS):
            still.append(i)
    return still


def _verdict(findings: dict[int, Decision | None], still: list[int]) -> Verdict:
    verdicts = [found.verdict for i, found in findings.items() if found is not None and i not in still]
    if Verdict.REGRESSION in verdicts:
        return Verdict.REGRESSION
    return Verdict.INCONCLUSIVE if still else Verdict.PASS


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares over builds, mean launches of a build, and the shares that were red within 10 and 20 fresh pairs."""

    red: float
    inconclusive: float
    launches: float
    red_within_10: float
    red_within_20: float
    builds: int


def rates(noise: Noise, gate: Gate, change: float, builds: int, seed: int) -> Rates:
    """Simulates that many builds from one seed."""
    rng = np.random.default_rng(seed)
    outcomes = [build(rng, noise, gate, change) for _ in range(builds)]
    red = [o for o in outcomes if o.verdict is Verdict.REGRESSION]
    return Rates(len(red) / builds, sum(o.verdict is Verdict.INCONCLUSIVE for o in outcomes) / builds,
                 float(np.mean([o.launches for o in outcomes])), sum(o.pairs <= 10 for o in red) / builds,
                 sum(o.pairs <= 20 for o in red) / builds, builds)
