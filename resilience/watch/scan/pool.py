"""Deals work to the workers, hears what they found, and goes on without those that hang.

Nothing here touches the file system that is scanned: whoever does may never come back.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilience.watch.scan.worker import LENGTH, Assignment, Board, Pace, decide, send, start_worker

SLOTS = 96
MOST_STUCK = 8
"""Workers left behind in one scan, at the most: each hangs in the kernel until the file system comes back."""

MOST_DEALT = 400
"""Jobs given at once, at the most: they fit into a pipe (64 KiB), so that giving cannot block."""

GRACE_S = 0.4
"""How long workers have to tell what they know when the time is over."""

TICK_S = 0.1
AWAY_S = 1.0

Found = Callable[[Sequence[tuple[object, ...]], Sequence[tuple[int, int, list[int]]], int], None]


@dataclass(slots=True)
class _WorkerHandle:
    """One worker, as seen from here."""

    pid: int
    give: int
    hear: int
    slot: int
    threads: int
    received: bytearray = field(default_factory=bytearray)
    idle: bool = False
    opened: bool = False
    seen: dict[int, tuple[int, float]] = field(default_factory=dict)
    stuck: set[int] = field(default_factory=set)


class WorkerPool:
    """The workers of one scan.

    Attributes:
        found: called with what a worker found: records, (begin, end, changed) of ranges verified, looks taken.
        tick: called every tenth of a second.
        stuck: paths at which a worker did not come back; the first bytes of each (Board).
        closed: errno with which the root could not be opened, or 0.
        real: the root without symbolic links; empty until it was opened.
        pace: how it went on after the first looks; None if there were few.
        interrupted: set by whoever wants it to come to an end.
    """

    def __init__(
        self,
        assignment: Assignment,
        found: Found,
        *,
        deadline: float | None,
        stall_s: float,
        tick: Callable[[], None] = lambda: None,
        cores: int | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.assignment, self.found, self.tick = assignment, found, tick
        self.deadline, self.stall_s = deadline, stall_s
        self.cores = cores or len(os.sched_getaffinity(0))
        self.board = Board(SLOTS)
        self.handles: list[_WorkerHandle] = []
        self.queue: list[Any] = []
        self.stuck = assignment.stuck
        self.closed = 0
        self.real = b""
        self.pace = pace
        self.abandoned: list[int] = []
        self.out_of_time = self.interrupted = False
        self._deaths: set[bytes] = set()
        self._next_slot = 0
        self._watched = time.monotonic()
        self._selector = selectors.DefaultSelector()
        _reap()

    def run(self, jobs: Sequence[Any]) -> None:
        """Have jobs done, and what arises from them, until nothing is left or the time is over.

        What a worker that hung, or died, had still before it is not done: the caller sees what is missing.
        """
        self.queue += jobs
        while not (self.out_of_time or self.interrupted or self.closed) and len(self.abandoned) < MOST_STUCK:
            self._staff()
            self._deal()
            if not self.queue and all(self._resting(handle) for handle in self.handles):
                return
            self._listen(TICK_S)
            self.tick()
            now = time.monotonic()
            self._watch(now)
            if self.deadline is not None and now >= self.deadline:
                self.out_of_time = True

    def renew(self) -> None:
        """Let those go who have nothing to do: who comes in their place knows where the others hang."""
        for handle in [handle for handle in self.handles if handle.idle]:
            self._dismiss(handle)

    def end(self) -> None:
        """Let everybody tell what they know, and send them home; those that do not go are left behind."""
        self.board.stop()
        until = time.monotonic() + GRACE_S
        while any(not self._resting(handle) for handle in self.handles) and time.monotonic() < until:
            self._listen(0.02)
        for handle in self.handles:
            os.close(handle.give)  # whoever waits for jobs ends now
            self._selector.unregister(handle.hear)
            os.close(handle.hear)
        for handle in self.handles:
            if not _gone(handle.pid, 0.2 if self._resting(handle) else 0.0):
                self._kill(handle)
        self.handles = []
        self._selector.close()

    def _staff(self) -> None:
        """Have as many workers as it takes."""
        if self.pace is None:
            wanted, threads = 1, 1
        else:
            wanted, threads = self.pace.processes, self.pace.threads
        if threads > 1:  # the first one has given back what it had
            for handle in [handle for handle in self.handles if handle.threads == 1 and handle.idle]:
                self._dismiss(handle)
        while len(self.handles) < wanted and self._next_slot + threads <= SLOTS:
            pid, give, hear = start_worker(self.assignment, self.board, self._next_slot, threads)
            os.set_blocking(hear, False)
            handle = _WorkerHandle(pid, give, hear, self._next_slot, threads)
            self._next_slot += threads
            self.handles.append(handle)
            self._selector.register(hear, selectors.EVENT_READ, handle)
            if self.pace is None:
                return

    def _deal(self) -> None:
        best = max((handle.threads for handle in self.handles), default=1)
        ready = [handle for handle in self.handles if handle.idle and handle.threads == best]
        while self.queue and ready:
            share = min(MOST_DEALT, -(-len(self.queue) // len(ready)))
            handle = ready.pop()
            jobs, self.queue[:share] = self.queue[:share], []
            handle.idle = False
            with contextlib.suppress(BrokenPipeError):  # it died; its pipe says so next
                send(handle.give, jobs)
        self.board.wants_work = any(handle.idle for handle in self.handles) and not self.queue

    def _listen(self, wait_s: float) -> None:
        for ready, _ in self._selector.select(wait_s):
            handle: _WorkerHandle = ready.data
            try:
                chunk = os.read(handle.hear, 2**18)
            except BlockingIOError:
                continue
            if not chunk:
                self._died(handle)
                continue
            handle.received += chunk
            while len(handle.received) >= LENGTH.size:
                (length,) = LENGTH.unpack_from(handle.received)
                end = LENGTH.size + length
                if len(handle.received) < end:
                    break
                message = marshal.loads(bytes(handle.received[LENGTH.size : end]))
                del handle.received[:end]
                self._receive(handle, message)

    def _receive(self, handle: _WorkerHandle, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == "found":
            self.found(*message[1:])
        elif kind == "share":
            self.queue += message[1]
        elif kind == "idle":
            handle.idle = True
        elif kind == "opened":
            handle.opened = True
            self.real = message[1]
        elif kind == "closed":
            self.closed = message[1]
        elif kind == "pace" and self.pace is None:
            self.pace = decide(message[1], self.cores)

    def _resting(self, handle: _WorkerHandle) -> bool:
        """Whether nothing more is to be expected of it."""
        if handle.idle:
            return True
        if not handle.stuck:
            return False
        slots = range(handle.slot, handle.slot + handle.threads)
        return all(slot in handle.stuck or self.board.where(slot)[1] is None for slot in slots)

    def _watch(self, now: float) -> None:
        """See who has not moved for long."""
        if now - self._watched > AWAY_S:  # it was not they who stood still: this process was stopped (Ctrl-Z) or busy
            for handle in self.handles:
                handle.seen.clear()
        self._watched = now
        for handle in list(self.handles):
            if handle.idle:
                handle.seen.clear()
                continue
            for slot in range(handle.slot, handle.slot + handle.threads):
                count, place = self.board.where(slot)
                last, since = handle.seen.get(slot, (-1, now))
                if place is None or count != last:
                    handle.seen[slot] = (count, now)
                    handle.stuck.discard(slot)
                elif now - since >= self.stall_s and slot not in handle.stuck:
                    handle.stuck.add(slot)
                    self.stuck.append(self._path(place))
                    if not handle.opened:
                        self.closed = errno.ETIMEDOUT
            if len(handle.stuck) == handle.threads:
                self._abandon(handle)

    def _died(self, handle: _WorkerHandle) -> None:
        """A worker ended by itself: killed from outside, or for memory. Where two ended, a third is not sent."""
        if self.closed:
            self._dismiss(handle)
            return
        for slot in range(handle.slot, handle.slot + handle.threads):
            place = self.board.where(slot)[1]
            if place is not None:
                path = self._path(place)
                if path in self._deaths:
                    self.stuck.append(path)
                self._deaths.add(path)
        self._abandon(handle)

    def _path(self, place: bytes | int) -> bytes:
        return self.assignment.known[place][0] if isinstance(place, int) else place

    def _abandon(self, handle: _WorkerHandle) -> None:
        self.abandoned.append(handle.pid)
        self._kill(handle)
        self._forget(handle)

    def _dismiss(self, handle: _WorkerHandle) -> None:
        self._forget(handle)
        if not _gone(handle.pid, 0.2):
            self._kill(handle)

    def _forget(self, handle: _WorkerHandle) -> None:
        self._selector.unregister(handle.hear)
        os.close(handle.hear)
        os.close(handle.give)
        self.handles.remove(handle)

    def _kill(self, handle: _WorkerHandle) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(handle.pid, signal.SIGKILL)
        if not _gone(handle.pid, 0.05):
            _abandoned.add(handle.pid)


_abandoned: set[int] = set()
"""Workers of earlier scans of this process that would not end."""


def _reap() -> None:
    """Take leave of those that have ended meanwhile."""
    for pid in list(_abandoned):
        if _gone(pid, 0.0):
            _abandoned.discard(pid)


def _gone(pid: int, within_s: float) -> bool:
    """Whether a child has ended, waiting for it a little."""
    until = time.monotonic() + within_s
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(0.0003)
