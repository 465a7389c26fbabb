"""One scan: a few worker processes verify the known directories and read the others; this process hands out the work.

This process never touches the scanned file system, because a process that does may hang for ever.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import mmap
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from resilience.watch.processor import no_collection
from resilience.watch.scan.cache import ScanCache, Snapshot
from resilience.watch.scan.tree import PARTIAL, READ, STUCK, UNREADABLE, UNTRUSTED, Record, Tree, build, joined
from resilience.watch.scan.worker import LENGTH, THREADS, Job, send, start_worker

FULL_PASS_S = 86400.0
"""Interval at which every directory is read: files that grow in place do not change their directory's mtime."""

SMALL = 20_000
"""A tree of at most so many files is read whole each time, which takes a fraction of a second."""

STALL_S = 30.0
"""A worker without a sign of life for longer than this hangs; less if the deadline is short."""

MOST_LOCAL, MOST_REMOTE = 4, 16
"""Workers. On a local disk the CPU is the bottleneck, and it is shared with other users. Where each stat call waits for
a server, 16 calls in flight are 12.7 times as fast as one (measured with 200 us added to each), and 32 no faster."""

MOST_STUCK, MOST_STARTED = 8, 64
"""Workers abandoned in one scan, each of which hangs in the kernel until the file system responds; workers started."""

BATCH = 200
TICK_S, PAUSED_S, GRACE_S = 0.1, 1.0, 0.4


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a scan.

    Attributes:
        directories: read or verified.
        stat_calls: files and directories probed.
        expected: directories in the last scan; 0 if there was none.
    """

    directories: int
    stat_calls: int
    expected: int


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of a scan.

    Attributes:
        root: the directory, as requested.
        tree: the directories; one row if the root could not be read.
        time: of the scan, in seconds since the epoch.
        took_s: its duration.
        error: why the root could not be scanned; empty if it could.
        before: the snapshot to compare with, or None.
        read: directories read in this scan.
        verified: known directories whose mtime and remembered files were unchanged.
        unverified: known directories that could not be verified in time.
        unseen: files in the verified directories that were not looked at.
        looks: number of stat calls.
        oldest: when the oldest of the figures was read, in seconds since the epoch.
        signal: the number of the signal that ended the scan, or 0.
        out_of_time: whether the deadline ended the scan.
        pace: the number of workers, as text.
        notes: warnings for the user.
    """

    root: Path
    tree: Tree
    time: float
    took_s: float
    error: str = ""
    before: Snapshot | None = None
    read: int = 0
    verified: int = 0
    unverified: int = 0
    unseen: int = 0
    looks: int = 0
    oldest: float = 0.0
    signal: int = 0
    out_of_time: bool = False
    pace: str = ""
    notes: tuple[str, ...] = ()

    @property
    def interrupted(self) -> bool:
        """Return whether a signal ended the scan."""
        return self.signal != 0

    @property
    def is_complete(self) -> bool:
        """Return whether every readable directory was read or verified."""
        unfinished = self.tree.missing[0] - len(self.tree.in_state(UNREADABLE))
        return not self.error and not self.unverified and not unfinished


def scan(
    root: Path,
    cache: Path | None,
    *,
    now: float,
    fallback: Path | None = None,
    deadline_s: float | None = None,
    stall_s: float = STALL_S,
    fresh: bool = False,
    report: Callable[[Progress], None] = lambda _: None,
) -> Scan:
    """Return the disk usage of a directory tree.

    Counts allocated blocks, as du does; a file with several hard links counts once; symbolic links are not followed and
    other file systems are not entered. `cache` is the cache directory, or None for no cache; `fallback` is a
    directory on this node that is used if `cache` cannot be. `fresh` reads every directory, as always in a small
    tree; otherwise one that is unchanged, with unchanged remembered files, is not read again for a day. A directory in
    which no call returns for `stall_s` is reported as stuck.

    The scan ends at the deadline even if the file system never responds. Ctrl-C, SIGTERM and SIGHUP end it early. In
    every case the results are cached, and the next scan continues from there.
    """
    began = time.monotonic()
    directory = os.fsencode(root)
    scan_cache = ScanCache(cache, fallback, directory)
    deadline = None if deadline_s is None else began + deadline_s
    with no_collection():
        known = scan_cache.read(deadline_s)
        pool = Pool(directory, known.records if known else (), now, report)
        pool.plan(now + FULL_PASS_S if fresh or not known or known.files[0] <= SMALL else now - FULL_PASS_S)
        with _ended_by_signals(pool):
            try:
                pool.run(deadline, stall_s if deadline_s is None else min(stall_s, max(0.5, deadline_s / 5)))
            finally:
                pool.end()
            if known and not pool.records:
                tree = known
            else:
                tree = build({record.path: record for record in pool.known} | pool.records)
            error = _error(pool, tree)
            before = None if error else scan_cache.update(tree, now, is_changed=bool(pool.records))
    return Scan(
        root=root,
        tree=tree,
        time=now,
        took_s=time.monotonic() - began,
        error=error,
        before=before,
        read=pool.read,
        verified=len(pool.unchanged),
        unverified=pool.unverified,
        unseen=sum(record.files - len(record.remembered) for record in pool.unchanged),
        looks=pool.looks,
        oldest=min((record.read_at for record in tree.records if record.read_at), default=now),
        signal=pool.signal,
        out_of_time=pool.out_of_time,
        pace=f"{pool.most} workers" + (f" of {THREADS} threads: stat calls are slow" if pool.is_slow else ""),
        notes=tuple(scan_cache.notes),
    )


