"""Trials meet at a lock of their own, and how busy this host is does not matter to them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regress.session.host_lock_path", lambda: tmp_path / "host.lock")
    monkeypatch.setattr("regress.measure.health.host_before", dict)
    monkeypatch.setattr("regress.measure.health.cpu_facts", lambda *_: {})
    for name in ("CI", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
