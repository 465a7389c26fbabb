"""One worker of a scan: a forked child that reads directories, and can be abandoned when it hangs in the kernel.

It reads jobs from one pipe and writes results to another, as length-prefixed marshal messages. A job is the path of a
directory to read, with everything below it that is not cached yet, or a range of cached directories to verify. On a
network file system each stat call waits for a server without holding the GIL, so one worker has many threads there.

Workers publish their position in shared memory, the board, and read from it whether to stop or to share work. That
takes neither a system call nor a lock, so it is cheap enough for every directory; and the parent can read it while the
worker hangs in the kernel.
"""

from __future__ import annotations

import gc
import marshal
import mmap
import os
import signal
import stat
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilience.watch.scan.directory import (
    RECENT_S,
    SEGMENT_BYTES,
    Stats,
    read_directory,
    stat_entries,
    stat_entry,
    status_of,
)
from resilience.watch.scan.tree import ELSEWHERE, MOST_HOT, PARTIAL, STUCK, Hot, Record, joined

_SLOT_BYTES = 4096
_HEAD = struct.Struct("<QH")
_IDLE, _NUMBERED = 0xFFFF, 0xFFFE
LONGEST = _SLOT_BYTES - _HEAD.size


class Board:
    """One slot per thread of each worker. Byte 0: stop; byte 1: a worker is idle."""

    def __init__(self, slots: int) -> None:
        self._memory = mmap.mmap(-1, _SLOT_BYTES * (slots + 1))
        for slot in range(slots):
            self.set_idle(slot, 0)

    @property
    def stopped(self) -> bool:
        """Return whether all workers should stop."""
        return self._memory[0] != 0

    def stop(self) -> None:
        """Ask all workers to stop."""
        self._memory[0] = 1

    @property
    def wants_work(self) -> bool:
        """Return whether a worker is idle and the queue is empty."""
        return self._memory[1] != 0

    @wants_work.setter
    def wants_work(self, value: bool) -> None:
        self._memory[1] = value

    def enter(self, slot: int, path: bytes, count: int) -> None:
        """Publish the path about to be read; `count` differs each time."""
        shown = path[:LONGEST]
        start = _SLOT_BYTES * (slot + 1)
        self._memory[start + _HEAD.size : start + _HEAD.size + len(shown)] = shown
        _HEAD.pack_into(self._memory, start, count, len(shown))

    def verify(self, slot: int, number: int) -> None:
        """Publish the index of the cached directory about to be verified: cheaper than its path."""
        _HEAD.pack_into(self._memory, _SLOT_BYTES * (slot + 1), number, _NUMBERED)

    def tick(self, slot: int, count: int) -> None:
        """Publish progress in the same directory."""
        self._memory[_SLOT_BYTES * (slot + 1) : _SLOT_BYTES * (slot + 1) + 8] = count.to_bytes(8, "little")

    def set_idle(self, slot: int, count: int) -> None:
        """Publish that this slot is idle."""
        _HEAD.pack_into(self._memory, _SLOT_BYTES * (slot + 1), count, _IDLE)

    def where(self, slot: int) -> tuple[int, bytes | int | None]:
        """Return the count and the position: a path (its first LONGEST bytes), the index of a cached directory, or None
        if idle."""
        start = _SLOT_BYTES * (slot + 1)
        count, length = _HEAD.unpack_from(self._memory, start)
        if length == _IDLE:
            return count, None
        if length == _NUMBERED:
            return count, count
        return count, self._memory[start + _HEAD.size : start + _HEAD.size + length]


LENGTH = struct.Struct("<I")


def send(pipe: int, message: Any) -> None:
    """Write one message. Raise BrokenPipeError if the reader has closed the pipe."""
    raw = marshal.dumps(message)
    view = memoryview(LENGTH.pack(len(raw)) + raw)
    while view:
        view = view[os.write(pipe, view) :]


def receive(pipe: int) -> Any:
    """Return the next message. Raise EOFError if the writer has closed the pipe."""
    return marshal.loads(_exactly(pipe, LENGTH.unpack(_exactly(pipe, LENGTH.size))[0]))


