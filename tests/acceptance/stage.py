"""The gate with recorded launches in place of rank processes, and one machine whatever the test runs on.

As a pytest plugin (`-p tests.acceptance.stage`) it reads what to play from the variable COMM_REGRESS_SCENARIO; tests
in their own process call `install` with a patching function that is undone afterwards.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import regress.commands.run
import regress.gate_items
import regress.gate_work
import regress.session
from regress.catalog import open_shelves
from regress.errors import EnvironmentUnfitError
from regress.measure.launch import Launcher, LaunchResult
from regress.measure.ranks import RankPlan
from regress.measure.replay import ReplayLauncher
from regress.record import Environment
from regress.session import Gate, GateRequest
from regress.tracing import Tracer

VARIABLE = "COMM_REGRESS_SCENARIO"


@dataclass(frozen=True, slots=True)
class Scenario:
    """recording: the file to play. interrupt_at: the launch during which Ctrl-C is pressed.

    torch, cpu: version and model as the environment has them. unfit: (level, text) of what is wrong with the machine.
    """

    recording: str
    lock: str
    interrupt_at: int | None = None
    torch: str = "2.13.0"
    cpu: str = "Example CPU"
    unfit: tuple[tuple[str, str], ...] = ()


class Interrupted:
    """Plays launches until Ctrl-C is pressed."""

    def __init__(self, player: Launcher, at: int) -> None:
        self._player, self._at = player, at

    def launch(self, *arguments: Any, index: int, **settings: Any) -> LaunchResult:
        if index == self._at:
            raise KeyboardInterrupt
        return self._player.launch(*arguments, index=index, **settings)


def install(patch: Callable[[object, str, object], None], scenario: Scenario) -> None:
    """Puts the scenario in the place of the machine. patch: as `MonkeyPatch.setattr` with a target."""
    def factory(_world_size: int) -> Launcher:
        player = ReplayLauncher.from_files([Path(scenario.recording)])
        return player if scenario.interrupt_at is None else Interrupted(player, scenario.interrupt_at)

    opened = regress.session.open_gate

    def open_gate(request: GateRequest) -> Gate:
        gate = opened(request)
        gate.factory, gate.tracer, gate.devices = factory, Tracer("none"), None
        gate._environment = Environment(
            {"device": "cpu", "backend": "gloo", "shared_gpu": False, "cpu_model": scenario.cpu,
             "cpu_cores_allowed": 2},
            {"torch_version": scenario.torch, "host": "example"})
        return gate

    patch(regress.gate_items, "open_session_gate", open_gate)
    patch(regress.commands.run, "open_gate", open_gate)
    patch(regress.session, "plan_ranks", two_ranks)
    patch(regress.session, "host_lock_path", lambda: Path(scenario.lock))
    patch(regress.gate_work, "assess", lambda _facts: list(scenario.unfit))


def two_ranks(device: str = "auto", world_size: int | None = None) -> RankPlan:
    """A machine without GPUs and with two cores."""
    if device == "cuda":
        raise EnvironmentUnfitError("no usable NVIDIA GPU", where="--comm-regress-device cuda")
    if world_size is not None and world_size > 2:
        raise EnvironmentUnfitError(f"{world_size} ranks on 2 CPU cores", accepted="at most 2")
    return RankPlan(world_size or 2, "cpu", "gloo", False, 1)


def load_everything() -> None:
    """Imports what the gate imports late: pytester forgets modules that an inner run was the first to import."""
    for name in ("regress.cli", "regress.history.folder", "regress.history.exchange", "jsonschema.validators",
                 "requests", "yaml",
                 *(f"regress.commands.{name}" for name in ("history", "compare", "schema", "backtest"))):
        importlib.import_module(name)
    open_shelves()


if VARIABLE in os.environ:
    install(setattr, msgspec.json.decode(os.environ[VARIABLE], type=Scenario))
