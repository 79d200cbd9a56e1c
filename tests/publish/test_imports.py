from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("pandas", "numpy", "torch", "sqlalchemy", "psycopg", "requests", "opentelemetry", "google.protobuf", "fsspec")


@pytest.mark.parametrize("module", [
    "regress.history.store", "regress.history.folder", "regress.history.server", "regress.history.exchange",
    "regress.publish", "regress.publish.spool", "regress.publish.remote_write", "regress.publish.pushgateway",
    "regress.publish.otlp", "regress.publish.influx", "regress.publish.file", "regress.publish.webhook"])
def test_what_is_not_used_is_not_loaded(module: str) -> None:
    program = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
