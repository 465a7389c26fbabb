"""Small files, read so that nothing fools or blocks, and written whole. The guard's own doors: it stands alone."""

from __future__ import annotations

import contextlib
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 65536


def read_regular(path: str | Path) -> tuple[bytes, os.stat_result] | None:
    """Read a small file only if it is a regular one; None when there is nothing.

    Opened with O_NOFOLLOW and O_NONBLOCK: a link is not followed, a FIFO does not block. Raise OSError if it is there
    and cannot be read, or is something else (then with errno ELOOP or EINVAL).
    """
    import errno

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return os.read(descriptor, LIMIT), info
    finally:
        os.close(descriptor)


def read_own(path: str | Path) -> str | None:
    """The text of a regular file that belongs to us and that nobody else may write or read; else None."""
    try:
        found = read_regular(path)
    except OSError:
        return None
    if found is None or found[1].st_uid != os.getuid() or found[1].st_mode & 0o077:
        return None
    return found[0].decode("utf-8", "replace")


def write_whole(path: str | Path, text: str, *, mode: int) -> None:
    """Write a file beside and move it into place. Not synced: it matters only while we live. Raise OSError."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.urandom(6).hex()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            raw = text.encode("utf-8", "surrogateescape")
            if os.write(descriptor, raw) != len(raw):
                raise OSError("short write")
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
