"""The guard's door to the run directory for writing: modes as the run directory has them, files whole or not there.

Every function may wait for ever on a dead file system: they are called from threads that may be left behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

GROUP_FOLDER = stat.S_ISGID | stat.S_IWGRP
"""What the mode of a run directory has that a group may operate: 2770, docs/reference/run-directory.md."""

REMAINS_S = 600.0
"""A file that was being written so long ago has no writer any more."""


def is_for_group(folder: str) -> bool:
    """Whether a folder is open to a group. Raise OSError if it cannot be looked at."""
    return os.stat(folder).st_mode & GROUP_FOLDER == GROUP_FOLDER


def file_mode(folder: str) -> int:
    """The mode of files in a run directory: 0660 where a group operates it, else 0600. Raise OSError."""
    return 0o660 if is_for_group(folder) else 0o600


def subfolder(run_dir: str, name: str) -> str:
    """A folder of the run directory, made where it is missing; the run directory itself never is. Raise OSError."""
    path = os.path.join(run_dir, name)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return path
    if is_for_group(run_dir):
        os.chmod(path, 0o2770)
    return path


def replace_file(path: str, text: str, *, mode: int, durable: bool = False) -> None:
    """Write a file beside and move it into place; `durable` also waits until it is on the disk. Raise OSError.

    The name beside is nobody else's: a twin of a requeued job may write the same file at the same moment.
    """
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{name}.{os.urandom(6).hex()}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            raw = text.encode("utf-8", "replace")
            if os.write(descriptor, raw) != len(raw):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), beside)  # only a part was taken
            os.fchmod(descriptor, mode)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    if durable:
        sync_folder(folder)


def remove_remains(folder: str, now: float) -> None:
    """Remove what writers that were killed in the middle have left beside their files."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(".tmp"):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < now - REMAINS_S:
                        os.unlink(entry.path)


def sync_folder(folder: str) -> None:
    """Put a rename on the disk; some network file systems refuse, and need it not."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
