"""Puts one known fault into a rank. REGRESS_SELFTEST_FAULT names it; without that, or outside a rank, nothing happens.

The workloads stay as they are: a fault changes what they call, right after torch has loaded it. Standard library only,
because this runs in every rank before anything else.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

COLLECTIVES = "torch.distributed.distributed_c10d"
DDP = "torch.nn.parallel.distributed"
SLEEP_SECONDS = 0.05
BARRIERS = 60
LATE_CALL = 4
"""The call that dies or hangs: the first few verify and warm up."""

Change = Callable[[ModuleType], None]


class After(importlib.abc.MetaPathFinder):
    """Changes one module right after it has been loaded."""

    def __init__(self, module: str, change: Change) -> None:
        self.module, self.change = module, change

    def find_spec(self, fullname: str, path: Sequence[str] | None,
                  _target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        """The usual spec of that module, with the change after its loading; None for every other."""
        if fullname != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            self.change(module)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


def before(holder: Any, name: str, extra: Callable[..., None]) -> None:
    """Calls `extra` with the number of the call and its arguments before each call of that function."""
    plain, count = getattr(holder, name), 0

    def changed(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        extra(count, *args, **kwargs)
        return plain(*args, **kwargs)

    setattr(holder, name, changed)


def before_step(extra: Callable[[], None]) -> tuple[str, Change]:
    """Something more at the start of every training step."""
    return DDP, lambda module: before(module.DistributedDataParallel, "forward", lambda *_, **__: extra())


def before_allreduce(extra: Callable[[int, Any], None]) -> tuple[str, Change]:
    """Something more before every all-reduce that Python calls, given its number and tensor."""
    return COLLECTIVES, lambda module: before(module, "all_reduce", lambda n, tensor, *_, **__: extra(n, tensor))


def small_buckets() -> tuple[str, Change]:
    """Gradients in buckets of a hundredth of a MiB on a CPU and of a quarter of a MiB on GPUs."""
    def change(module: ModuleType) -> None:
        plain = module.DistributedDataParallel.__init__

        def changed(self: Any, *args: Any, **kwargs: Any) -> None:
            plain(self, *args, **{**kwargs, "bucket_cap_mb": 0.25 if kwargs.get("device_ids") else 0.01})

        module.DistributedDataParallel.__init__ = changed
    return DDP, change


def nan_gradient() -> tuple[str, Change]:
    """The gradient of the first parameter becomes NaN on this rank, before it is reduced."""
    def spoil(_count: int, _ddp: Any, model: Any, **_options: Any) -> None:
        next(iter(model.parameters())).register_hook(lambda gradient: gradient * float("nan"))

    return DDP, lambda module: before(module.DistributedDataParallel, "__init__", spoil)


def extra_synchronise() -> tuple[str, Change]:
    """The ranks meet for nothing in every step: barriers on a CPU, waits for the device after every layer on GPUs."""
    def step(number: int, model: Any, *_inputs: Any, **_options: Any) -> None:
        torch = sys.modules["torch"]
        if next(model.parameters()).device.type == "cpu":
            for _ in range(BARRIERS):
                torch.distributed.barrier()
        elif number == 1:
            for layer in model.module.modules():
                layer.register_forward_hook(lambda *_: torch.cuda.synchronize())

    return DDP, lambda module: before(module.DistributedDataParallel, "forward", step)


def pageable_copies() -> tuple[str, Change]:
    """Every step copies 64 MiB from memory that is not pinned."""
    def copy() -> None:
        torch = sys.modules["torch"]
        torch.empty(1 << 24).to("cuda")
    return before_step(copy)


def wrong_value() -> tuple[str, Change]:
    """This rank contributes one more than it should to one element."""
    def spoil(_: int, tensor: Any) -> None:
        tensor.view(-1)[3] += 1
    return before_allreduce(spoil)


def rank_killed() -> tuple[str, Change]:
    """This rank is killed in the middle of a case."""
    return before_allreduce(lambda n, _: os.kill(os.getpid(), signal.SIGKILL) if n == LATE_CALL else None)


def hang() -> tuple[str, Change]:
    """This rank never comes to a collective."""
    return before_allreduce(lambda n, _: time.sleep(3600) if n == LATE_CALL else None)


def sleep() -> tuple[str, Change]:
    """A pause at the start of every training step."""
    return before_step(lambda: time.sleep(SLEEP_SECONDS))


ONE_RANK = {"sleep-one-rank": sleep, "wrong-value": wrong_value, "rank-killed": rank_killed, "hang": hang,
            "nan-gradient": nan_gradient}
ALL_RANKS = {"sleep-all-ranks": sleep, "small-buckets": small_buckets, "extra-synchronise": extra_synchronise,
             "pageable-copies": pageable_copies}
FAULTY_RANK = "1"


def inject(fault: str, rank: str) -> None:
    """Makes ready what this rank must do wrong."""
    made = ALL_RANKS.get(fault) or (ONE_RANK.get(fault) if rank == FAULTY_RANK else None)
    if made is not None:
        sys.meta_path.insert(0, After(*made()))


def give_way() -> None:
    """Lets the sitecustomize that this one stands before run too, if there is one."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if not entry or str(Path(entry).resolve()) != here]
    if importlib.machinery.PathFinder.find_spec("sitecustomize") is not None:
        del sys.modules["sitecustomize"]
        importlib.import_module("sitecustomize")


if "REGRESS_SELFTEST_FAULT" in os.environ and "RANK" in os.environ:
    inject(os.environ["REGRESS_SELFTEST_FAULT"], os.environ["RANK"])
    give_way()
