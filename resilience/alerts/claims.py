"""Claims: which process delivers a channel's messages now, or updates the incidents, so that duplicates are rare.

A claim is a file created by link(2), which is atomic even on NFS. It expires by the file server's clock. A process that
cannot create a claim delivers without one: a claim never loses or delays a message.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from resilience.base.processes import is_there
from resilience.errors import StateDirectoryError
from resilience.system.files import make_directory
from resilience.system.ports import Clock

EXPIRES_S = 60.0
"""A claim that was not renewed for this long belongs to a dead process. Longer than any delivery may take."""

POLL_S = 0.1
"""How often `turn` looks whether a claim is free."""


class Claim:
    """A held claim; without a path, permission to deliver without one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def renew(self) -> None:
        """Renew the claim before it expires."""
        if self._path is not None:
            with suppress(OSError):
                os.utime(self._path)


@contextmanager
def claim(directory: Path, name: str, owner: str) -> Iterator[Claim | None]:
    """Hold a claim within the context; yield None if another process holds it.

    `owner`: node, process id and a random text, separated by blanks, so that the claim of a process of this node that
    has exited is taken over at once. A missing directory is created with the mode of its parent.
    """
    path = directory / name
    try:
        make_directory(directory, mode=stat.S_IMODE(directory.parent.stat().st_mode))
        is_ours = _take(path, owner)
    except (OSError, StateDirectoryError):
        yield Claim(None)  # a full or read-only disk, no hard links: a duplicate is better than no message
        return
    if not is_ours:
        yield None
        return
    try:
        yield Claim(path)
    finally:
        with suppress(OSError):
            if path.read_text() == owner:  # unless another process took it over after it expired
                path.unlink()


@contextmanager
def turn(directory: Path, name: str, owner: str, clock: Clock, wait_s: float) -> Iterator[None]:
    """Hold a claim within the context, once no other process does; after `wait_s` go on without it."""
    with ExitStack() as claims:
        end = clock.monotonic() + wait_s
        while claims.enter_context(claim(directory, name, owner)) is None and clock.monotonic() < end:
            clock.sleep(POLL_S)
        yield


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
    """Return True if the holder of a claim was a process of this node that has exited."""
    node, _, pid = holder.rpartition(" ")[0].partition(" ")
    if not pid.isdigit() or node != owner.partition(" ")[0]:
        return False
    return not is_there(int(pid))
