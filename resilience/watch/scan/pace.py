"""How many look at the same time: decided by how long the first looks took. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SLOW_LOOK_S = 60e-6
"""From here on a look waits for somebody else: a server, a turning disk. A stat of a local file takes 1 to 10 us (ext4,
from memory and from a fast disk), over a network 100 us and more."""

MOST_PROCESSES = 4
MOST_THREADS = 16
"""Measured with 200 us added to each stat: 16 threads are 12.7 times as fast as one, 32 are slower than 16."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How to go on.

    Attributes:
        processes: how many workers.
        threads: how many in each.
        reason: why, in words.
    """

    processes: int
    threads: int
    reason: str


def decide(look_s: float, cores: int) -> Pace:
    """Given how long a look took and how many cores this process may use, say how to go on. Pure.

    On a local disk the kernel's and Python's own work takes the time: two processes for each core, at most four, since
    some wait for the disk and the cores are shared with others. (On two idle cores four are as fast as two; on busy
    ones, or from the disk, faster.) Where each look waits for a server, one process with many threads waits for many at
    the same time.
    """
    took = f"{look_s * 1e6:.0f} us for each look"
    if look_s >= SLOW_LOOK_S:
        return Pace(1, MOST_THREADS, f"{took}: {MOST_THREADS} threads")
    processes = max(1, min(2 * cores, MOST_PROCESSES))
    return Pace(processes, 1, f"{took}: {processes} processes")
