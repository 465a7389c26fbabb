"""One worker of a scan: a forked child that reads directories, and can be abandoned when it hangs in the kernel.

It receives batches of jobs from one pipe and writes answers to another, in the same order: None for a known directory
that is unchanged, with unchanged remembered files, and the record of the directory otherwise. The worker writes its
position and a sign of life into shared memory, where the parent reads them while the worker hangs.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappushpop, nlargest
from itertools import chain, compress, islice
from operator import attrgetter, itemgetter
from resource import RUSAGE_SELF, getrusage
from typing import Any

from resilience.base.mounts import current_mounts
from resilience.system.child import begin, fork
from resilience.watch.scan.tree import ELSEWHERE, PARTIAL, READ, UNREADABLE, UNTRUSTED, Record, joined

Job = int | bytes
"""The number of a known directory, to be read only if it has changed; or the path of one to read in any case."""

LENGTH = struct.Struct("<I")
"""Precedes each message, which is in marshal's format."""

CHUNK = 512
"""Entries per batch: bounds the memory for a directory of a million entries, and the time between two signs of life."""

RACY_NS = 3_000_000_000
"""A directory that changed less than this before it was read may change again within the same clock tick and keep its
mtime (git calls such entries racily clean; FAT has a resolution of 2 s)."""

REMEMBERED, REMEMBERED_PER_DIRECTORY = 500, 250
"""The files that each scan looks at again: the newest and the largest, so many of each in all and of one directory."""

WAITING = 0.5
"""Stat calls wait for a server if each puts the process to sleep so often (voluntary context switches, getrusage(2)).
Their duration would say the same only on an idle machine."""

THREADS, PIECE = 8, 32
"""Where stat calls wait, so many threads share those of a directory, in pieces of so many entries."""

FLUSH_S = 0.05
SEGMENT_BYTES = 2048
"""Longer paths are opened in steps: the kernel accepts at most PATH_MAX (4096) bytes per call."""

CHECKPOINT_ENDINGS = (".pt", ".pth", ".ckpt", ".safetensors", ".distcp")
"""Checkpoint files of torch, Lightning, Hugging Face and torch.distributed.checkpoint."""

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}  # deleted, or replaced by something else
_links, _uid, _mtime = (itemgetter(number) for number in (3, 4, 8))
_blocks, _name = attrgetter("st_blocks"), attrgetter("name")
_status = partial(os.stat, follow_symlinks=False)
_open = partial(os.open, flags=_OPEN)


def start_worker(
    directory: bytes, known: Sequence[Record], board: memoryview, slot: int, now: int
) -> tuple[int, int, int]:
    """Fork a worker; return its pid, the pipe to write jobs to, and the pipe to read answers from."""
    job_reader, job_writer = os.pipe2(os.O_CLOEXEC)
    answer_reader, answer_writer = os.pipe2(os.O_CLOEXEC)
    pid = fork()
    if pid == 0:
        try:
            begin(job_reader, answer_writer)
            Worker(directory, known, board, slot, now, answer_writer).run(job_reader)
        except OSError:  # the parent was killed
            pass
        finally:
            os._exit(0)
    os.close(job_reader)
    os.close(answer_writer)
    return pid, job_writer, answer_reader


def send(pipe: int, message: Any) -> None:
    """Write one message. Raise BrokenPipeError if the reader has closed the pipe."""
    raw = marshal.dumps(message)
    view = memoryview(LENGTH.pack(len(raw)) + raw)
    while view:
        view = view[os.write(pipe, view) :]


