"""Limits the CPU time of user-supplied regular expressions, and disables garbage collection during large scans.

A pattern such as `(a+)+b` can backtrack for hours. Only a signal interrupts Python's matcher, which checks for signals
as it backtracks. The timer is ITIMER_VIRTUAL (setitimer(2)): it counts the CPU time of this process only, so a busy
machine does not use it up.
"""

from __future__ import annotations

import contextlib
import gc
import signal
from collections.abc import Callable, Iterator

BACKTRACKS = "catastrophic backtracking: avoid nested repetition such as (a+)+"
"""The hint for a regular expression that is too slow."""


@contextlib.contextmanager
def cpu_limit(
    seconds: float, error: Callable[[], Exception], *, is_armed: bool = True
) -> Iterator[Callable[[], object]]:
    """Raise `error` inside the block after that much CPU time; yield a function that restarts the timer.

    Unless `is_armed`, the timer starts with the first call of that function. Only the main thread receives signals; in
    other threads there is no limit but the deadline of the probe.
    """

    def stop(*_: object) -> None:
        raise error()

    def restart() -> object:
        return signal.setitimer(signal.ITIMER_VIRTUAL, seconds)

    try:
        former = signal.signal(signal.SIGVTALRM, stop)
    except ValueError:
        yield lambda: None
        return
    try:
        if is_armed:
            restart()
        yield restart
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


def cpu_left_s() -> float:
    """Return the CPU time left of the current limit; 0.0 without one."""
    return signal.getitimer(signal.ITIMER_VIRTUAL)[0]


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector, which would traverse millions of records and find no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
