"""How far the training may go without asking: the few numbers that `step()` touches. No I/O.

Two threads meet here without a lock. The training thread writes `count` and then reads `limit`; the control thread
writes `limit` and then reads `count`, and takes a larger limit if the training may have passed: Dekker's pattern
(E. W. Dijkstra, EWD123, 1965). It needs that each thread's writes are seen by the other before its later reads take
place. With the global interpreter lock that holds, because every hand-over is a full barrier and both threads run
bytecode only while they hold it. Without the lock (free-threaded builds) it does not: then both sides do their write
and their read under one real lock, `lock`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NEVER = (1 << 62) - 1
"""A limit that no training reaches."""


class Gate:
    """The counters. The training thread alone writes `count`, `polls` and `rewound`; others write the limits.

    Attributes:
        count: how many times `step()` was called: the number of the step that has just been done.
        polls: how many times `poll()` was called since that step.
        polled_step: the step that `polls` counts from.
        rewound: how many steps the training has gone back in all. The ranks agree on `count + rewound`, which never
            goes back: a step that is done again is another step to them.
        limit: the first step that must not be completed without asking.
        poll_limit: the first poll that must not be completed without asking.
        urgent: a signal has come and the training thread has not looked at it yet.
        lock: the lock of free-threaded builds; None where the interpreter's own does.
        beat: two or more unsigned 64 bit words (steps, looks) that others map; each step stores into it.
    """

    __slots__ = ("beat", "count", "limit", "lock", "poll_limit", "polled_step", "polls", "rewound", "urgent")

    def __init__(self) -> None:
        self.count = 0
        self.polls = 0
        self.polled_step = 0
        self.rewound = 0
        self.limit = 1  # the first step asks: there is something to set up
        self.poll_limit = 1
        self.urgent = False
        self.lock: Any = None
        self.beat: Any = [0] * 16

    def position(self) -> tuple[int, int]:
        """Where the training is: (steps done, polls since). It only ever grows, also when the training goes back."""
        if self.lock is not None:
            with self.lock:
                return self._position()
        return self._position()

    def _position(self) -> tuple[int, int]:
        steps, polled, polls = self.count, self.polled_step, self.polls
        return (steps + self.rewound, polls if polled == steps else 0)

    def hold(self, steps: int, polls: int) -> None:
        """Make the training ask before it goes on from the step that ends at position `steps`, or from a poll."""
        limit = min(steps - self.rewound, NEVER)
        if self.lock is not None:
            with self.lock:
                self.limit, self.poll_limit = limit, min(polls, NEVER)
        else:
            self.limit, self.poll_limit = limit, min(polls, NEVER)

    def open(self) -> None:
        """Let the training go on without asking."""
        self.limit = NEVER
        self.poll_limit = NEVER

    def count_from(self, step: int) -> None:
        """The training goes on after `step` steps. For the training thread; the limits are the agreement's business."""
        if self.lock is not None:
            with self.lock:
                self._count_from(step)
        else:
            self._count_from(step)

    def _count_from(self, step: int) -> None:
        # The order matters to whoever reads between the two: too large a position only postpones, too small a one
        # would be a promise that is broken already.
        self.rewound += max(0, self.count - step)
        self.count = step
        self.polls, self.polled_step = 0, step
