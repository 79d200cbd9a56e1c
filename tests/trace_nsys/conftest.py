"""The two real nsys, where the environment names them: see .ci/install-nsys."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from regress.trace.nsys import Nsys, probe


def named_by(variable: str) -> str:
    """The value of a variable that CI must set; without it the test is skipped, in CI it fails."""
    value = os.environ.get(variable, "")
    if not value:
        reason = f"{variable} is not set: run .ci/install-nsys and set what it prints"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return value


@pytest.fixture(params=["REGRESS_NSYS_2022", "REGRESS_NSYS_2023"])
def real_nsys(request: pytest.FixtureRequest) -> Nsys:
    path = named_by(str(request.param))
    found = probe(Path(path))
    assert found is not None, f"{request.param}={path} does not run"
    return found


@pytest.fixture
def nvtx_packages() -> Path:
    """A folder with one folder per release of the Python package nvtx, made for this Python."""
    return Path(named_by("REGRESS_NVTX")) / str(sys.implementation.cache_tag)
