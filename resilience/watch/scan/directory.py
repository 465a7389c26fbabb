"""Reads one directory: one stat call per entry, the sums in C. A scan spends most of its time here."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, islice
from operator import attrgetter, itemgetter

from resilience.watch.scan.tree import ELSEWHERE, PARTIAL, READ, UNREADABLE, UNTRUSTED, Hot, Record, joined

CHUNK = 512
"""Entries per batch: bounds the memory for a directory of a million entries, and the time between two signs of life."""

RACY_NS = 3_000_000_000
"""A directory that changed less than this before it was read may change again within the same clock tick and keep its
mtime (git calls such entries racily clean; FAT has a resolution of 2 s)."""

RECENT_S = 86400
HOT_PER_DIRECTORY = 4
LARGE_BLOCKS = 2**15  # 16 MiB

CHECKPOINT_ENDINGS = (".pt", ".pth", ".ckpt", ".safetensors", ".distcp")
"""Checkpoint files of torch, Lightning, Hugging Face and torch.distributed.checkpoint."""

SEGMENT_BYTES = 2048
"""Longer paths are opened in steps: the kernel accepts at most PATH_MAX (4096) bytes per call."""

Stats = Callable[[Sequence["os.DirEntry[str]"]], list[os.stat_result | None]]

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}  # deleted, or replaced by something else

_links, _uid, _mtime = (itemgetter(number) for number in (3, 4, 8))
_blocks, _name = attrgetter("st_blocks"), attrgetter("name")


def stat_entry(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the status of an entry, without following links; None if it was deleted. Raise OSError otherwise."""
    try:
        return entry.stat(follow_symlinks=False)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise


def stat_entries(entries: Sequence[os.DirEntry[str]]) -> list[os.stat_result | None]:
    """Return the statuses of entries, in order; None for each deleted one."""
    try:
        return [entry.stat(follow_symlinks=False) for entry in entries]
    except OSError:
        return [stat_entry(entry) for entry in entries]


def open_directory(root: int, path: bytes) -> int:
    """Open a directory below the root, at any depth. Raise OSError if it is no directory or cannot be opened."""
    if not path:
        return os.dup(root)
    if len(path) <= SEGMENT_BYTES:
        return os.open(path, _OPEN, dir_fd=root)
    above, name = split_long(path)
    parent = open_directory_steps(root, above)
    try:
        return os.open(name, _OPEN, dir_fd=parent)
    finally:
        os.close(parent)


def open_directory_steps(root: int, path: bytes) -> int:
    """Open a directory as `open_directory` does, in as many steps as the path needs; not recursive, so of any depth."""
    opened = os.dup(root)
    try:
        while path:
            if len(path) <= SEGMENT_BYTES:
                step, path = path, b""
            else:
                cut = path.rfind(b"/", 0, SEGMENT_BYTES)
                step, path = path[:cut], path[cut + 1 :]
            opened, before = os.open(step, _OPEN, dir_fd=opened), opened
            os.close(before)
    except BaseException:
        os.close(opened)
        raise
    return opened


def split_long(path: bytes) -> tuple[bytes, bytes]:
    """Return the parent's path and the name. Pure."""
    above, _, name = path.rpartition(b"/")
    return above, name


def status_of(root: int, path: bytes) -> os.stat_result:
    """Return the status of a directory below the root, at any depth. Raise OSError if it does not exist."""
    if not path:
        return os.fstat(root)
    if len(path) <= SEGMENT_BYTES:
        return os.stat(path, dir_fd=root, follow_symlinks=False)
    above, name = split_long(path)
    parent = open_directory_steps(root, above)
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(parent)


class Sums:
    """The sums over the chunks of one directory."""

    __slots__ = ("by_uid", "checkpoint_blocks", "children", "files", "hot", "links", "newest", "total")

    def __init__(self) -> None:
        self.total = self.files = self.newest = self.checkpoint_blocks = 0
        self.by_uid: dict[int, int] = {}
        self.children: list[bytes] = []
        self.links: list[tuple[int, int]] = []
        self.hot: list[Hot] = []

    def add(self, entries: Sequence[os.DirEntry[str]], statuses: Sequence[os.stat_result | None], recent: int) -> None:
        """Add the files of one chunk. Files changed since `recent` may still be growing."""
        if not all(statuses):  # some were deleted meanwhile
            entries = list(compress(entries, statuses))
        stats = list(filter(None, statuses))
        if not stats:
            return
        blocks = list(map(_blocks, stats))
        self.files += len(stats)
        if max(map(_links, stats)) > 1:
            self.links += [(status.st_ino, status.st_blocks) for status in stats if status.st_nlink > 1]
        uids = set(map(_uid, stats))
        if len(uids) == 1:
            added = sum(blocks)
            self.total += added
            (uid,) = uids
            self.by_uid[uid] = self.by_uid.get(uid, 0) + added
        else:
            for uid, count in zip(map(_uid, stats), blocks, strict=True):
                self.total += count
                self.by_uid[uid] = self.by_uid.get(uid, 0) + count
        self._hot(entries, stats, blocks, recent)
        names = "/".join(map(_name, entries)) + "/"
        if any(ending in names for ending in CHECKPOINT_ENDINGS):
            are_checkpoints = [entry.name.endswith(CHECKPOINT_ENDINGS) for entry in entries]
            self.checkpoint_blocks += sum(compress(blocks, are_checkpoints))

    def _hot(
        self, entries: Sequence[os.DirEntry[str]], stats: list[os.stat_result], blocks: list[int], recent: int
    ) -> None:
        times = list(map(_mtime, stats))
        newest, largest = max(times), max(blocks)
        self.newest = max(self.newest, newest)
        chosen: list[int] = []
        if newest >= recent:
            least = max(recent, sorted(times)[-HOT_PER_DIRECTORY:][0])
            chosen = [number for number, changed in enumerate(times) if changed >= least][:HOT_PER_DIRECTORY]
        if largest >= LARGE_BLOCKS:
            chosen.append(blocks.index(largest))
        for number in set(chosen):
            if stat.S_ISREG(stats[number].st_mode):
                self.hot.append(Hot(os.fsencode(entries[number].name), blocks[number], times[number]))

    def kept_hot(self) -> tuple[Hot, ...]:
        """Return the few hot files to keep: the newest ones, and the largest."""
        if len(self.hot) <= HOT_PER_DIRECTORY:
            return tuple(self.hot)
        newest = sorted(self.hot, key=lambda hot: hot.mtime)[-HOT_PER_DIRECTORY:]
        largest = max(self.hot, key=lambda hot: hot.blocks)
        return tuple(newest if largest in newest else [*newest, largest])


