"""How far the training may go without asking: the few numbers that `step()` touches. No I/O.

Two threads meet here without a lock. The training thread writes `count` and then reads `limit`; the control thread
writes `limit` and then reads `count`, and takes a larger limit if the training may have passed: Dekker's pattern
(E. W. Dijkstra, EWD123, 1965). It needs that each thread's writes are seen by the other before its later reads take
place. With the global interpreter lock that holds, because every hand-over is a full barrier and both threads run
bytecode only while they hold it. Without the lock (free-threaded builds) it does not: then both sides do their write
and their read under one real lock, the `fence`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NEVER = (1 << 62) - 1
"""A limit that no training reaches."""


class Gate:
    """The counters. The training thread alone writes `count` and `polls`; others write the limits.

    Attributes:
        count: how many times `step()` was called: the number of the step that has just been done.
        polls: how many times `poll()` was called since that step.
        polled_step: the step that `polls` counts from.
        limit: the first step that must not be completed without asking.
        poll_limit: the first poll that must not be completed without asking.
        urgent: a signal has come and the training thread has not looked at it yet.
        fence: the lock of free-threaded builds; None where the interpreter's own does.
        beat: two or more unsigned 64 bit words (steps, looks) that others map; each step stores into it.
    """

    __slots__ = ("beat", "count", "fence", "limit", "poll_limit", "polled_step", "polls", "urgent")

    def __init__(self) -> None:
        self.count = 0
        self.polls = 0
        self.polled_step = 0
        self.limit = 1  # the first step asks: there is something to set up
        self.poll_limit = 1
        self.urgent = False
        self.fence: Any = None
        self.beat: Any = [0] * 16

    def position(self) -> tuple[int, int]:
        """Where the training is: (steps done, polls since). Ordered as the training proceeds."""
        if self.fence is not None:
            with self.fence:
                return self._position()
        return self._position()

    def _position(self) -> tuple[int, int]:
        steps, polled, polls = self.count, self.polled_step, self.polls
        return (steps, polls) if polled == steps else (steps, 0)

    def hold(self, limit: int, poll_limit: int) -> None:
        """Make the training ask from this step, and from this poll, on."""
        if self.fence is not None:
            with self.fence:
                self.limit, self.poll_limit = limit, poll_limit
        else:
            self.limit, self.poll_limit = limit, poll_limit

    def open(self) -> None:
        """Let the training go on without asking."""
        self.limit = NEVER
        self.poll_limit = NEVER
