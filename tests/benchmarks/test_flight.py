"""The ranks' side of the flight recorder: a thread that sleeps until it is asked, on every torch that can dump."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.flight import stand_by
from regress.measure.flight_recorder import ask, dump_files, read_dump, wait_for
from tests.benchmarks.ranks import ROOT, collective, launch
from tests.measure.dumps import document, entry

PATIENCE = 60.0


def torch_with(monkeypatch: pytest.MonkeyPatch, **functions: Callable[..., bytes]) -> None:
    """A torch that has these functions to dump with and no other."""
    torch = types.ModuleType("torch")
    torch._C = types.SimpleNamespace(  # type: ignore[attr-defined]
        _distributed_c10d=types.SimpleNamespace(**functions))
    monkeypatch.setitem(sys.modules, "torch", torch)


def good(*_: Any, **__: Any) -> bytes:
    return json.dumps(document(entry(1))).encode()


@pytest.mark.parametrize("present", [False, True])
def test_a_torch_that_cannot_dump_leaves_no_pipe_and_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                               present: bool) -> None:
    torch_with(monkeypatch)
    if not present:
        sys.modules["torch"]._C = types.SimpleNamespace()  # type: ignore[attr-defined]
    before, environment = threading.active_count(), dict[str, str]()
    stand_by(tmp_path, 0, "nccl", environment)
    assert (list(tmp_path.iterdir()), threading.active_count(), environment) == ([], before, {})
    assert not ask(tmp_path, 0)


@pytest.mark.parametrize(("functions", "files"), [
    (["_dump_fr_trace_json", "_dump_nccl_trace_json", "_dump_nccl_trace"], ["all.json", "nccl.json"]),
    (["_dump_nccl_trace_json", "_dump_nccl_trace"], ["nccl.json"]),
    (["_dump_nccl_trace"], ["nccl.pickle"])])
def test_it_dumps_once_with_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, functions: list[str],
                                          files: list[str]) -> None:
    torch_with(monkeypatch, **dict.fromkeys(functions, good))
    stand_by(tmp_path, 3, "gloo", {})
    assert dump_files(tmp_path) == []
    while not ask(tmp_path, 3):
        pass
    assert wait_for(tmp_path, [3], PATIENCE) == []
    assert dump_files(tmp_path) == [tmp_path / f"rank3.flight.{name}" for name in files]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_dump_that_fails_does_not_cost_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                   capfd: pytest.CaptureFixture[str]) -> None:
    def fails() -> bytes:
        raise RuntimeError("invalid UTF-8")
    torch_with(monkeypatch, _dump_fr_trace_json=fails, _dump_nccl_trace_json=good)
    stand_by(tmp_path, 0, "gloo", {})
    while not ask(tmp_path, 0):
        pass
    assert wait_for(tmp_path, [0], PATIENCE) == []
    assert dump_files(tmp_path) == [tmp_path / "rank0.flight.nccl.json"]
    assert capfd.readouterr().err == "comm-regress: no flight recorder dump all.json: invalid UTF-8\n"


@pytest.mark.parametrize(("function", "variable"), [("_dump_fr_trace_json", "TORCH_FR_DUMP_TEMP_FILE"),
                                                    ("_dump_nccl_trace_json", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")])
def test_the_watchdog_writes_to_the_launchs_folder_unless_the_user_chose(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, variable: str) -> None:
    torch_with(monkeypatch, **{function: good})
    monkeypatch.setattr("os.mkfifo", lambda _: (_ for _ in ()).throw(OSError("no named pipes here")))
    chosen: dict[str, str] = {}
    stand_by(tmp_path, 0, "nccl", chosen)
    assert chosen == {variable: str(tmp_path / "flight-timeout-rank")}
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        own = {name: "/mine"}
        stand_by(tmp_path, 0, "nccl", own)
        assert own == {name: "/mine"}
    none: dict[str, str] = {}
    stand_by(tmp_path, 0, "gloo", none)
    assert none == {}


def test_a_rank_whose_main_thread_is_in_a_call_that_never_returns_dumps(tmp_path: Path) -> None:
    """One rank, alone in a collective of two."""
    code = f"""
import os, sys, threading
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from benchmarks.flight import stand_by
import torch, torch.distributed as dist
stand_by(Path({str(tmp_path)!r}), int(sys.argv[1]), "gloo", os.environ)
store = dist.FileStore({str(tmp_path / "store")!r}, 2)
dist.init_process_group("gloo", store=store, rank=int(sys.argv[1]), world_size=2)
if sys.argv[1] == "1":
    sys.stdin.read()
called = dist.all_reduce(torch.ones(256), async_op=True)
print("called", flush=True)
called.wait()
"""
    ranks = [subprocess.Popen([sys.executable, "-c", code, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) for rank in (0, 1)]
    try:
        entered = ranks[0].stdout
        assert entered is not None
        assert entered.readline() == b"called\n"
        assert ask(tmp_path, 0)
        assert wait_for(tmp_path, [0], PATIENCE) == []
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    calls = read_dump(dump_files(tmp_path, 0)).collectives
    assert [(call.text, call.done) for call in calls] == [("gloo:all_reduce #1 of 1KiB float32", False)]


def test_a_launch_that_is_well_is_never_asked(tmp_path: Path) -> None:
    ended = launch(tmp_path, collective("allreduce", 4096))
    assert ended.statuses == (0, 0), ended.stderr
    assert dump_files(tmp_path) == []
    assert not ask(tmp_path, 0)
