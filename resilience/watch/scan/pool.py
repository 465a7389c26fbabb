"""Assigns directories to worker processes, collects their results, and abandons workers that hang.

This process never touches the scanned file system: a process that does may hang for ever.
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

from resilience.watch.scan.worker import LENGTH, Assignment, Board, Parallelism, choose_parallelism, send, start_worker

SLOTS = 96
MOST_STUCK = 8
"""Most workers abandoned in one scan: each hangs in the kernel until the file system responds."""

MOST_JOBS_SENT = 400
"""Most jobs sent at once: they fit into a pipe (64 KiB), so that sending cannot block."""

GRACE_S = 0.4
"""Time for workers to send their last results after the deadline."""

TICK_S = 0.1
PAUSED_S = 1.0

Found = Callable[[Sequence[tuple[object, ...]], Sequence[tuple[int, int, list[int]]], int], None]


@dataclass(slots=True)
class _WorkerHandle:
    """The parent's view of one worker."""

    pid: int
    jobs: int
    results: int
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
        found: called with a worker's results: records, (begin, end, changed) of verified ranges, number of stat calls.
        tick: called every tenth of a second.
        stuck: paths at which a worker hangs, truncated as on the board.
        closed: errno of opening the root, or 0.
        real: the root without symbolic links; empty until it was opened.
        parallelism: the workers in use after the first stat calls; None if there were too few to choose.
        interrupted: set by a signal handler to end the scan early.
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
        parallelism: Parallelism | None = None,
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
        self.parallelism = parallelism
        self.abandoned: list[int] = []
        self.out_of_time = self.interrupted = False
        self._died_at: set[bytes] = set()
        self._next_slot = 0
        self._watched = time.monotonic()
        self._selector = selectors.DefaultSelector()
        _reap()

    def run(self, jobs: Sequence[Any]) -> None:
        """Run jobs and those that result from them, until none is left or the deadline has passed.

        The jobs of a worker that hung or died are lost; the caller has to find out which results are missing.
        """
        self.queue += jobs
        while not (self.out_of_time or self.interrupted or self.closed) and len(self.abandoned) < MOST_STUCK:
            self._fork_workers()
            self._assign()
            if not self.queue and all(self._is_done(handle) for handle in self.handles):
                return
            self._collect(TICK_S)
            self.tick()
            now = time.monotonic()
            self._watch(now)
            if self.deadline is not None and now >= self.deadline:
                self.out_of_time = True

    def renew(self) -> None:
        """Dismiss idle workers: those forked in their place know which directories hang."""
        for handle in [handle for handle in self.handles if handle.idle]:
            self._dismiss(handle)

    def end(self) -> None:
        """Collect the last results and end all workers; abandon those that do not exit."""
        self.board.stop()
        until = time.monotonic() + GRACE_S
        while any(not self._is_done(handle) for handle in self.handles) and time.monotonic() < until:
            self._collect(0.02)
        for handle in self.handles:
            os.close(handle.jobs)  # a worker that waits for jobs exits now
            self._selector.unregister(handle.results)
            os.close(handle.results)
        for handle in self.handles:
            if not _has_exited(handle.pid, 0.2 if self._is_done(handle) else 0.0):
                self._kill(handle)
        self.handles = []
        self._selector.close()

    def _fork_workers(self) -> None:
        """Fork the workers that are missing."""
        chosen = self.parallelism
        processes, threads = (chosen.processes, chosen.threads) if chosen is not None else (1, 1)
        if threads > 1:  # the first one has returned its jobs
            for handle in [handle for handle in self.handles if handle.threads == 1 and handle.idle]:
                self._dismiss(handle)
        while len(self.handles) < processes and self._next_slot + threads <= SLOTS:
            pid, jobs, results = start_worker(self.assignment, self.board, self._next_slot, threads)
            os.set_blocking(results, False)
            handle = _WorkerHandle(pid, jobs, results, self._next_slot, threads)
            self._next_slot += threads
            self.handles.append(handle)
            self._selector.register(results, selectors.EVENT_READ, handle)
            if chosen is None:
                return

    def _assign(self) -> None:
        best = max((handle.threads for handle in self.handles), default=1)
        ready = [handle for handle in self.handles if handle.idle and handle.threads == best]
        while self.queue and ready:
            share = min(MOST_JOBS_SENT, -(-len(self.queue) // len(ready)))
            handle = ready.pop()
            jobs, self.queue[:share] = self.queue[:share], []
            handle.idle = False
            with contextlib.suppress(BrokenPipeError):  # the worker died; reading its result pipe reports that next
                send(handle.jobs, jobs)
        self.board.wants_work = any(handle.idle for handle in self.handles) and not self.queue

    def _collect(self, wait_s: float) -> None:
        for ready, _ in self._selector.select(wait_s):
            handle: _WorkerHandle = ready.data
            try:
                chunk = os.read(handle.results, 2**18)
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
        elif kind == "stat_time" and self.parallelism is None:
            self.parallelism = choose_parallelism(message[1], self.cores)

    def _is_done(self, handle: _WorkerHandle) -> bool:
        """Return whether no more results are expected from this worker."""
        if handle.idle:
            return True
        if not handle.stuck:
            return False
        slots = range(handle.slot, handle.slot + handle.threads)
        return all(slot in handle.stuck or self.board.where(slot)[1] is None for slot in slots)

    def _watch(self, now: float) -> None:
        """Find workers that have stopped making progress."""
        if now - self._watched > PAUSED_S:  # this process was stopped (Ctrl-Z) or busy, not the workers
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
        """A worker exited unexpectedly, for example OOM-killed. A directory at which two workers died is skipped."""
        if self.closed:
            self._dismiss(handle)
            return
        for slot in range(handle.slot, handle.slot + handle.threads):
            place = self.board.where(slot)[1]
            if place is not None:
                path = self._path(place)
                if path in self._died_at:
                    self.stuck.append(path)
                self._died_at.add(path)
        self._abandon(handle)

    def _path(self, place: bytes | int) -> bytes:
        return self.assignment.known[place][0] if isinstance(place, int) else place

    def _abandon(self, handle: _WorkerHandle) -> None:
        self.abandoned.append(handle.pid)
        self._kill(handle)
        self._remove(handle)

    def _dismiss(self, handle: _WorkerHandle) -> None:
        self._remove(handle)
        if not _has_exited(handle.pid, 0.2):
            self._kill(handle)

    def _remove(self, handle: _WorkerHandle) -> None:
        self._selector.unregister(handle.results)
        os.close(handle.results)
        os.close(handle.jobs)
        self.handles.remove(handle)

    def _kill(self, handle: _WorkerHandle) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(handle.pid, signal.SIGKILL)
        if not _has_exited(handle.pid, 0.05):
            _abandoned.add(handle.pid)


_abandoned: set[int] = set()
"""Workers of earlier scans of this process that did not exit."""


def _reap() -> None:
    """Reap abandoned workers that have exited meanwhile."""
    for pid in list(_abandoned):
        if _has_exited(pid, 0.0):
            _abandoned.discard(pid)


def _has_exited(pid: int, within_s: float) -> bool:
    """Return whether a child has exited within this time."""
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
