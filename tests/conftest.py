"""Settings for all tests. Loaded by the gate too when it runs in this checkout, where test libraries may be absent."""

from __future__ import annotations

import importlib.util
import os
import signal

pytest_plugins = ["pytester"]

if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import settings

    # A shared machine can take a second for what takes a millisecond: time is no property that a test may check.
    settings.register_profile("everywhere", deadline=None, derandomize=bool(os.environ.get("CI")))
    settings.load_profile("everywhere")

# A shell starts what goes to its background with SIGINT ignored, and so would every gate be that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
