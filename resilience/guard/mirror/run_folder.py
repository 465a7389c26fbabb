"""The guard's door to the run directory for writing: modes as the run directory has them, files whole or not there.

Every function may wait for ever on a dead file system: they are called from threads that may be left behind.
"""

from __future__ import annotations

import contextlib
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


def remove_remains(folder: str, now: float) -> None:
    """Remove what writers that were killed in the middle have left beside their files."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(".tmp"):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < now - REMAINS_S:
                        os.unlink(entry.path)
