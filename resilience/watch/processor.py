"""Bounds on what a probe computes: a regular expression of a user may not search for ever; no garbage collection.

`(a+)+b` would search for ages, and no message would say why. Only a signal ends Python's matcher, which looks for
signals as it backtracks. The timer is ITIMER_VIRTUAL (setitimer(2)): it counts what this process computes, not what it
waits, so a busy machine does no harm.
"""

from __future__ import annotations

import contextlib
import gc
import signal
from collections.abc import Callable, Iterator

BACKTRACKS = "it backtracks: avoid a repetition within a repetition, such as (a+)+"
"""The advice for a regular expression that was too slow."""


@contextlib.contextmanager
def cpu_limit(
    seconds: float, error: Callable[[], Exception], *, is_armed: bool = True
) -> Iterator[Callable[[], object]]:
    """Raise `error` inside when it has computed for that long; yield a function that starts the time anew.

    Unless `is_armed` the time does not begin before that function is called. A thread that is not the main one gets no
    signals, so there is no limit: a probe has its deadline besides.
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
    """How much of the time of the limit in force is left; 0.0 when there is none."""
    return signal.getitimer(signal.ITIMER_VIRTUAL)[0]


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Without the collector of cycles, which finds none here and looks through millions of records for them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
