"""A loop hears the signals that end it, and gives them back."""

from __future__ import annotations

import os
import signal

from resilience.cli.signals import handled


def test_the_handler_hears_the_signals_for_as_long_as_it_has_them() -> None:
    heard: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    with handled(lambda number, frame: heard.append(number), signal.SIGTERM):
        os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


def test_below_nohup_a_hangup_stays_ignored() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handled(lambda number, frame: heard.append(number), signal.SIGHUP):
            os.kill(os.getpid(), signal.SIGHUP)
        assert heard == [] and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
