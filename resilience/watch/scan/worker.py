"""One worker of a scan: a forked child that reads directories, and can be left behind when it hangs in the kernel.

It takes jobs from a pipe and writes records to another: a length, and plain values as marshal writes them. A job is the
path of a directory to read with all that is below it and not known yet, or a range of known directories to verify. On a
network file system each stat waits for a server, and Python does not: there one worker has many threads.

Workers note where they are on a page of shared memory, the board, and read there whether to stop or to share. That
needs no system call and no lock, so it costs next to nothing at each directory; and it can be read while the worker
that wrote it hangs in the kernel.
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

from resilience.watch.scan.directory import RECENT_S, SEGMENT_BYTES, Stats, look, look_at_all, read_directory, status_of
from resilience.watch.scan.tree import ELSEWHERE, MOST_HOT, PARTIAL, STUCK, Hot, Record, joined

_SLOT_BYTES = 4096
_HEAD = struct.Struct("<QH")
_IDLE, _NUMBERED = 0xFFFF, 0xFFFE
LONGEST = _SLOT_BYTES - _HEAD.size


class Board:
    """One slot for each thread of each worker. Byte 0: stop; byte 1: somebody has nothing to do."""

    def __init__(self, slots: int) -> None:
        self._memory = mmap.mmap(-1, _SLOT_BYTES * (slots + 1))
        for slot in range(slots):
            self.set_idle(slot, 0)

    @property
    def stopped(self) -> bool:
        """Whether everybody is to come to an end."""
        return self._memory[0] != 0

    def stop(self) -> None:
        """Tell everybody to come to an end."""
        self._memory[0] = 1

    @property
    def wants_work(self) -> bool:
        """Whether somebody has nothing to do."""
        return self._memory[1] != 0

    @wants_work.setter
    def wants_work(self, value: bool) -> None:
        self._memory[1] = value

    def enter(self, slot: int, path: bytes, count: int) -> None:
        """Note what is about to be looked at; `count` is different each time."""
        told = path[:LONGEST]
        start = _SLOT_BYTES * (slot + 1)
        self._memory[start + _HEAD.size : start + _HEAD.size + len(told)] = told
        _HEAD.pack_into(self._memory, start, count, len(told))

    def verify(self, slot: int, number: int) -> None:
        """Note which of the known directories is about to be verified: shorter to write than its path."""
        _HEAD.pack_into(self._memory, _SLOT_BYTES * (slot + 1), number, _NUMBERED)

    def tick(self, slot: int, count: int) -> None:
        """Note that it goes on in the same directory."""
        self._memory[_SLOT_BYTES * (slot + 1) : _SLOT_BYTES * (slot + 1) + 8] = count.to_bytes(8, "little")

    def set_idle(self, slot: int, count: int) -> None:
        """Note that there is nothing to do."""
        _HEAD.pack_into(self._memory, _SLOT_BYTES * (slot + 1), count, _IDLE)

    def where(self, slot: int) -> tuple[int, bytes | int | None]:
        """The count, and what is being looked at: a path (its first LONGEST bytes), the number of a known directory, or
        None for resting."""
        start = _SLOT_BYTES * (slot + 1)
        count, length = _HEAD.unpack_from(self._memory, start)
        if length == _IDLE:
            return count, None
        if length == _NUMBERED:
            return count, count
        return count, self._memory[start + _HEAD.size : start + _HEAD.size + length]


LENGTH = struct.Struct("<I")


def send(pipe: int, message: Any) -> None:
    """Write one message. Raise BrokenPipeError when nobody reads any more."""
    raw = marshal.dumps(message)
    view = memoryview(LENGTH.pack(len(raw)) + raw)
    while view:
        view = view[os.write(pipe, view) :]


def receive(pipe: int) -> Any:
    """Read one message. Raise EOFError when nobody writes any more."""
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


FLUSH_S = 0.05
"""How long records wait before they are told: a worker that hangs takes no more than these with it."""

FLUSH_RECORDS = 256
SAMPLE, SAMPLED_AT_ONCE = 200, 20
"""Looks that are timed before it is decided how to go on."""


Known = tuple[bytes, int, int, Sequence[tuple[bytes, int, int]]]
"""What an earlier scan knows of one directory: its path from the root, its inode, its mtime in ns, and (name, blocks,
mtime in s) of files in it that may have grown in place. Plain tuples: there are many, and most are only compared."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What all workers of one scan know from the start.

    Attributes:
        directory: the root, as a path.
        now: seconds since the epoch, as the scan tells it.
        known: the directories of an earlier scan, for jobs that verify.
        is_known: whether a directory below need not be read again because an earlier scan has.
        stuck: directories at which workers of this scan hang; those that start later keep away from them.
    """

    directory: bytes
    now: int
    known: Sequence[Known] = ()
    is_known: Callable[[bytes], bool] = lambda path: False
    stuck: list[bytes] = field(default_factory=list)


class Worker:
    """The child's side. `slot` is its first on the board; it has one for each of its threads."""

    def __init__(self, assignment: Assignment, board: Board, slot: int, threads: int, take: int, tell: int) -> None:
        self.assignment, self.board, self.slot, self.threads = assignment, board, slot, threads
        self.take, self.tell = take, tell
        self.jobs: list[Any] = []
        self.records: list[tuple[object, ...]] = []
        self.verified: list[tuple[int, int, list[int]]] = []
        self.looks: list[int] = []
        self.count = 0
        self.flushed_at = time.monotonic()
        self.root = -1
        self.device = 0
        self.barriers: frozenset[bytes] = frozenset()
        self.recent = assignment.now - RECENT_S
        self.hot_times: list[int] = []
        self.yielding = False  # looks are slow here: many threads will go on in its place
        self.samples: list[float] = []
        self.sample_left = SAMPLE if threads == 1 else 0  # several threads: it was timed already

    def live(self) -> None:
        """Take jobs until there are no more, or until told to stop."""
        self.board.enter(self.slot, b"", 0)
        try:
            self.root = os.open(self.assignment.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK)
            self.device = os.fstat(self.root).st_dev
        except OSError as error:
            self._say(("closed", error.errno))
            return
        try:
            real = os.fsencode(os.readlink(f"/proc/self/fd/{self.root}"))  # noqa: PTH115 - bytes, whatever they are
        except OSError:  # a container without /proc
            real = os.path.realpath(self.assignment.directory)
        self.barriers = mounts_below(real)
        self._say(("opened", real))
        self.board.set_idle(self.slot, 1)
        pool = None
        if self.threads > 1:
            pool = Threads(self)
        while True:
            self._say(("idle",))
            try:
                jobs = receive(self.take)
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
        """A number that was not there before: that it changes is how the others see that this one lives."""
        self.count += 1
        return self.count

    def work_off(self) -> None:
        """Do all the jobs there are, and those that arise from them; give some away to who has none."""
        jobs, board = self.jobs, self.board
        while jobs and not board.stopped and not self.yielding:
            self.do(jobs.pop(), self.slot, look_at_all)
            if len(self.records) >= FLUSH_RECORDS or time.monotonic() - self.flushed_at > FLUSH_S:
                self.flush()
            if board.wants_work and len(jobs) > 1:
                board.wants_work = False
                self.share(len(jobs) // 2)
        if self.yielding:
            self.share(len(jobs))

    def do(self, job: Any, slot: int, stats: Stats) -> None:
        """One job."""
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
            self.looks.append(entries)
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
            self._notice(record.hot)

    def _notice(self, files: Sequence[Hot]) -> None:
        """Of all the files that may be growing only the newest will be remembered: older ones need not be noted."""
        self.hot_times += [file.mtime for file in files]
        if len(self.hot_times) > 2 * MOST_HOT:
            self.hot_times = sorted(self.hot_times)[-MOST_HOT:]
            self.recent = max(self.recent, self.hot_times[0] + 1)

    def _timed(self, stats: Stats) -> Stats:
        def timed(entries: Any) -> list[os.stat_result | None]:
            looked: list[os.stat_result | None] = []
            while self.sample_left > 0 and len(looked) < len(entries):
                some = entries[len(looked) : len(looked) + SAMPLED_AT_ONCE]
                began = time.perf_counter()
                looked += stats(some)
                self.sampled(len(some), time.perf_counter() - began)
            return looked + stats(entries[len(looked) :])

        return timed

    def sampled(self, looks: int, took_s: float) -> None:
        """Note how long some looks took; tell it when there were enough.

        The middle of several: one look may have waited for a busy processor, or for the disk.
        """
        if self.sample_left <= 0 or not looks:
            return
        self.sample_left -= looks
        self.samples.append(took_s / looks)
        if self.sample_left <= 0:
            look_s = sorted(self.samples)[len(self.samples) // 2]
            self.yielding = decide(look_s, 1).threads > 1
            self._say(("pace", look_s))

    def _verify(self, begin: int, end: int, slot: int) -> None:
        """Look whether known directories are as they were: their mtime tells, and of files that may grow their own."""
        known, root, board = self.assignment.known, self.root, self.board
        look, verify = os.stat, board.verify
        changed = []
        for number in range(begin, end):
            path, inode, mtime_ns, hot = known[number]
            verify(slot, number)
            sampling = self.sample_left > 0
            began = time.perf_counter() if sampling else 0.0
            try:
                if 0 < len(path) <= SEGMENT_BYTES:
                    status = look(path, dir_fd=root, follow_symlinks=False)
                else:
                    status = status_of(root, path)
            except OSError:
                changed.append(number)
                continue
            if status.st_mtime_ns != mtime_ns or status.st_ino != inode:
                changed.append(number)
            elif hot:
                self.looks.append(len(hot))
                if not self._as_they_were(path, hot):
                    changed.append(number)
            if sampling:
                self.sampled(1 + len(hot), time.perf_counter() - began)
            if board.stopped:
                return  # what was not looked at is not said to be as it was
            if self.yielding:
                self._verified(begin, number + 1, changed)
                self.jobs.append((number + 1, end))
                return
        self._verified(begin, end, changed)

    def _verified(self, begin: int, end: int, changed: list[int]) -> None:
        self.looks.append(end - begin)
        self.verified.append((begin, end, changed))

    def _as_they_were(self, path: bytes, hot: Sequence[tuple[bytes, int, int]]) -> bool:
        for name, blocks, mtime in hot:
            try:
                status = status_of(self.root, joined(path, name))
            except OSError:
                return False
            if status.st_blocks != blocks or status[stat.ST_MTIME] != mtime:
                return False
        return True

    def share(self, count: int) -> None:
        """Give away the oldest jobs, below which most is to be expected."""
        given, self.jobs[:count] = self.jobs[:count], []
        self.flush()
        self._say(("share", given))

    def flush(self) -> None:
        """Tell what was found. Other threads may append meanwhile."""
        found = tuple(taken(each) for each in (self.records, self.verified, self.looks))
        self.flushed_at = time.monotonic()
        if any(found):
            self._say(("found", found[0], found[1], sum(found[2])))

    def _say(self, message: tuple[Any, ...]) -> None:
        send(self.tell, message)


def taken(items: list[Any]) -> list[Any]:
    """Take out what is in a list, while others may append to it."""
    count = len(items)
    out = items[:count]
    del items[:count]
    return out


def mounts_below(root: bytes) -> frozenset[bytes]:
    """The mount points below a directory, relative to it. Asks the kernel, and touches no file system."""
    from resilience.base.mounts import current_mounts

    above = root.rstrip(b"/") + b"/"
    points = (os.fsencode(mount.point) for mount in current_mounts())
    return frozenset(point[len(above) :] for point in points if point.startswith(above) and point != above)


def start_worker(assignment: Assignment, board: Board, slot: int, threads: int) -> tuple[int, int, int]:
    """Fork a worker; return its pid, the pipe that takes its jobs, and the pipe that it tells by."""
    take, give = os.pipe2(os.O_CLOEXEC)
    hear, tell = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _life(assignment, board, slot, threads, take, tell)
    os.close(take)
    os.close(tell)
    return pid, give, hear


def _life(assignment: Assignment, board: Board, slot: int, threads: int, take: int, tell: int) -> None:
    code = 1
    try:
        os.setsid()  # Ctrl-C is for the one who shows what is known
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(each, signal.SIG_DFL)
        # Whoever reads our parent's output waits until every copy of it is closed; a child that hangs closes nothing.
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        _close_all_but(take, tell)
        gc.disable()
        Worker(assignment, board, slot, threads, take, tell).live()
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
"""Entries of a large directory that one thread looks at before it takes the next."""

POLL_S = 0.005


class Large:
    """The entries of a directory, cut into pieces that several threads look at."""

    def __init__(self, entries: Sequence[os.DirEntry[str]]) -> None:
        self.entries = entries
        self.looked: list[list[os.stat_result | None]] = [[] for _ in range(0, len(entries), PIECE)]
        self.left = list(range(len(self.looked)))
        self.undone = len(self.looked)
        self.trouble: OSError | None = None
        self.lock = threading.Lock()
        self.done = threading.Event()

    def help(self) -> None:
        """Look at pieces until none is left."""
        while True:
            with self.lock:
                if not self.left:
                    return
                number = self.left.pop()
            try:
                self.looked[number] = [look(entry) for entry in self.entries[number * PIECE : (number + 1) * PIECE]]
            except OSError as error:
                self.trouble = error
            with self.lock:
                self.undone -= 1
                if not self.undone:
                    self.done.set()


class Threads:
    """The threads of one worker; the main thread talks, the others look."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.lock = threading.Lock()
        self.wake = threading.Condition(self.lock)
        self.busy = 0
        self.large: list[Large] = []
        for number in range(worker.threads):
            threading.Thread(target=self._live, args=(worker.slot + number,), daemon=True).start()

    def work_off(self) -> None:
        """Wait until the threads have done all the jobs; meanwhile tell what they found, and give work away."""
        worker = self.worker
        while True:
            with self.wake:
                self.wake.notify_all()
                self.wake.wait(POLL_S)
                if not self.busy and (not worker.jobs or worker.board.stopped):
                    return
            worker.flush()

    def _live(self, slot: int) -> None:
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
            return [look(entry) for entry in entries]
        large = Large(entries)
        with self.wake:
            helpers = min(self.worker.threads - 1, len(large.looked) - 1)
            self.large += [large] * helpers
            self.wake.notify(helpers)
        large.help()
        while not large.done.wait(0.5):
            pass
        if large.trouble is not None:
            raise large.trouble
        return [status for piece in large.looked for status in piece]
