"""Small files: safe reads that never block on unusual files, and atomic writes.

All functions raise OSError. system/files.py converts these errors into messages for users.
"""

# pathlib costs milliseconds at the import of every rank.
# ruff: noqa: PTH105, PTH108, PTH118, PTH121

from __future__ import annotations

import contextlib
import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

LIMIT_BYTES = 65536
"""How many bytes of a small file are read."""

STALE_S = 600.0
"""A temporary file older than this was left by a writer that crashed; no write takes that long."""

NOT_REGULAR = frozenset({errno.ELOOP, errno.ENXIO, errno.EINVAL})
"""Errors of `read_regular` for a symbolic link, a socket, and other files that are not regular."""

_NO_DIRECTORY_SYNC = {errno.EINVAL, errno.ENOTSUP}
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def kind_of(info: os.stat_result) -> str:
    """Return the kind of a file that is not regular, as text: `a FIFO`; empty for a regular file."""
    return _KINDS.get(stat.S_IFMT(info.st_mode), "" if stat.S_ISREG(info.st_mode) else "something odd")


def exists(path: str | Path) -> bool:
    """Return whether there is anything at a path. Unlike os.path.lexists, raise OSError if that cannot be told."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def open_directory(path: str | Path) -> int:
    """Open a directory to look up files in it, and return the descriptor.

    On open, an NFS client asks its server whether the directory has changed; otherwise it caches for up to a minute
    (acdirmax, nfs(5)) that a file does not exist: `nfs_lookup_verify_inode` in the kernel's fs/nfs/dir.c, unless
    mounted with nocto. Also opens a directory with search but without read permission.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def read_regular(
    path: str | Path, *, limit_bytes: int = LIMIT_BYTES, directory: int | None = None
) -> tuple[bytes, os.stat_result] | None:
    """Read a small regular file; return its content and status, or None if it does not exist.

    Opens with O_NOFOLLOW, O_NONBLOCK and O_NOCTTY: does not follow a symbolic link, block on a FIFO, or acquire a
    terminal. A relative `path` starts from `directory`, an open one. Raise OSError with an error number in NOT_REGULAR
    if the file is not regular.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, dir_fd=directory)
    except FileNotFoundError:
        return None
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        content = b""
        # Not once: before a page that cannot be read, read(2) returns what precedes it, as if the file ended there.
        while more := os.read(descriptor, min(limit_bytes - len(content), max(info.st_size + 1, LIMIT_BYTES))):
            content += more
        return content, info
    finally:
        os.close(descriptor)


def read_own(path: str | Path) -> str | None:
    """Return the text of a regular file of this process's user that no other user may read or write; else None."""
    try:
        found = read_regular(path)
    except OSError:
        return None
    if found is None or found[1].st_uid != os.geteuid() or found[1].st_mode & 0o077:
        return None
    return found[0].decode("utf-8", "replace")


def replace_file(path: str | Path, content: str | bytes, *, mode: int, durable: bool = False) -> None:
    """Write a file atomically: a crash at any moment leaves the old content or the new one, never a part.

    Writes a temporary file in the same directory, with a unique name (a duplicate of a requeued job may write the same
    file at the same time), then renames it. With `durable`, waits until file and name are on disk; without, a power cut
    may leave an empty file. Removes the temporary file if the write fails.
    """
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{os.urandom(6).hex()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            write_all(descriptor, _encoded(content))
            os.fchmod(descriptor, mode)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_directory(directory or ".")


def create_file(path: str | Path, content: str | bytes, *, mode: int) -> bool:
    """Create a file with its content, unless it exists; return whether this process created it.

    Only one of several processes creates the hard link, also on NFS; without hard links, O_EXCL decides.
    """
    path = os.fspath(path)
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{os.urandom(6).hex()}.tmp")
    replace_file(temporary, content, mode=mode)
    try:
        os.link(temporary, path)
    except FileExistsError:
        # After a retransmission, the server reports "exists" for the link just made.
        return os.path.samefile(temporary, path)
    except OSError:  # no hard links on this file system
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError:
            return False
        try:
            write_all(descriptor, _encoded(content))
        finally:
            os.close(descriptor)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    return True


def append(path: str | Path, raw: bytes, *, mode: int, sync: bool = True, is_only_writer: bool = False) -> None:
    """Append complete lines with a single write, so that lines of several writers do not mix on a local file system.

    Terminates an incomplete line left by a crash first. With `is_only_writer`, a partial write is truncated again. A
    new file gets `mode` regardless of the umask. Raise OSError for a link, a FIFO or a directory.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        if info.st_size == 0:
            if info.st_uid == os.geteuid():
                os.fchmod(descriptor, mode)
        elif os.pread(descriptor, 1, info.st_size - 1) != b"\n":
            raw = b"\n" + raw
        written = 0
        try:
            written = os.write(descriptor, raw)
            if written != len(raw):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
            if sync:
                os.fsync(descriptor)
        except OSError:
            if is_only_writer and written:
                with contextlib.suppress(OSError):
                    if os.fstat(descriptor).st_size == info.st_size + written:  # no other process has appended
                        os.ftruncate(descriptor, info.st_size)
            raise
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of `content` to a file or a pipe, with as many writes as necessary."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_directory(path: str | Path) -> None:
    """Sync a directory, so that created, renamed and removed files survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE file systems cannot sync a directory; the file is written anyway.
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(descriptor)


def remove_stale(directory: str | Path, now: float, *, of: str = "", older_than_s: float = STALE_S) -> None:
    """Remove temporary files left by crashed writers, of the file `of` or of all files. Never fails.

    `now`: the file server's time if known, because clocks differ.
    """
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(f".{of}." if of else ".") and entry.name.endswith(".tmp"):
                with contextlib.suppress(OSError):
                    if now - entry.stat(follow_symlinks=False).st_mtime > older_than_s:
                        os.unlink(entry.path)


def remove_same(name: str, inode: int, mtime_ns: int, *, directory: int) -> bool:
    """Remove a file from an open directory if its inode and mtime are unchanged; return whether they were.

    Renames first and checks afterwards: between a check and an unlink another process may create a new file, which
    would be lost. A file that has changed is restored, unless there is an even newer one.
    """
    aside = f".{name}.{os.urandom(6).hex()}.tmp"  # matches `remove_stale`
    try:
        os.rename(name, aside, src_dir_fd=directory, dst_dir_fd=directory)
    except FileNotFoundError:
        return False
    info = os.stat(aside, dir_fd=directory, follow_symlinks=False)
    is_same = (info.st_ino, info.st_mtime_ns) == (inode, mtime_ns)
    if not is_same:
        try:
            os.link(aside, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        except FileExistsError:
            pass
        except OSError:  # no hard links on this file system, or none of a directory
            os.rename(aside, name, src_dir_fd=directory, dst_dir_fd=directory)
            return False
    os.unlink(aside, dir_fd=directory)
    return is_same


def _encoded(content: str | bytes) -> bytes:
    if isinstance(content, bytes):
        return content
    try:
        return content.encode("utf-8", "surrogateescape")  # restores the original bytes of file names
    except UnicodeEncodeError:
        return content.encode("utf-8", "replace")
