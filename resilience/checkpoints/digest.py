"""Digests of files, and which files a checkpoint has.

A file is read in chunks, so that memory stays small. After a sync, its pages leave the page cache: the training that
has written them does not read them, and a later verification reads from the disk.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from typing import NamedTuple

from resilience.base.files import kind_of
from resilience.checkpoints.manifest import ALGORITHMS
from resilience.checkpoints.names import OWN
from resilience.errors import CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

CHUNK_BYTES = 2**20
AHEAD_BYTES = 2**24
"""The kernel is asked for this much at a time, before it is read: its own 128 KiB leave a fast disk half idle."""
MOST_FILES = 500_000
"""Of a checkpoint: half a million take 300 MB of memory to commit, and minutes to open on a file server."""


class OutOfTime(Exception):
    """The deadline came before the end of a file."""


class Listing(NamedTuple):
    """What a checkpoint has on disk.

    Attributes:
        sizes: of its files, in bytes, by path relative to the checkpoint; `""` for one that is a single file.
        directories: paths of the directories inside, parents first.
    """

    sizes: dict[str, int]
    directories: list[str]


def list_files(root: str | Path, *, most: int = MOST_FILES) -> Listing:
    """Return the files below `root`, without `.resil/` in it and without what NFS keeps of removed files (`.nfs...`).

    Raise CheckpointError for more than `most` files, and for what is neither a file nor a directory: a link leads to
    data that the checkpoint does not own. Raise OSError if a directory cannot be read.
    """
    info = os.lstat(root)
    if stat.S_ISREG(info.st_mode):
        return Listing({"": info.st_size}, [])
    sizes: dict[str, int] = {}
    directories: list[str] = []
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        with os.scandir(os.path.join(root, directory)) as entries:
            for entry in entries:
                path = f"{directory}/{entry.name}" if directory else entry.name
                if path == OWN or entry.name.startswith(".nfs"):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    directories.append(path)
                    waiting.append(path)
                    continue
                info = entry.stat(follow_symlinks=False)
                if kind := kind_of(info):
                    raise CheckpointError(
                        f"{os.path.join(root, path)} is {kind}; a checkpoint has files and directories only",
                        hint="save the data itself there",
                    )
                sizes[path] = info.st_size
                if len(sizes) > most:
                    raise CheckpointError(
                        f"{root} has more than {most:,} files", hint="save fewer and larger files, such as one per rank"
                    )
    return Listing(sizes, directories)


def best_algorithm() -> str:
    """Return the algorithm for new digests: xxh3_128 with the package `xxhash`, else crc32."""
    try:
        import xxhash  # noqa: F401 - is it there
    except ImportError:
        return "crc32"
    return "xxh3_128"


def is_known(algorithm: str) -> bool:
    """Return whether `digest_file` can compute digests of this algorithm here."""
    return algorithm == "crc32" or (algorithm in ALGORITHMS and best_algorithm() == algorithm)


def digest_file(
    path: str | Path, algorithm: str, *, sync: bool = False, deadline: float | None = None
) -> tuple[int, str]:
    """Return the size of a file in bytes, and the digest of its content in hexadecimal.

    With `sync`, writes it to disk first, and drops it from the page cache. Raise OSError with the path;
    CheckpointError if the algorithm is not known here; OutOfTime at the `deadline` of time.monotonic().
    """
    digest = _digest(algorithm)
    size = asked = 0
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if sync:
            os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        buffer = memoryview(bytearray(min(os.fstat(descriptor).st_size + 1, CHUNK_BYTES)))
        while True:
            if not sync and size + AHEAD_BYTES > asked:
                _read_ahead(descriptor, asked)
                asked += AHEAD_BYTES
            if not (count := os.readv(descriptor, [buffer])):
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise OutOfTime
            digest.update(buffer[:count])
            if sync:
                os.posix_fadvise(descriptor, size, count, os.POSIX_FADV_DONTNEED)
            size += count
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(descriptor)
    return size, digest.hexdigest()


def _read_ahead(descriptor: int, offset: int) -> None:
    """Let the kernel read the next part of a file, unless it is in the page cache: each of its pages would be asked."""
    try:
        os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
    except OSError:  # not in the page cache, or the file system does not tell
        os.posix_fadvise(descriptor, offset, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)


def sync_file(path: str | Path) -> None:
    """Write a file to disk. Raise OSError with the path."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(descriptor)


class _Crc32:
    """zlib.crc32 with the methods of hashlib."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, chunk: memoryview) -> None:
        self._value = zlib.crc32(chunk, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def _digest(algorithm: str) -> Any:
    if algorithm == "crc32":
        return _Crc32()
    if not is_known(algorithm):
        raise CheckpointError(
            f"digests of the kind {algorithm} cannot be computed here", hint="install the package xxhash"
        )
    import xxhash

    return xxhash.xxh3_128()
