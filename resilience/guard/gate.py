"""The counters that `step()` uses, and the limit up to which the training runs without calling the agreement. No I/O.

Two threads share the counters without a lock. The training thread writes `count` and then reads `limit`; the control
thread writes `limit` and then reads `count`, and raises the limit if the training may have passed it: Dekker's pattern
(E. W. Dijkstra, EWD123, 1965). Each thread's write must be visible to the other before its own read. The global
interpreter lock guarantees this: every hand-over is a full barrier, and both threads run bytecode only while holding
the lock. Free-threaded builds do not; there, both sides write and read under `lock`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NEVER = (1 << 62) - 1
"""A limit that no training reaches."""


class NullLock:
    """No lock: the global interpreter lock is enough."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


class Gate:
    """The counters. Only the training thread writes `count`, `polls` and `rewound`; other threads write the limits.

    Attributes:
        count: number of `step()` calls: the number of the last completed step.
        polls: number of `poll()` calls since that step.
        polled_step: the step that `polls` counts from.
        rewound: total number of steps by which the training has gone back. The ranks agree on `count + rewound`,
            which never decreases: a repeated step has a new number.
        limit: the first step that calls the runtime.
        poll_limit: the first poll that calls the runtime.
        urgent: whether a signal has arrived that the training thread has not handled yet.
        lock: a real lock in free-threaded builds, else a `NullLock`.
        beat: two or more unsigned 64 bit words (steps, polls) in shared memory; written by each step.
    """

    __slots__ = ("beat", "count", "limit", "lock", "poll_limit", "polled_step", "polls", "rewound", "urgent")

    def __init__(self) -> None:
        self.count = 0
        self.polls = 0
        self.polled_step = 0
        self.rewound = 0
        self.limit = 1  # the first step calls the runtime, which finishes the start
        self.poll_limit = 1
        self.urgent = False
        self.lock: Any = NullLock()
        self.beat: Any = [0] * 16

    def position(self) -> tuple[int, int]:
        """Return (steps done, polls since). Never decreases, even if the training goes back."""
        with self.lock:
            steps, polled, polls = self.count, self.polled_step, self.polls
            return (steps + self.rewound, polls if polled == steps else 0)

    def hold(self, steps: int, polls: int) -> None:
        """Make the training call the runtime after the step at position `steps`, or after `polls` polls."""
        limit = min(steps - self.rewound, NEVER)
        with self.lock:
            self.limit, self.poll_limit = limit, min(polls, NEVER)

    def open(self) -> None:
        """Let the training run without calling the runtime."""
        self.limit = NEVER
        self.poll_limit = NEVER

    def count_from(self, step: int) -> None:
        """Set the step count. For the training thread; the agreement sets the limits."""
        with self.lock:
            # `rewound` first: a reader between the two lines sees too large a position, which only delays a decision.
            # Too small a position could break a promise.
            self.rewound += max(0, self.count - step)
            self.count = step
            self.polls, self.polled_step = 0, step