@dataclass(slots=True)
class _Handle:
    """This process's view of one worker: its batch, and how many of the jobs it has answered."""

    pid: int
    jobs: int
    answers: int
    slot: int
    received: bytearray = field(default_factory=bytearray)
    batch: list[Job] = field(default_factory=list)
    done: int = 0
    is_open: bool = False
    seen: tuple[tuple[int, int], float] = ((-1, -1), 0.0)


class Pool:
    """The workers of one scan, the jobs that wait, and the results so far."""

    def __init__(
        self, directory: bytes, known: Sequence[Record], now: float, report: Callable[[Progress], None]
    ) -> None:
        self.directory, self.known, self.now, self.report = directory, known, int(now), report
        self.records: dict[bytes, Record] = {}
        self.unchanged: list[Record] = []
        self.most, self.is_slow = min(2 * len(os.sched_getaffinity(0)), MOST_LOCAL), False
        self.queue: list[Job] = []
        self.workers: list[_Handle] = []
        self.board = memoryview(mmap.mmap(-1, 16 * (MOST_STARTED + 1))).cast("Q")
        self.selector = selectors.DefaultSelector()
        self.read = self.unverified = self.looks = self.started = self.abandoned = 0
        self.stuck: list[bytes] = []
        self.died_at: set[bytes] = set()
        self.closed = 0  # errno of opening the root
        self.out_of_time, self.signal = False, 0

    @cached_property
    def number_of(self) -> dict[bytes, int]:
        """The numbers of the known directories by path."""
        return {record.path: number for number, record in enumerate(self.known)}

    def plan(self, read_before: float) -> None:
        """Queue all known directories. The last is taken first; those read only because of their age are last."""
        aged: list[Job] = []
        for number in range(len(self.known) - 1, -1, -1):
            record = self.known[number]
            if not _is_sure(record):
                self.queue.append(record.path)
            elif read_before < record.read_at <= self.now + FULL_PASS_S:
                self.queue.append(number)
            else:
                aged.append(record.path)
        self.unverified = sum(map(_is_sure, self.known))
        self.queue = aged + self.queue or [b""]

    def run(self, deadline: float | None, stall_s: float) -> None:
        """Work until nothing is left, the deadline has passed, a signal came, or too many workers hang."""
        last = time.monotonic()
        while not (self.out_of_time or self.signal or self.closed) and self.abandoned < MOST_STUCK:
            self._assign()
            if not self.queue and not any(worker.batch for worker in self.workers):
                return
            self._collect(TICK_S)
            self.report(Progress(self.read + len(self.unchanged), self.looks, len(self.known)))
            now = time.monotonic()
            for worker in [worker for worker in self.workers if worker.batch]:
                sign = self.board[worker.slot], self.board[worker.slot + 1]
                if sign != worker.seen[0] or now - last > PAUSED_S:  # this process was stopped (Ctrl-Z), not the worker
                    worker.seen = sign, now
                elif now - worker.seen[1] >= stall_s:
                    self._abandon(worker, is_hung=True)
            last = now
            self.out_of_time = deadline is not None and now >= deadline

    def _assign(self) -> None:
        while len(self.workers) < self.most and len(self.queue) > 2 * len(self.workers) and self.started < MOST_STARTED:
            self.started += 1
            slot = 2 * self.started
            worker = _Handle(*start_worker(self.directory, self.known, self.board, slot, self.now), slot)
            os.set_blocking(worker.answers, False)
            self.selector.register(worker.answers, selectors.EVENT_READ, worker)
            self.workers.append(worker)
        for worker in self.workers:
            while self.queue and not worker.batch:
                share = max(1, min(BATCH, len(self.queue) // (2 * len(self.workers))))
                taken, self.queue[-share:] = self.queue[: -share - 1 : -1], []
                worker.batch = [job for job in taken if not self.stuck or not self._is_below_stuck(job)]
                worker.done, worker.seen, self.board[worker.slot] = 0, ((-1, -1), 0.0), 0
                with contextlib.suppress(BrokenPipeError):  # the worker died; its answer pipe reports that next
                    send(worker.jobs, worker.batch)

    def _path(self, job: Job) -> bytes:
        return job if isinstance(job, bytes) else self.known[job].path

    def _is_below_stuck(self, job: Job) -> bool:
        path = self._path(job)
        return any(path.startswith(place + b"/") for place in self.stuck)

    def _collect(self, wait_s: float) -> None:
        for ready, _ in self.selector.select(wait_s):
            worker: _Handle = ready.data
            chunk = os.read(worker.answers, 2**18)
            if not chunk:
                self._abandon(worker, is_hung=False)
                continue
            received = worker.received
            received += chunk
            while len(received) > LENGTH.size:
                end = LENGTH.size + LENGTH.unpack_from(received)[0]
                if len(received) < end:
                    break
                message = marshal.loads(received[LENGTH.size : end])
                del received[:end]
                if isinstance(message, int):
                    worker.is_open, self.closed = not message, message
                else:
                    self._receive(worker, *message)

    def _receive(self, worker: _Handle, answers: list[Any], looks: int, is_slow: bool) -> None:
        for job, answer in zip(worker.batch[worker.done :], answers, strict=False):
            if answer is None and isinstance(job, int):
                self.unchanged.append(self.known[job])
                self.unverified -= 1
            else:
                number = self.number_of.get(self._path(job), -1)
                self.unverified -= number >= 0 and _is_sure(self.known[number])
                self._add(Record._make(answer))
        worker.done += len(answers)
        if worker.done >= len(worker.batch):
            worker.batch = []
        self.looks += looks
        if is_slow:
            self.is_slow, self.most = True, MOST_REMOTE

    def _add(self, record: Record) -> None:
        """Add the record of a directory, and queue its new subdirectories."""
        self.read += 1
        number = self.number_of.get(record.path, -1)
        before = self.known[number] if number >= 0 else None
        if (
            before is not None
            and before.state in (READ, PARTIAL)
            and record.state in (PARTIAL, STUCK)
            and (record.state == STUCK or record.files < before.files)
        ):  # keep the last full one rather than a new partial one
            record = before._replace(state=record.state, mtime_ns=UNTRUSTED)
        self.records[record.path] = record
        for path in [joined(record.path, name) for name in reversed(record.children)]:
            if path not in self.records and path not in self.number_of:
                self.records[path] = Record(path)
                self.queue.append(path)

    def _abandon(self, worker: _Handle, *, is_hung: bool) -> None:
        """Give up a worker that hangs or died, such as OOM-killed; others get its jobs, but not the one it hangs in.

        A directory at which two workers died is skipped as well.
        """
        self._dismiss(worker)
        self.abandoned += 1
        if is_hung and not worker.is_open:
            self.closed = errno.ETIMEDOUT
        if not worker.batch:
            return
        at = max(worker.done, self.board[worker.slot])
        path = self._path(worker.batch[at])
        left = worker.batch[worker.done : at] + worker.batch[at + 1 :]
        if is_hung or path in self.died_at:
            self.stuck.append(path)
            self._add(Record(path, STUCK, read_at=self.now))
        else:
            self.died_at.add(path)
            left.append(worker.batch[at])
        self.queue += left[::-1]

    def _dismiss(self, worker: _Handle) -> None:
        self.workers.remove(worker)
        self.selector.unregister(worker.answers)
        os.close(worker.answers)
        os.close(worker.jobs)
        if worker.batch:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
        # One that hangs in the kernel ends later; an idle one ends as soon as a busy machine lets it run.
        until = time.monotonic() + (0.2 if worker.batch else 5.0)
        while not _has_ended(worker.pid) and time.monotonic() < until:
            time.sleep(0.0003)

    def end(self) -> None:
        """Collect the last results and end all workers."""
        self.board[0] = 1
        until = time.monotonic() + GRACE_S
        while any(worker.batch for worker in self.workers) and time.monotonic() < until:
            self._collect(0.02)
        for worker in list(self.workers):
            self._dismiss(worker)
        self.selector.close()


def _is_sure(record: Record) -> bool:
    """Return whether a directory was fully read, and had not just changed."""
    return record.state == READ and record.mtime_ns != UNTRUSTED


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _error(pool: Pool, tree: Tree) -> str:
    """Return why the root could not be scanned; empty if it could."""
    root = tree.records[0]
    number = pool.closed or (root.trouble if len(tree) == 1 and not root.files else 0)
    if number == errno.ETIMEDOUT or (not number and root.state == STUCK and len(tree) == 1):
        return "no response: the file system hangs"
    if number:
        sentences = {errno.ENOENT: "does not exist", errno.ENOTDIR: "is a file, not a directory"}
        return sentences.get(number) or os.strerror(number)
    if not root.read_at and len(tree) == 1 and not pool.signal:
        return "no response within the deadline"
    return ""


@contextlib.contextmanager
def _ended_by_signals(pool: Pool) -> Iterator[None]:
    """End the scan in an orderly way on the first Ctrl-C, SIGTERM (`timeout`, SLURM) or SIGHUP (a lost ssh connection);
    restore the previous handler for a second one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:  # nohup
        del before[signal.SIGHUP]

    def interrupt(number: int, _frame: object) -> None:
        pool.signal = number
        signal.signal(number, before[signal.Signals(number)])

    try:
        for number in before:
            signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
