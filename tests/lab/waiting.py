"""Waits for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T], what: str = "it", timeout_s: float = 20.0) -> T:
    """Look until the answer is true, and return it; fail after `timeout_s` seconds, more than any that works takes."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.01)
    return found
