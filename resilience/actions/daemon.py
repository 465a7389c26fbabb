"""When to look again: at whole multiples of the interval, so that the ticks of all nodes fall together."""

from __future__ import annotations

from collections.abc import Iterator

from resilience.system.ports import Clock

NAP_S = 30.0
"""No sleep is longer: a suspended laptop or a clock that was set is noticed after this."""


def ticks(clock: Clock, every_s: float, count: int = 0) -> Iterator[float]:
    """Yield the time at once, and then at each multiple of `every_s`, `count` times in all (0: for ever).

    A tick that came while the last one was still under way is left out, not made up for.
    """
    done = 0
    while True:
        yield clock.now()
        done += 1
        if done == count:
            return
        wait_until(clock, next_tick(clock.now(), every_s))


def next_tick(now: float, every_s: float) -> float:
    """Given the time, return the next multiple of the interval. For instance, 60 s at 12:00:31 give 12:01. Pure."""
    return (now // every_s + 1) * every_s


def wait_until(clock: Clock, moment: float) -> None:
    """Sleep until then by the wall clock, which may be set meanwhile: never longer than it was to be at first."""
    longest = clock.monotonic() + max(0.0, moment - clock.now())
    while (left := min(moment - clock.now(), longest - clock.monotonic())) > 0:
        clock.sleep(min(left, NAP_S))
