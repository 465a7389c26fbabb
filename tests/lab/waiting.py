"""Waits for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LONGEST_PAUSE_S = 1.0


def pause_after(began: float, least_s: float) -> None:
    """Sleep as long as a look took that began at `began` (time.monotonic()): a command that is asked again and again
    takes the processor from what it waits for."""
    time.sleep(max(least_s, min(LONGEST_PAUSE_S, time.monotonic() - began)))


def until(look: Callable[[], T], what: str = "it", timeout_s: float = 20.0, every_s: float = 0.01) -> T:
    """Look until the answer is true, and return it; fail after `timeout_s` seconds, more than any that works takes."""
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if found := look():
            return found
        assert began < deadline, f"waited {timeout_s:g} s for {what}"
        pause_after(began, every_s)
