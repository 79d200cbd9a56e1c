"""Confirmation: what is in doubt is measured again, beside a base where there is one, until decided or time is up."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from regress.errors import RegressError
from regress.judge.baseline import Baseline, environment_changes
from regress.judge.confirm import (
    BATCH,
    FEWEST,
    Budget,
    Plan,
    block_order,
    doubtful,
    fitting,
    next_measurement,
    unaffordable,
)
from regress.judge.verdict import Judgement, judge
from regress.measure.base import BaseCheckout, base_checkout
from regress.measure.health import HealthMonitor
from regress.measuring import Campaign, Task
from regress.record import Verdict
from regress.units import format_seconds

if TYPE_CHECKING:
    from regress.gate_work import GateWork

ENVIRONMENT_OF_RANKS = ("torch_", "nccl", "driver_", "image", "python_", "variable.", "nccl_conf.")
"""Beginnings of reported facts that change what both head and base run in: a base measured in today's environment
cannot show what came with a new NCCL."""


@dataclass(slots=True)
class Confirmation:
    """The loop from judging to measuring again. base_sha: the commit to confirm against, None without one.

    stack: keeps the base's checkout for as long as the gate runs. fresh: head launches made since screening.
    baseless: ids of cases that the base was tried with and cannot measure.
    """

    work: GateWork
    campaign: Campaign
    baseline: Baseline
    health: HealthMonitor
    stack: ExitStack
    base_sha: str | None
    base: BaseCheckout | None = None
    fresh: int = 0
    baseless: set[str] = field(default_factory=set)

    def run(self) -> Judgement:
        """The judgement that stands in the end."""
        work, gate = self.work, self.work.gate
        policies = work.policies()
        self.settle_base()
        self.meet_base()
        while True:
            unfit = work.health_notes(self.health)
            judgement = judge(self.campaign.launches, self.baseline, policies, planned=work.cases, health=unfit)
            has_base = self.base_sha is not None and any(
                suspect.case.id not in self.baseless for suspect in judgement.suspects)
            suspects = doubtful(judgement, has_base=has_base)
            budget = Budget(work.seconds_left(), self.campaign.expected([suspect.case for suspect in suspects]))
            # On a machine that is not to be believed, more launches would decide nothing.
            plan = next_measurement(judgement, self.fresh, budget, has_base=has_base, seed=work.seed) \
                if gate.config.gate.confirm and not unfit else None
            if plan is None:
                short = unaffordable(judgement, budget, has_base=has_base)
                if short is not None:
                    work.warn(short)
                self.advise(judgement)
                return judgement
            if has_base and not self.check_out():
                continue
            self.measure(plan)
            if plan.traced:
                work.trace(self.campaign, plan.cases, plan.session, self.baseline, self.health)

    def measure(self, plan: Plan) -> None:
        """The plan's launches; one for each world size in it.

        A base that cannot be run at all (its Python has no torch) is given up: what head showed is worth more.
        """
        self.work.observer.message(plan.reason)
        tasks = [Task(cases, role, plan.session, self.work.seed + self.fresh + number,
                      self.base if role == "base" else None)
                 for number, role in enumerate(plan.roles)
                 for size in sorted({case.world_size for case in plan.cases})
                 if (cases := tuple(case for case in plan.cases if case.world_size == size
                                    and (role == "head" or case.id not in self.baseless)))]
        try:
            for _ in self.campaign.run(tasks):
                pass
        except RegressError as error:
            if "base" not in plan.roles:
                raise
            self.work.warn(f"no base to confirm against: {error.text}")
            self.base_sha = None
        self.fresh += plan.roles.count("head")
        self.note_baseless()

    def note_baseless(self) -> None:
        """Gives the base up for the cases that it cannot measure: its commit lacks a module, a submodule, an extension.

        They go on against the window; the base's ranks ended well, so that nothing else would say so.
        """
        errors: dict[str, list[str | None]] = {}
        for launch in self.campaign.launches:
            for outcome in launch.outcomes if launch.role == "base" else ():
                errors.setdefault(outcome.case.id, []).append(outcome.error)
        for case, seen in errors.items():
            if case not in self.baseless and all(error is not None for error in seen):
                self.baseless.add(case)
                self.work.warn(f"no base to confirm {case} against: all {len(seen)} launches of the base failed "
                               f"({seen[0]}), so that only earlier runs are left to judge it by")

    def advise(self, judgement: Judgement) -> None:
        """Says what would decide, where a window alone did not and there is a base to be had."""
        gate = self.work.gate
        open_cases = {finding.case for finding in judgement.findings
                      if finding.detector == "shift" and finding.verdict is Verdict.INCONCLUSIVE}
        if open_cases and gate.request.base is None and self.base_sha is None and gate.commit.sha is not None:
            self.work.warn(f"{len(open_cases)} case{'s' if len(open_cases) > 1 else ''} undecided against the window "
                           "alone; --comm-regress-base REF measures that commit and this one interleaved")

    def check_out(self) -> bool:
        """Makes the base's checkout, once. Where git cannot, the gate goes on without: launches are worth more."""
        if self.base is None and self.base_sha is not None:
            try:
                self.base = self.stack.enter_context(base_checkout(
                    self.work.gate.request.root, self.base_sha, self.campaign.entrust))
            except RegressError as error:
                self.work.warn(f"no base to confirm against: {error.text}")
                self.base_sha = None
        return self.base is not None

    def meet_base(self) -> None:
        """Measures cases without earlier runs against a base that was asked for: nothing else can judge them."""
        gate = self.work.gate
        if gate.request.base is None or not gate.config.gate.confirm or self.base_sha is None:
            return
        new = tuple(case for case in self.work.cases if not any(
            self.baseline.window(case.id, metric) for _, metric in gate.policies((case,))))
        what = f"{len(new)} case{'s' if len(new) > 1 else ''} without earlier runs"
        budget = Budget(self.work.seconds_left(), self.campaign.expected(new))
        pairs = fitting(BATCH, budget, has_base=True)
        if new and pairs < FEWEST:
            least = 2 * FEWEST * budget.launch_seconds
            needed = self.work.budget - self.work.seconds_left() + least
            self.work.warn(f"{what} not measured beside the base: {FEWEST} pairs of base and head take about "
                           f"{format_seconds(least)}, for which a time budget of about {format_seconds(needed)} is "
                           f"needed and not {format_seconds(self.work.budget)}")
        elif new and self.check_out():
            self.measure(Plan(new, block_order(pairs, self.work.seed), 1, False,
                              f"{what}: {pairs} pairs of base and head, interleaved"))

    def settle_base(self) -> None:
        """Gives up a base that nobody asked for where the environment changed: head and base would both run in the new
        one, and what came with it would cancel. A base that was asked for is kept, and the doubt is said.
        """
        gate, baseline = self.work.gate, self.baseline
        if self.base_sha is None or not baseline.runs or gate.config.gate.base_python is not None:
            return
        changes = [text for text in environment_changes(gate.environment, baseline.runs[-1].environment)
                   if text.startswith(ENVIRONMENT_OF_RANKS)]
        if not changes:
            return
        what = "; ".join(changes)
        if gate.request.base is None:
            self.base_sha = None
            self.work.warn(f"the environment changed ({what}), so suspicions were confirmed against the window and not "
                           "against a base in this same environment; `gate: {base_python: ...}` gives the base its own")
        else:
            self.work.warn(f"the environment changed ({what}) and the base runs in the new one too: what came with it "
                           "does not show; `gate: {base_python: ...}` gives the base its own")