def read_directory(
    root: int,
    path: bytes,
    *,
    device: int,
    now: int,
    recent: int | None = None,
    barriers: frozenset[bytes] = frozenset(),
    stats: Stats = stat_entries,
    alive: Callable[[int], bool] = lambda _: True,
) -> Record:
    """Read one directory below the root and return its record; errors are in the record.

    `device`: st_dev of the root; other file systems are not entered. `barriers`: mount points, which are not even
    probed, because the mount may hang. Files changed since `recent` may still grow: the newest of them are recorded.
    `alive` is called with the number of entries after each chunk, and returns whether to continue.
    """
    try:
        directory = open_directory(root, path)
    except OSError as error:
        return _unopened(root, path, error, device, now)
    try:
        own = os.fstat(directory)
        if own.st_dev != device:
            return Record(path, ELSEWHERE, inode=own.st_ino, read_at=now)
        return _read_open(
            directory, path, own, now, now - RECENT_S if recent is None else recent, barriers, stats, alive
        )
    finally:
        os.close(directory)


def _read_open(
    directory: int,
    path: bytes,
    own: os.stat_result,
    now: int,
    recent: int,
    barriers: frozenset[bytes],
    stats: Stats,
    alive: Callable[[int], bool],
) -> Record:
    # Taken before the first entry is read, by this machine's own clock: later changes must be detected.
    sure_before_ns = time.time_ns() - RACY_NS
    sums, state, error_number = Sums(), READ, 0
    barred: list[bytes] = []
    try:
        with os.scandir(directory) as found:
            while entries := list(islice(found, CHUNK)):
                if barriers:
                    entries, mounts = _split_mounts(entries, path, barriers)
                    barred += mounts
                # scandir returns the type with the name: directories need no stat call until they are opened.
                are_directories = [entry.is_dir(follow_symlinks=False) for entry in entries]
                if True in are_directories:
                    sums.children += map(os.fsencode, map(_name, compress(entries, are_directories)))
                    entries = [entry for entry in entries if not entry.is_dir(follow_symlinks=False)]
                sums.add(entries, stats(entries), recent)
                if not alive(len(entries)):
                    state = PARTIAL
                    break
    except OSError as error:
        if error.errno in _GONE and not sums.files:
            return Record(path, UNREADABLE, inode=own.st_ino, read_at=now, trouble=errno.ENOENT)
        state, error_number = UNREADABLE, error.errno or errno.EIO
    uid = max(sums.by_uid, key=sums.by_uid.__getitem__) if sums.by_uid else own.st_uid
    return Record(
        path,
        state,
        inode=own.st_ino,
        mtime_ns=own.st_mtime_ns if state == READ and own.st_mtime_ns < sure_before_ns else UNTRUSTED,
        read_at=now,
        blocks=sums.total + own.st_blocks,
        files=sums.files,
        newest=max(sums.newest, int(own.st_mtime)),
        uid=uid,
        checkpoint_blocks=sums.checkpoint_blocks,
        trouble=error_number,
        links=tuple(sums.links),
        hot=sums.kept_hot(),
        children=tuple(sorted([*sums.children, *barred])),
    )


def _split_mounts(
    entries: Iterable[os.DirEntry[str]], path: bytes, barriers: frozenset[bytes]
) -> tuple[list[os.DirEntry[str]], list[bytes]]:
    kept, mounts = [], []
    for entry in entries:
        name = os.fsencode(entry.name)
        if joined(path, name) in barriers:
            mounts.append(name)
        else:
            kept.append(entry)
    return kept, mounts


def _unopened(root: int, path: bytes, error: OSError, device: int, now: int) -> Record:
    """Return the record of a directory that cannot be opened. Its own blocks count, if its parent is accessible."""
    number = error.errno or errno.EIO
    if number in _GONE:
        return Record(path, UNREADABLE, read_at=now, trouble=errno.ENOENT)
    try:
        own = status_of(root, path)
    except OSError:
        return Record(path, UNREADABLE, read_at=now, trouble=number)
    blocks = own.st_blocks if own.st_dev == device else 0
    return Record(
        path, UNREADABLE, inode=own.st_ino, read_at=now, blocks=blocks, newest=int(own.st_mtime), uid=own.st_uid,
        trouble=number,
    )  # fmt: skip
