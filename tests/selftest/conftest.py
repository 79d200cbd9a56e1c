"""Trials meet at a lock of their own, and how busy this host is does not matter to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.gate import INJECT, MARK, ROOT


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regress.session.host_lock_path", lambda: tmp_path / "host.lock")
    monkeypatch.setattr("regress.measure.health.host_before", dict)
    monkeypatch.setattr("regress.measure.health.cpu_facts", lambda *_: {})
    for name in ("CI", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a selftest in a process of its own: the same for it, and temporary files in `TMPDIR`."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COMM_REGRESS_"))}
    return known | {"PYTHONPATH": f"{INJECT}{os.pathsep}{ROOT}", MARK: str(tmp_path_factory.mktemp("lock")),
                    "TMPDIR": str(tmp_path_factory.mktemp("temporary"))}
