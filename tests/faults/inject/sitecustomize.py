"""Faults from outside: Python loads this file by itself, in the gate and in every rank, when it is on PYTHONPATH.

COMM_REGRESS_TEST_FAULT names the function below that is run; RANK is set in rank processes only.
"""

from __future__ import annotations

import atexit
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

RANK = os.environ.get("RANK")
C10D = "torch.distributed.distributed_c10d"


class After(importlib.abc.MetaPathFinder):
    """Changes one module right after it has been loaded."""

    def __init__(self, module: str, change: Callable[[ModuleType], None]) -> None:
        self.module, self.change = module, change

    def find_spec(self, fullname: str, path: Sequence[str] | None,
                  _target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            self.change(module)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


class KeepingFirst(list[Any]):
    """A meta path on which our finders stay in front of those that come later, pytest's among them."""

    def insert(self, index: Any, item: Any) -> None:
        ours = 0 if isinstance(item, After) else sum(isinstance(finder, After) for finder in self)
        super().insert(max(int(index), ours), item)


def around(name: str, extra: Callable[[int], None]) -> Callable[[ModuleType], None]:
    """A change that calls `extra` with the number of the call before each call of the module's function."""
    def change(module: ModuleType) -> None:
        swift, count = getattr(module, name), 0

        def slow(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            extra(count)
            return swift(*args, **kwargs)

        setattr(module, name, slow)
    return change


def in_rank(rank: str | None, name: str, extra: Callable[[int], None]) -> None:
    """The change above to a function of torch.distributed, in one rank or in all."""
    if RANK is not None and rank in (None, RANK):
        sys.meta_path.insert(0, After(C10D, around(name, extra)))


def slow_allreduce() -> None:
    in_rank(None, "all_reduce", lambda _: time.sleep(0.03))


def dies_before() -> None:
    in_rank("1", "init_process_group", lambda _: os._exit(7))


def dies_during() -> None:
    in_rank("1", "all_reduce", lambda count: os.kill(os.getpid(), signal.SIGKILL) if count == 4 else None)


def dies_after() -> None:
    if RANK == "1":
        atexit.register(os._exit, 9)


def hangs() -> None:
    in_rank("1", "all_reduce", lambda count: time.sleep(3600) if count == 4 else None)


def wrong() -> None:
    """Rank 1 contributes one more than it should to one element."""
    def change(module: ModuleType) -> None:
        right = module.all_reduce

        def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            tensor.view(-1)[3] += 1
            return right(tensor, *args, **kwargs)

        module.all_reduce = all_reduce  # type: ignore[attr-defined]
    if RANK == "1":
        sys.meta_path.insert(0, After(C10D, change))


def second_case_crawls() -> None:
    """The first collective that is called runs on; the other one takes a second a call."""
    first: list[str] = []

    def crawl(name: str) -> Callable[[int], None]:
        def extra(_: int) -> None:
            first.append(name)
            if first[0] != name:
                time.sleep(1.0)
        return extra

    def change(module: ModuleType) -> None:
        for name in ("all_reduce", "all_gather_into_tensor"):
            around(name, crawl(name))(module)

    if RANK is not None:
        sys.meta_path.insert(0, After(C10D, change))


def slow_start() -> None:
    """The gate takes long to load, and leaves a file when it has begun to."""
    def change(_: ModuleType) -> None:
        Path(os.environ["COMM_REGRESS_TEST_FOLDER"], "loading").touch()
        time.sleep(60)

    sys.meta_path.insert(0, After("regress.measuring", change))


def agent_comes_late() -> None:
    """The agent of launches stands still before it opens its pipe, as long as the file is there that it leaves."""
    waits = Path(os.environ["COMM_REGRESS_TEST_FOLDER"], "agent waits")

    def change(_: ModuleType) -> None:
        if "regress.measure.agent as ours" in " ".join(sys.orig_argv):
            waits.touch()
            while waits.exists():
                time.sleep(0.02)

    sys.meta_path.insert(0, After("regress.measure.agent", change))


def port_taken() -> None:
    """Once: the first rank 0 finds its port taken."""
    marker = Path(os.environ["COMM_REGRESS_TEST_FOLDER"], "port was taken")

    def refuse(_: int) -> None:
        if not marker.exists():
            marker.touch()
            raise RuntimeError("The server socket has failed to listen on any local network address. port: 29500, "
                               "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use")
    in_rank("0", "init_process_group", refuse)


def no_torch() -> None:
    """A Python that has everything but torch."""
    class Without(importlib.machinery.PathFinder):
        @classmethod
        def find_spec(cls, fullname: str, path: Sequence[str] | None = None,
                      target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
            if fullname.partition(".")[0] == "torch":
                return None
            return importlib.machinery.PathFinder.find_spec(fullname, path, target)

    place = sys.meta_path.index(importlib.machinery.PathFinder)
    sys.meta_path[place] = Without


def no_distributed() -> None:
    """What a torch built with USE_DISTRIBUTED=0 is: the Python files are there, the extension has none of it."""
    class Deleting(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, _path: Sequence[str] | None,
                      _target: ModuleType | None = None) -> None:
            if fullname == "torch.distributed" and hasattr(sys.modules["torch"]._C, "_c10d_init"):
                del sys.modules["torch"]._C._c10d_init
    sys.meta_path.insert(0, Deleting())


def disk_full() -> None:
    """No run file can be written."""
    def change(module: ModuleType) -> None:
        write = module.write_whole

        def write_whole(path: Path, *args: Any, **kwargs: Any) -> Any:
            if path.parent.name == "runs":
                raise OSError(28, "No space left on device")
            return write(path, *args, **kwargs)

        module.write_whole = write_whole  # type: ignore[attr-defined]
    sys.meta_path.insert(0, After("regress.whole_file", change))


def private_lock(module: ModuleType) -> None:
    """Gates of a test meet at a lock of their own, not at that of the whole host."""
    module.host_lock_path = lambda: Path(os.environ["COMM_REGRESS_TEST_FOLDER"], "host.lock")  # type: ignore[attr-defined]


def quiet_host(module: ModuleType) -> None:
    """How busy this host is does not matter to a test of anything else, and would turn what is red inconclusive."""
    module.host_before = dict  # type: ignore[attr-defined]
    module.cpu_facts = lambda *_: {}  # type: ignore[attr-defined]


sys.meta_path = KeepingFirst(sys.meta_path)
sys.meta_path.insert(0, After("regress.measure.lock", private_lock))
sys.meta_path.insert(0, After("regress.measure.health", quiet_host))
if fault := os.environ.get("COMM_REGRESS_TEST_FAULT"):
    globals()[fault]()