class Worker:
    """The child process. `board[0]` asks it to stop; `board[slot]` is its position, the next one its sign of life."""

    def __init__(
        self, directory: bytes, known: Sequence[Record], board: memoryview, slot: int, now: int, answers: int
    ) -> None:
        self.directory, self.known, self.board, self.slot = directory, known, board, slot
        self.now, self.pipe = now, answers
        self.root = self.device = -1
        self.mounts: dict[bytes, set[bytes]] = {}
        self.answers: list[Any] = []
        self.looks = self.slept = 0
        self.map: Callable[..., Iterable[Any]] = map
        self.newest, self.largest = [0] * REMEMBERED, [0] * REMEMBERED  # heaps: the first is the limit

    def run(self, jobs: int) -> None:
        """Answer batches of jobs until their pipe is closed."""
        try:
            self.root = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK)
            self.device = os.fstat(self.root).st_dev
        except OSError as error:
            send(self.pipe, error.errno)
            return
        self.mounts = mounts_below(self.root, self.directory)
        send(self.pipe, 0)
        with open(jobs, "rb") as file:
            while head := file.read(LENGTH.size):
                self._answer(marshal.loads(file.read(*LENGTH.unpack(head))))

    def _answer(self, jobs: Sequence[Job]) -> None:
        flushed = time.monotonic()
        for number, job in enumerate(jobs):
            self.board[self.slot] = number
            if self.board[0]:
                break
            if isinstance(job, bytes):
                self.answers.append(tuple(self.read(job)))
            elif self._is_unchanged(self.known[job]):
                self.answers.append(None)
            else:
                self.answers.append(tuple(self.read(self.known[job].path)))
            if time.monotonic() - flushed > FLUSH_S:
                self._flush()
                flushed = time.monotonic()
        self._flush()

    def _flush(self) -> None:
        self._stops(0)
        send(self.pipe, (self.answers, self.looks, self.map is not map))
        self.answers, self.looks, self.slept = [], 0, getrusage(RUSAGE_SELF).ru_nvcsw

    def _stops(self, looks: int) -> bool:
        """Give a sign of life after this many stat calls; return whether the parent asks to stop."""
        self.board[self.slot + 1] += 1
        self.looks += looks
        if self.map is map and getrusage(RUSAGE_SELF).ru_nvcsw - self.slept > WAITING * self.looks > 20:
            from concurrent.futures import ThreadPoolExecutor

            self.map = ThreadPoolExecutor(THREADS).map
        return bool(self.board[0])

    def _is_unchanged(self, known: Record) -> bool:
        """Return whether neither the directory nor one of its remembered files has changed."""
        self.looks += 1 + len(known.remembered)
        try:
            own = self._look(known.path)
            if own.st_mtime_ns != known.mtime_ns or own.st_ino != known.inode:
                return False
            for name, blocks, mtime in known.remembered:
                status = self._look(joined(known.path, name))
                if status.st_blocks != blocks or status[stat.ST_MTIME] != mtime:
                    return False
        except OSError:
            return False
        return True

    def _look(self, path: bytes) -> os.stat_result:
        if 0 < len(path) <= SEGMENT_BYTES:
            return os.stat(path, dir_fd=self.root, follow_symlinks=False)
        return beneath(self.root, path, _status)  # type: ignore[no-any-return]

    def read(self, path: bytes) -> Record:
        """Read one directory; errors are in its record."""
        above, _, name = path.rpartition(b"/")
        if path and name in self.mounts.get(above, ()):  # not even probed: the mount may hang
            return Record(path, ELSEWHERE, read_at=self.now)
        try:
            directory = beneath(self.root, path, _open)
        except OSError as error:
            return self._unopened(path, error.errno or errno.EIO)
        try:
            own = os.fstat(directory)
            if own.st_dev != self.device:
                return Record(path, ELSEWHERE, inode=own.st_ino, read_at=self.now)
            return self._read(directory, path, own)
        finally:
            os.close(directory)

    def _read(self, directory: int, path: bytes, own: os.stat_result) -> Record:
        # Taken before the first entry is read, by this machine's own clock: later changes must be detected.
        sure_before_ns = time.time_ns() - RACY_NS
        sums, state, trouble = Sums(), READ, 0
        children: list[bytes] = []
        mounts = self.mounts.get(path)
        try:
            with os.scandir(directory) as found:
                while entries := list(islice(found, CHUNK)):
                    # scandir returns the type with the name: directories need no stat call until they are opened.
                    are_directories = [entry.is_dir(follow_symlinks=False) for entry in entries]
                    if mounts:
                        are_directories = [
                            is_one or os.fsencode(entry.name) in mounts
                            for entry, is_one in zip(entries, are_directories, strict=True)
                        ]
                    if True in are_directories:
                        children += map(os.fsencode, map(_name, compress(entries, are_directories)))
                        entries = [entry for entry, no in zip(entries, are_directories, strict=True) if not no]
                    sums.add(entries, self._stat_all(entries), self.newest[0], self.largest[0])
                    if self._stops(len(entries)):
                        state = PARTIAL
                        break
        except OSError as error:
            if error.errno in _GONE and not sums.files:
                return Record(path, UNREADABLE, inode=own.st_ino, read_at=self.now, trouble=errno.ENOENT)
            state, trouble = UNREADABLE, error.errno or errno.EIO
        mtime_ns = own.st_mtime_ns if state == READ and own.st_mtime_ns < sure_before_ns else UNTRUSTED
        uid = max(sums.by_uid, key=sums.by_uid.__getitem__, default=own.st_uid)
        return Record(
            path, state, own.st_ino, mtime_ns, self.now, sums.blocks + own.st_blocks, sums.files,
            max(sums.newest, int(own.st_mtime)), uid, sums.checkpoint_blocks, trouble, tuple(sums.links),
            self._remembered(sums), tuple(sorted(children)),
        )  # fmt: skip

    def _stat_all(self, entries: Sequence[os.DirEntry[str]]) -> list[os.stat_result | None]:
        if self.map is map or len(entries) <= PIECE:
            return stat_entries(entries)
        pieces = [entries[begin : begin + PIECE] for begin in range(0, len(entries), PIECE)]
        return list(chain.from_iterable(self.map(stat_entries, pieces)))

    def _remembered(self, sums: Sums) -> tuple[tuple[bytes, int, int], ...]:
        """Return the files of a directory to look at again: the newest or largest that this worker has seen."""
        for _, blocks, mtime in sums.candidates:
            heappushpop(self.newest, mtime)
            heappushpop(self.largest, blocks)
        return newest_and_largest(sums.candidates, REMEMBERED_PER_DIRECTORY)

    def _unopened(self, path: bytes, number: int) -> Record:
        """Return the record of a directory that cannot be opened. Its own blocks count, if its parent is accessible."""
        if number in _GONE:
            return Record(path, UNREADABLE, read_at=self.now, trouble=errno.ENOENT)
        try:
            own = self._look(path)
        except OSError:
            return Record(path, UNREADABLE, read_at=self.now, trouble=number)
        return Record(
            path, UNREADABLE, own.st_ino, UNTRUSTED, self.now, own.st_blocks if own.st_dev == self.device else 0,
            newest=int(own.st_mtime), uid=own.st_uid, trouble=number,
        )  # fmt: skip


