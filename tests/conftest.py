"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# A shared machine can take a second for what takes a millisecond: time is no property that a test may check.
settings.register_profile("everywhere", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("everywhere")

pytest_plugins = ["pytester"]
