"""`regress tune`: which settings make the cases faster on this machine, judged as the gate judges."""

from __future__ import annotations

import argparse
import secrets
import sys
from contextlib import ExitStack
from pathlib import Path

from regress.commands import print_json
from regress.config import matches
from regress.errors import EXIT_INTERRUPTED, EnvironmentUnfitError, UsageError
from regress.judge.scale import default_effect
from regress.measure.lock import hold_lock, host_lock_path
from regress.measure.mps import own_mps
from regress.measure.torchrun import TorchrunLauncher
from regress.measuring import Campaign, Observer
from regress.options import parse_effect
from regress.record import Case
from regress.session import Gate, GateRequest, open_gate
from regress.tuning.report import trial_json, trial_text
from regress.tuning.settings import Setting, default_settings, parse_setting, refusal
from regress.tuning.trial import INTERRUPTED, Trial
from regress.units import Unit, parse_quantity

_ROUNDS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to try, on which cases, and for how long."""
    parser.add_argument("--try", dest="settings", action="append", default=[], metavar="SETTING",
                        help="NCCL_PROTO=Simple, bucket_cap_mb=50, or several at once in quotes; repeatable (default: "
                             "a list that suits the cases)")
    parser.add_argument("--case", action="append", default=[], metavar="PATTERN",
                        help="only cases whose id matches this shell pattern; repeatable")
    parser.add_argument("--config", metavar="PATH", help="thresholds file whose cases are used (default: "
                                                         "thresholds.yaml here, else the packaged one)")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="where to measure")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, metavar="N",
                        help=f"launches of each setting, at most (default: {_ROUNDS}; decided after 5, 10, 15, 20, 30)")
    parser.add_argument("--budget", default="15min", metavar="TIME", help="wall-clock bound (default: 15min)")
    parser.add_argument("--effect", metavar="CHANGE",
                        help="the change that matters, such as 3%% (default: what matters to the gate)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


class _OnStderr:
    """Says what is worth knowing on stderr, so that stdout holds the result alone."""

    def message(self, text: str) -> None:
        """A line of its own."""
        print(text, file=sys.stderr, flush=True)

    def case_started(self, text: str) -> None:
        """Every launch of every setting begins cases: too much to show."""

    def progress(self, text: str) -> None:
        """Too much to show."""


def run(arguments: argparse.Namespace) -> int:
    """Tries, judges, prints. Status 0 whatever helps; 10 where the cases fail as they are."""
    if arguments.rounds < 3:
        raise UsageError(f"{arguments.rounds} rounds", where="--rounds", accepted="3 or more: fewer tell nothing")
    seconds = parse_quantity(arguments.budget, Unit.SECONDS, "--budget")
    if seconds <= 0:
        raise UsageError(f"a budget of {arguments.budget}", where="--budget", accepted="more than 0 s")
    effect = None if arguments.effect is None else parse_effect(arguments.effect, Unit.SECONDS, "--effect")
    gate = _gate(arguments)
    if effect is None and gate.ranks.shared_gpu:
        effect = default_effect(Unit.SECONDS, "cpu")  # ranks that share a GPU talk over sockets, and are as noisy
    cases = _cases(gate, arguments.case)
    settings = _settings(gate, cases, arguments.settings)
    observer = _OnStderr()
    for line in gate.header():
        observer.message(f"regress tune: {line}")
    with ExitStack() as stack:
        stack.enter_context(hold_lock(host_lock_path(), "the devices of this host",
                                      wait_seconds=gate.config.gate.lock_wait, on_wait=observer.message))
        trial = Trial(_campaign(gate, stack, observer), cases, settings, arguments.rounds, seconds,
                      secrets.randbits(32), effect)
        result = trial.run()
    if arguments.json:
        print_json(trial_json(result))
    else:
        sys.stdout.write(trial_text(result))
    return EXIT_INTERRUPTED if result.stopped == INTERRUPTED else 0


def _gate(arguments: argparse.Namespace) -> Gate:
    config = Path(arguments.config) if arguments.config else None
    if config is None and Path("thresholds.yaml").is_file():
        config = Path("thresholds.yaml")
    return open_gate(GateRequest(root=Path.cwd(), config=config, history=".comm-regress", device=arguments.device,
                                 trace="none", measure=False))


def _cases(gate: Gate, patterns: list[str]) -> tuple[Case, ...]:
    chosen = [planned for planned in gate.plan
              if not patterns or any(matches(planned.case.id, pattern) for pattern in patterns)]
    if not chosen:
        raise UsageError(f"no case matches {', '.join(patterns)}", where="--case",
                         accepted=", ".join(planned.case.id for planned in gate.plan))
    fit = tuple(planned.case for planned in chosen if planned.unfit is None)
    if not fit:
        raise EnvironmentUnfitError(f"none of the {len(chosen)} cases can run here: {chosen[0].unfit}",
                                    accepted="a machine that has what the cases need")
    return fit


def _settings(gate: Gate, cases: tuple[Case, ...], texts: list[str]) -> tuple[Setting, ...]:
    """As named, else what suits the cases; at least one must be possible on some case."""
    options: type = gate.shelves.workloads["ddp_step"].options
    settings = tuple(parse_setting(text, options) for text in dict.fromkeys(texts)) or \
        tuple(setting for setting in default_settings(cases, options)
              if any(refusal(setting, case) is None for case in cases))
    if not settings:
        raise UsageError("nothing is worth a try on these cases by default", where="regress tune",
                         accepted="--try SETTING, or cases of a training step")
    reasons = {(setting.name, refusal(setting, case)) for setting in settings for case in cases}
    if all(reason is not None for _, reason in reasons):
        said = "; ".join(sorted(f"{name}: {reason}" for name, reason in reasons))
        raise UsageError(f"nothing can be tried: {said}", where="--try", accepted="settings that suit the cases")
    return settings


def _campaign(gate: Gate, stack: ExitStack, observer: Observer) -> Campaign:
    """Where launches are made, with the multi-process service where ranks share the one GPU."""
    campaign = Campaign(gate.config, gate.ranks, gate.request.root,
                        {name: gate.shelves.metrics_of(name) for name in gate.shelves.workloads}, observer)
    stack.enter_context(campaign)
    launcher = campaign.launcher(gate.ranks.world_size)
    if gate.ranks.shared_gpu and isinstance(launcher, TorchrunLauncher):
        service = stack.enter_context(own_mps(mark=launcher.mark, entrust=launcher.entrust))
        campaign.environment = dict(service.environment)
        if service.reason is not None:
            observer.message(service.reason)
    return campaign