class Sums:
    """The sums over the files of one directory."""

    def __init__(self) -> None:
        self.blocks = self.files = self.newest = self.checkpoint_blocks = 0
        self.by_uid: dict[int, int] = {}
        self.links: list[tuple[int, int]] = []
        self.candidates: list[tuple[bytes, int, int]] = []

    def add(
        self,
        entries: Sequence[os.DirEntry[str]],
        statuses: Sequence[os.stat_result | None],
        newer_than: int,
        larger_than: int,
    ) -> None:
        """Add the files of one chunk; those newer or larger than this are candidates to look at again."""
        if not all(statuses):  # some were deleted meanwhile
            entries = list(compress(entries, statuses))
        stats = list(filter(None, statuses))
        if not stats:
            return
        blocks, times, uids = list(map(_blocks, stats)), list(map(_mtime, stats)), set(map(_uid, stats))
        self.files += len(stats)
        self.blocks += sum(blocks)
        self.newest = max(self.newest, *times)
        if max(map(_links, stats)) > 1:
            self.links += [(status.st_ino, status.st_blocks) for status in stats if status.st_nlink > 1]
        for uid in uids:
            held = sum(blocks) if len(uids) == 1 else sum(s.st_blocks for s in stats if s.st_uid == uid)
            self.by_uid[uid] = self.by_uid.get(uid, 0) + held
        if max(times) > newer_than or max(blocks) > larger_than:
            found = [
                (entry.name, count, mtime)
                for entry, count, mtime, status in zip(entries, blocks, times, stats, strict=True)
                if (mtime > newer_than or count > larger_than) and stat.S_ISREG(status.st_mode)
            ]
            kept = newest_and_largest(found, REMEMBERED_PER_DIRECTORY)
            self.candidates += [(os.fsencode(name), count, mtime) for name, count, mtime in kept]
        names = "/".join(map(_name, entries)) + "/"
        if any(ending in names for ending in CHECKPOINT_ENDINGS):
            are_checkpoints = [entry.name.endswith(CHECKPOINT_ENDINGS) for entry in entries]
            self.checkpoint_blocks += sum(compress(blocks, are_checkpoints))


def newest_and_largest(files: Sequence[tuple[Any, int, int]], most: int) -> tuple[tuple[Any, int, int], ...]:
    """Return the `most` newest and the `most` largest of (name, blocks, mtime). Pure."""
    if len(files) <= most:
        return tuple(files)
    newest, largest = nlargest(most, files, key=itemgetter(2)), nlargest(most, files, key=itemgetter(1))
    return tuple(dict.fromkeys((*newest, *largest)))


def stat_entries(entries: Sequence[os.DirEntry[str]]) -> list[os.stat_result | None]:
    """Return the statuses of entries, in order; None for each deleted one. Raise OSError if one cannot be read."""
    try:
        return [entry.stat(follow_symlinks=False) for entry in entries]
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return [_stat_entry(entry) for entry in entries]


def _stat_entry(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise


def beneath(root: int, path: bytes, call: Callable[..., Any]) -> Any:
    """Return `call(path, dir_fd=root)`, for a path of any length. Raise OSError if a directory cannot be opened."""
    opened = root
    try:
        while len(path) > SEGMENT_BYTES:
            cut = path.rfind(b"/", 0, SEGMENT_BYTES)
            before, opened = opened, os.open(path[:cut], _OPEN, dir_fd=opened)
            path = path[cut + 1 :]
            if before != root:
                os.close(before)
        return call(path or b".", dir_fd=opened)
    finally:
        if opened != root:
            os.close(opened)


def mounts_below(root: int, directory: bytes) -> dict[bytes, set[bytes]]:
    """Return the mount points below a directory: parent -> names, relative to it. Touches no other file system."""
    try:
        real = os.fsencode(os.readlink(f"/proc/self/fd/{root}"))  # noqa: PTH115 - bytes, whatever they are
    except OSError:  # a container without /proc
        real = os.path.realpath(directory)
    above, found = real.rstrip(b"/") + b"/", dict[bytes, set[bytes]]()
    for mount in current_mounts():
        point = os.fsencode(mount.point)
        if point.startswith(above) and point != above:
            parent, _, name = point[len(above) :].rpartition(b"/")
            found.setdefault(parent, set()).add(name)
    return found
