"""The guard's door to the run directory for writing: modes as the run directory has them, files whole or not there.

Every function may wait for ever on a dead file system: they are called from threads that may be left behind.
"""

from __future__ import annotations

import contextlib
import os
import stat

from resilience import layout
from resilience.base.files import open_directory, read_regular, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    Asked = tuple[int, int]

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


def write_learned(run_dir: str, rank: int, text: str) -> None:
    """Write `learned/<rank>.json`. Raise OSError."""
    path = os.path.join(subfolder(run_dir, layout.LEARNED), f"{rank}.json")
    replace_file(path, text, mode=file_mode(run_dir))


def read_learned(run_dir: str, rank: int) -> str | None:
    """The text of `learned/<rank>.json`; None when it is not there, or cannot be read."""
    try:
        found = read_regular(os.path.join(run_dir, layout.LEARNED, f"{rank}.json"))
    except OSError:
        return None
    return None if found is None else found[0].decode("utf-8", "replace")


def stacks_asked(run_dir: str, job_id: str) -> Asked | None:
    """Which wish for stacks lies in the switches, by inode and time; None when there is none. Raise OSError."""
    folder = open_directory(os.path.join(run_dir, layout.SWITCHES))
    try:
        info = os.stat(layout.STACKS_PREFIX + job_id, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    finally:
        os.close(folder)
    return info.st_ino, info.st_mtime_ns


def append_stacks(run_dir: str, job_id: str, rank: int, text: bytes) -> None:
    """Add to `journal/<jobid>.<rank>.stacks`. Raise OSError."""
    path = os.path.join(subfolder(run_dir, layout.JOURNAL), f"{job_id}.{rank}.stacks")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, file_mode(run_dir))
    try:
        os.write(descriptor, text)
    finally:
        os.close(descriptor)


def remove_remains(folder: str, now: float) -> None:
    """Remove what writers that were killed in the middle have left beside their files."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(".tmp"):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < now - REMAINS_S:
                        os.unlink(entry.path)