def _exactly(pipe: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(pipe, count)
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


SLOW_STAT_S = 60e-6
"""Above this a stat call waits for a server or a spinning disk. A local one takes 1 to 10 us (ext4, from cache and from
a fast disk), one over a network 100 us and more."""

MOST_PROCESSES = 4
MOST_THREADS = 16
"""Measured with 200 us added to each stat call: 16 threads are 12.7 times as fast as one, 32 are slower than 16."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How many workers a scan uses.

    Attributes:
        processes: number of workers.
        threads: threads per worker.
        reason: the measurement behind this choice, as text.
    """

    processes: int
    threads: int
    reason: str


def choose_parallelism(stat_s: float, cores: int) -> Parallelism:
    """Return the workers to use, given the duration of a stat call and the available cores. Pure.

    On a local disk the CPU is the bottleneck: two processes per core, at most four, since some wait for the disk and
    the cores are shared with other users. (On two idle cores four are as fast as two; on busy ones, or from the disk,
    faster.) Where each stat call waits for a server, one process with many threads keeps many calls in flight.
    """
    took = f"{stat_s * 1e6:.0f} us per stat call"
    if stat_s >= SLOW_STAT_S:
        return Parallelism(1, MOST_THREADS, f"{took}: {MOST_THREADS} threads")
    processes = max(1, min(2 * cores, MOST_PROCESSES))
    return Parallelism(processes, 1, f"{took}: {processes} processes")


FLUSH_S = 0.05
"""Longest time before records are sent: a worker that hangs loses only those not sent yet."""

FLUSH_RECORDS = 256
SAMPLE, SAMPLED_AT_ONCE = 200, 20
"""Stat calls that are timed before the number of workers is chosen."""


Known = tuple[bytes, int, int, Sequence[tuple[bytes, int, int]]]
"""A cached directory: its relative path, inode, mtime in ns, and (name, blocks, mtime in s) of its hot files. Plain
tuples: there are many, and most are only compared."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The input that all workers of a scan share.

    Attributes:
        directory: the root, as a path.
        now: the time of the scan, seconds since the epoch.
        known: the cached directories, for jobs that verify.
        is_known: whether a directory is cached, so that it need not be read.
        stuck: directories in which workers of this scan hang; workers forked later skip them.
    """

    directory: bytes
    now: int
    known: Sequence[Known] = ()
    is_known: Callable[[bytes], bool] = lambda path: False
    stuck: list[bytes] = field(default_factory=list)


class Worker:
    """The child process. `slot` is its first one on the board; it has one per thread."""

    def __init__(
        self, assignment: Assignment, board: Board, slot: int, threads: int, job_pipe: int, result_pipe: int
    ) -> None:
        self.assignment, self.board, self.slot, self.threads = assignment, board, slot, threads
        self.job_pipe, self.result_pipe = job_pipe, result_pipe
        self.jobs: list[Any] = []
        self.records: list[tuple[object, ...]] = []
        self.verified: list[tuple[int, int, list[int]]] = []
        self.stat_calls: list[int] = []
        self.count = 0
        self.flushed_at = time.monotonic()
        self.root = -1
        self.device = 0
        self.barriers: frozenset[bytes] = frozenset()
        self.recent = assignment.now - RECENT_S
        self.hot_times: list[int] = []
        self.yielding = False  # stat calls are slow: a worker with many threads will take over
        self.samples: list[float] = []
        self.sample_left = SAMPLE if threads == 1 else 0  # several threads: timed already

    def run(self) -> None:
        """Do jobs until the job pipe is closed."""
        self.board.enter(self.slot, b"", 0)
        try:
            self.root = os.open(self.assignment.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK)
            self.device = os.fstat(self.root).st_dev
        except OSError as error:
            self._send(("closed", error.errno))
            return
        try:
            real = os.fsencode(os.readlink(f"/proc/self/fd/{self.root}"))  # noqa: PTH115 - bytes, whatever they are
        except OSError:  # a container without /proc
            real = os.path.realpath(self.assignment.directory)
        self.barriers = mounts_below(real)
        self._send(("opened", real))
        self.board.set_idle(self.slot, 1)
        pool = None
        if self.threads > 1:
            pool = Threads(self)
        while True:
            self._send(("idle",))
            try:
                jobs = receive(self.job_pipe)
            except EOFError:
                return
            self.jobs += jobs
            if pool is not None:
                pool.work_off()
            else:
                self.work_off()
            self.flush()
            self.board.set_idle(self.slot, self.next_count())

    def next_count(self) -> int:
        """Return a new number: the parent takes a changed number on the board as a sign of life."""
        self.count += 1
        return self.count

    def work_off(self) -> None:
        """Do all jobs and those that result from them; share some when another worker is idle."""
        jobs, board = self.jobs, self.board
        while jobs and not board.stopped and not self.yielding:
            self.do(jobs.pop(), self.slot, stat_entries)
            if len(self.records) >= FLUSH_RECORDS or time.monotonic() - self.flushed_at > FLUSH_S:
                self.flush()
            if board.wants_work and len(jobs) > 1:
                board.wants_work = False
                self.share(len(jobs) // 2)
        if self.yielding:
            self.share(len(jobs))

    def do(self, job: Any, slot: int, stats: Stats) -> None:
        """Do one job."""
        if isinstance(job, bytes):
            self._read(job, slot, stats)
        else:
            begin, end = job
            self._verify(begin, end, slot)

    def _read(self, path: bytes, slot: int, stats: Stats) -> None:
        if path in self.barriers:
            self.records.append(Record(path, ELSEWHERE, read_at=self.assignment.now).plain())
            return
        if path in self.assignment.stuck:
            self.records.append(Record(path, STUCK, read_at=self.assignment.now).plain())
            return
        self.board.enter(slot, path, self.next_count())

        def alive(entries: int) -> bool:
            self.board.tick(slot, self.next_count())
            self.stat_calls.append(entries)
            return not self.board.stopped and not self.yielding

        if self.sample_left > 0:
            stats = self._timed(stats)
        record = read_directory(
            self.root,
            path,
            device=self.device,
            now=self.assignment.now,
            recent=self.recent,
            barriers=self.barriers,
            stats=stats,
            alive=alive,
        )
        if self.yielding and record.state == PARTIAL:
            self.jobs.append(path)
            return
        is_known = self.assignment.is_known
        below = (joined(path, name) for name in reversed(record.children))
        self.jobs += [child for child in below if not is_known(child)]
        self.records.append(record.plain())
        if record.hot:
            self._record_hot(record.hot)

    def _record_hot(self, files: Sequence[Hot]) -> None:
        """Only the MOST_HOT newest files are cached, so raise the limit below which files are not recorded."""
        self.hot_times += [file.mtime for file in files]
        if len(self.hot_times) > 2 * MOST_HOT:
            self.hot_times = sorted(self.hot_times)[-MOST_HOT:]
            self.recent = max(self.recent, self.hot_times[0] + 1)

    def _timed(self, stats: Stats) -> Stats:
        def timed(entries: Any) -> list[os.stat_result | None]:
            statuses: list[os.stat_result | None] = []
            while self.sample_left > 0 and len(statuses) < len(entries):
                some = entries[len(statuses) : len(statuses) + SAMPLED_AT_ONCE]
                began = time.perf_counter()
                statuses += stats(some)
                self.sampled(len(some), time.perf_counter() - began)
            return statuses + stats(entries[len(statuses) :])

        return timed

    def sampled(self, count: int, took_s: float) -> None:
        """Record how long some stat calls took; report the median once there are enough samples.

        The median, since single calls may have waited for a busy CPU or for the disk.
        """
        if self.sample_left <= 0 or not count:
            return
        self.sample_left -= count
        self.samples.append(took_s / count)
        if self.sample_left <= 0:
            stat_s = sorted(self.samples)[len(self.samples) // 2]
            self.yielding = choose_parallelism(stat_s, 1).threads > 1
            self._send(("stat_time", stat_s))

    def _verify(self, begin: int, end: int, slot: int) -> None:
        """Check whether cached directories are unchanged: their mtime, and the mtime and size of their hot files."""
        known, root, board = self.assignment.known, self.root, self.board
        verify = board.verify
        changed = []
        for number in range(begin, end):
            path, inode, mtime_ns, hot = known[number]
            verify(slot, number)
            sampling = self.sample_left > 0
            began = time.perf_counter() if sampling else 0.0
            try:
                if 0 < len(path) <= SEGMENT_BYTES:
                    status = os.stat(path, dir_fd=root, follow_symlinks=False)
                else:
                    status = status_of(root, path)
            except OSError:
                changed.append(number)
                continue
            if status.st_mtime_ns != mtime_ns or status.st_ino != inode:
                changed.append(number)
            elif hot:
                self.stat_calls.append(len(hot))
                if not self._is_unchanged(path, hot):
                    changed.append(number)
            if sampling:
                self.sampled(1 + len(hot), time.perf_counter() - began)
            if board.stopped:
                return  # the rest of the range was not checked
            if self.yielding:
                self._verified(begin, number + 1, changed)
                self.jobs.append((number + 1, end))
                return
        self._verified(begin, end, changed)

    def _verified(self, begin: int, end: int, changed: list[int]) -> None:
        self.stat_calls.append(end - begin)
        self.verified.append((begin, end, changed))

    def _is_unchanged(self, path: bytes, hot: Sequence[tuple[bytes, int, int]]) -> bool:
        for name, blocks, mtime in hot:
            try:
                status = status_of(self.root, joined(path, name))
            except OSError:
                return False
            if status.st_blocks != blocks or status[stat.ST_MTIME] != mtime:
                return False
        return True

    def share(self, count: int) -> None:
        """Return the oldest jobs to the pool: they have the largest subtrees, most likely."""
        given, self.jobs[:count] = self.jobs[:count], []
        self.flush()
        self._send(("share", given))

    def flush(self) -> None:
        """Send the results. Other threads may append meanwhile."""
        found = tuple(taken(each) for each in (self.records, self.verified, self.stat_calls))
        self.flushed_at = time.monotonic()
        if any(found):
            self._send(("found", found[0], found[1], sum(found[2])))

    def _send(self, message: tuple[Any, ...]) -> None:
        send(self.result_pipe, message)


def taken(items: list[Any]) -> list[Any]:
    """Remove and return the items of a list to which other threads may append."""
    count = len(items)
    out = items[:count]
    del items[:count]
    return out


def mounts_below(root: bytes) -> frozenset[bytes]:
    """Return the mount points below a directory, relative to it. Touches no file system but /proc."""
    from resilience.base.mounts import current_mounts

    above = root.rstrip(b"/") + b"/"
    points = (os.fsencode(mount.point) for mount in current_mounts())
    return frozenset(point[len(above) :] for point in points if point.startswith(above) and point != above)


def start_worker(assignment: Assignment, board: Board, slot: int, threads: int) -> tuple[int, int, int]:
    """Fork a worker; return its pid, the pipe to write jobs to, and the pipe to read results from."""
    job_reader, job_writer = os.pipe2(os.O_CLOEXEC)
    result_reader, result_writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _run_child(assignment, board, slot, threads, job_reader, result_writer)
    os.close(job_reader)
    os.close(result_writer)
    return pid, job_writer, result_reader


def _run_child(assignment: Assignment, board: Board, slot: int, threads: int, jobs: int, results: int) -> None:
    code = 1
    try:
        os.setsid()  # only the parent handles Ctrl-C
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(each, signal.SIG_DFL)
        # A reader of the parent's output waits until every copy of it is closed, and a child that hangs closes none.
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        _close_all_but(jobs, results)
        gc.disable()
        Worker(assignment, board, slot, threads, jobs, results).run()
        code = 0
    except BrokenPipeError:
        code = 0
    finally:
        os._exit(code)


def _close_all_but(*kept: int) -> None:
    begin = 3
    for descriptor in sorted(kept):
        os.closerange(begin, descriptor)
        begin = descriptor + 1
    os.closerange(begin, max(begin, min(os.sysconf("SC_OPEN_MAX"), 65536)))


PIECE = 32
"""Entries of a large directory per piece, the unit that threads share."""

POLL_S = 0.005


class Large:
    """The entries of a directory, in pieces that several threads stat."""

    def __init__(self, entries: Sequence[os.DirEntry[str]]) -> None:
        self.entries = entries
        self.pieces: list[list[os.stat_result | None]] = [[] for _ in range(0, len(entries), PIECE)]
        self.left = list(range(len(self.pieces)))
        self.undone = len(self.pieces)
        self.error: OSError | None = None
        self.lock = threading.Lock()
        self.done = threading.Event()

    def help(self) -> None:
        """Stat pieces until none is left."""
        while True:
            with self.lock:
                if not self.left:
                    return
                number = self.left.pop()
            begin = number * PIECE
            try:
                self.pieces[number] = [stat_entry(entry) for entry in self.entries[begin : begin + PIECE]]
            except OSError as error:
                self.error = error
            with self.lock:
                self.undone -= 1
                if not self.undone:
                    self.done.set()


class Threads:
    """The threads of one worker; the main thread sends the results of the others."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.lock = threading.Lock()
        self.wake = threading.Condition(self.lock)
        self.busy = 0
        self.large: list[Large] = []
        for number in range(worker.threads):
            threading.Thread(target=self._run_thread, args=(worker.slot + number,), daemon=True).start()

    def work_off(self) -> None:
        """Wait until the threads have done all jobs; send their results meanwhile."""
        worker = self.worker
        while True:
            with self.wake:
                self.wake.notify_all()
                self.wake.wait(POLL_S)
                if not self.busy and (not worker.jobs or worker.board.stopped):
                    return
            worker.flush()

    def _run_thread(self, slot: int) -> None:
        worker = self.worker
        while True:
            with self.wake:
                while not self.large and (not worker.jobs or worker.board.stopped):
                    self.wake.wait()
                if self.large:
                    large, job = self.large.pop(), None
                else:
                    large, job = None, worker.jobs.pop()
                    self.busy += 1
            if large is not None:
                large.help()
                continue
            try:
                worker.do(job, slot, self._stats)
            finally:
                with self.wake:
                    self.busy -= 1
                    if worker.jobs:
                        self.wake.notify(len(worker.jobs))
                worker.board.set_idle(slot, worker.next_count())

    def _stats(self, entries: Sequence[os.DirEntry[str]]) -> list[os.stat_result | None]:
        if len(entries) <= PIECE:
            return [stat_entry(entry) for entry in entries]
        large = Large(entries)
        with self.wake:
            helpers = min(self.worker.threads - 1, len(large.pieces) - 1)
            self.large += [large] * helpers
            self.wake.notify(helpers)
        large.help()
        while not large.done.wait(0.5):
            pass
        if large.error is not None:
            raise large.error
        return [status for piece in large.pieces for status in piece]
