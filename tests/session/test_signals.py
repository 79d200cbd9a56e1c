"""A second Ctrl-C while what was measured is being kept."""

from __future__ import annotations

import os
import signal

import pytest

from regress.stopping import undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_not_heard_for_a_moment_and_then_again(number: signal.Signals) -> None:
    heard: list[int] = []
    before = signal.signal(number, lambda got, _: heard.append(got))
    try:
        with undisturbed():
            os.kill(os.getpid(), number)
        assert heard == []
        os.kill(os.getpid(), number)
        assert heard == [number]
    finally:
        signal.signal(number, before)
