"""Small files, read so that nothing fools or blocks, and written whole. The guard's own doors: it stands alone."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 65536
"""Bytes that are read of a file; nobody has more to say."""

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def kind_of(info: os.stat_result) -> str:
    """What lies there, in a word for people; empty for a regular file."""
    return _KINDS.get(stat.S_IFMT(info.st_mode), "" if stat.S_ISREG(info.st_mode) else "something odd")


def open_folder(path: str | Path) -> int:
    """Open a folder, for looking at what is in it, and return the descriptor. Raise OSError.

    An NFS client asks its server whether the folder has changed when somebody opens it, and otherwise believes for up
    to a minute (acdirmax, nfs(5)) that a file which was not there still is not: `nfs_lookup_verify_inode` in the
    kernel's fs/nfs/dir.c, unless it is mounted with nocto. A folder that we may enter and not list is opened too.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def read_regular(path: str | Path, *, folder: int | None = None) -> tuple[bytes, os.stat_result] | None:
    """Read a small file only if it is a regular one; None when there is nothing. `folder` is what `path` starts from.

    Opened with O_NOFOLLOW and O_NONBLOCK: a link is not followed, a FIFO does not block, and a terminal does not
    become ours. Raise OSError if it is there and cannot be read, or is something else (then with errno ELOOP, ENXIO or
    EINVAL).
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, dir_fd=folder)
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
    if found is None or found[1].st_uid != os.geteuid() or found[1].st_mode & 0o077:
        return None
    return found[0].decode("utf-8", "replace")


def replace_file(path: str | Path, text: str, *, mode: int, durable: bool = False) -> None:
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


def sync_folder(folder: str) -> None:
    """Put a rename on the disk; some network file systems refuse, and need it not."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_same(name: str, inode: int, mtime_ns: int, *, folder: int) -> bool:
    """Remove a file from an open folder if it is still that one; return whether it was. Raise OSError.

    It is moved aside first and looked at then: between a look and an unlink somebody may put another one there, and
    nobody would ever read it. Should that happen, it is put back, unless there is a newer one again.
    """
    aside = f".{name}.{os.urandom(6).hex()}.tmp"  # as writers call theirs, whose rests are swept away
    try:
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:
        return False
    info = os.stat(aside, dir_fd=folder, follow_symlinks=False)
    is_same = (info.st_ino, info.st_mtime_ns) == (inode, mtime_ns)
    if not is_same:
        try:
            os.link(aside, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            pass
        except OSError:  # no hard links here, or none of a folder
            os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
            return False
    os.unlink(aside, dir_fd=folder)
    return is_same
