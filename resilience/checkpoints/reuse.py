"""Stores a file that has not changed once: as a hard link to the file of an earlier checkpoint (`reuse = true`).

Frozen weights and tokenizers are the same in each checkpoint. A file with several names is also damaged under all of
them, so the next older checkpoint is never linked to: neighbours share no file, and one damaged file leaves the
checkpoint before it good. See docs/decisions/0035-reuse-skips-the-neighbour.md.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from resilience.base.mounts import Mount, current_mounts, mount_of
from resilience.checkpoints.digest import digest_file
from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from resilience.checkpoints.manifest import FileEntry
from resilience.checkpoints.names import parse_part
from resilience.errors import CheckpointError

ALGORITHM = "xxh3_128"
"""CRC-32 is equal for one in four billion pairs of different files, and for whoever wants it to be."""
FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "lustre", "gpfs"})
"""Where several names of a file are one file on each node. Not NFS, FUSE, overlays: what is below is unknown."""


def link_unchanged(store: StoreDirectory, part: Path, step: int, algorithm: str, entries: Iterable[FileEntry]) -> int:
    """Replace files of a part by hard links to equal files of the checkpoint before the last; return the bytes saved.

    For the commit, between the digests and the sync of the directories. A file is linked only after the other one was
    read and has the same digest. Whatever does not work leaves the part's own file in place.
    """
    if algorithm != ALGORITHM or not is_safe(mount_of(os.path.realpath(store.path), current_mounts())):
        return 0
    saved = 0
    with suppress(CheckpointError, OSError):
        # Listed before the checkpoints: an earlier save in flight may become the neighbour at any moment.
        if any(other[0] < step for name in store.parts() if (other := parse_part(name))):
            return 0
        source, neighbours = choose(store.checkpoints(), step)
        if source is None:
            return 0
        known = {(entry.size, entry.digest): entry.path for entry in _files_of(source)}
        equal = {entry: known[entry.size, entry.digest] for entry in entries if (entry.size, entry.digest) in known}
        wanted = {entry.digest for entry in equal if entry.size}
        taken = {
            _inode(one.path / entry.path) for one in neighbours for entry in _files_of(one) if entry.digest in wanted
        }
        for entry, path in equal.items():
            with suppress(OSError):
                if entry.size and _inode(source.path / path) not in taken:
                    saved += _link(source.path / path, part / entry.path, entry)
    return saved


def is_safe(mount: Mount | None) -> bool:
    """Return whether hard links are known to work on this file system. Pure."""
    return mount is not None and mount.type in FILE_SYSTEMS


def choose(checkpoints: Sequence[Checkpoint], step: int) -> tuple[Checkpoint | None, list[Checkpoint]]:
    """Given the checkpoints, the oldest first, return whose files a new one of `step` may share, and its neighbours.

    The source is the second one before it. Nothing is shared with the next one on either side. Pure.
    """
    ours = [one for one in checkpoints if not one.is_sealed]
    before, after = [one for one in ours if one.step < step], [one for one in ours if one.step > step]
    steps = sorted({one.step for one in before})
    source = next((one for one in reversed(before) if len(steps) > 1 and one.step == steps[-2]), None)
    beside = {*steps[-1:], *(one.step for one in after[:1])}
    return source, [one for one in ours if one.step in beside]


def _files_of(checkpoint: Checkpoint) -> tuple[FileEntry, ...]:
    """Return the files of a checkpoint; none if their digests are of another kind."""
    manifest = checkpoint.manifest()
    return manifest.files if manifest.algorithm == ALGORITHM else ()


def _inode(path: Path) -> tuple[int, int]:
    info = os.lstat(path)
    return info.st_dev, info.st_ino


def _link(source: Path, target: Path, entry: FileEntry) -> int:
    """Replace `target` by a link to `source`, if that has the content of `entry`; return the bytes saved."""
    theirs, own = os.lstat(source), os.lstat(target)
    same = ("st_dev", "st_uid", "st_gid", "st_mode")
    if not stat.S_ISREG(own.st_mode) or any(getattr(theirs, name) != getattr(own, name) for name in same):
        return 0
    if theirs.st_ino == own.st_ino or digest_file(source, ALGORITHM) != (entry.size, entry.digest):
        return 0
    temporary = target.with_name(f".{target.name[:200]}.{os.urandom(6).hex()}.tmp")
    os.link(source, temporary)
    try:
        if _inode(temporary) != (theirs.st_dev, theirs.st_ino):
            return 0  # replaced meanwhile, or a file system that copies
        os.rename(temporary, target)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    return entry.size
