"""Claims on channels: which process delivers a channel's messages now, so that people seldom read a message twice.

A claim is a file that is made by linking, which even NFS does for one process only. It expires by the file server's own
clock, and a process that cannot make one delivers without: no message is ever lost or held back by a claim.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from resilience.base.processes import is_there
from resilience.errors import StateDirectoryError
from resilience.system.files import make_directory

EXPIRES_S = 60.0
"""A claim that was not renewed for so long belongs to a dead process. Longer than any message may take."""


class Claim:
    """A claim that is held, or the leave to go without one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def renew(self) -> None:
        """Keep the claim from expiring."""
        if self._path is not None:
            with suppress(OSError):
                os.utime(self._path)


@contextmanager
def claim(directory: Path, name: str, owner: str) -> Iterator[Claim | None]:
    """Hold a claim for the time inside; yield None where another process holds it.

    `owner`: this node, our process id, and a random text, with blanks between: a claim of a process of this node that
    is gone delays no other. The directory is made where it is missing, with the mode of its parent.
    """
    path = directory / name
    try:
        make_directory(directory, mode=stat.S_IMODE(directory.parent.stat().st_mode))
        is_ours = _take(path, owner)
    except (OSError, StateDirectoryError):
        yield Claim(None)  # a full or read-only disk, no hard links: better twice than never
        return
    if not is_ours:
        yield None
        return
    try:
        yield Claim(path)
    finally:
        with suppress(OSError):
            if path.read_text() == owner:  # not another's, who found ours expired
                path.unlink()


def _take(path: Path, owner: str) -> bool:
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        temporary.write_text(owner)
        temporary.chmod(0o644)  # colleagues may read the owner, whatever the umask
        now = temporary.stat().st_mtime  # the file server's time, not ours
        for _ in range(2):
            try:
                os.link(temporary, path)
                return True
            except FileExistsError:
                with suppress(FileNotFoundError):
                    if abs(now - path.lstat().st_mtime) <= EXPIRES_S and not _is_gone(_holder(path), owner):
                        return False
                    path.unlink()
        return False
    finally:
        with suppress(OSError):
            temporary.unlink()


def _holder(path: Path) -> str:
    try:
        return path.read_text()
    except (PermissionError, UnicodeDecodeError):
        return ""


def _is_gone(holder: str, owner: str) -> bool:
    """Whether the holder of a claim was a process of this node, and is gone."""
    node, _, pid = holder.rpartition(" ")[0].partition(" ")
    if not pid.isdigit() or node != owner.partition(" ")[0]:
        return False
    return not is_there(int(pid))
