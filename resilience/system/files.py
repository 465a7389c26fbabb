"""Files that are whole or not there: atomic writes, journals of lines, explicit modes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from resilience.errors import StateDirectoryError

_FULL = {errno.ENOSPC, errno.EDQUOT}


def explain_os_error(error: OSError, action: str, path: Path) -> StateDirectoryError:
    """Given what the kernel said, return it as a sentence with what to try. For instance, EDQUOT names the quota."""
    number = error.errno or 0
    if number in _FULL:
        hint = "the disk or your quota is full: free some space (and inodes), or choose another state_dir"
    elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "choose another state_dir in resil.toml, or ask for write permission"
    elif number in (errno.ESTALE, errno.EIO, errno.ETIMEDOUT):
        hint = "the file system is not well; try again, or from another node"
    else:
        hint = ""
    transient = number in _FULL or number in (errno.ESTALE, errno.EIO, errno.ETIMEDOUT)
    return StateDirectoryError(f"cannot {action} {path}: {os.strerror(number)}", hint=hint, transient=transient)


def make_folder(path: Path, *, mode: int) -> None:
    """Create a folder and its parents with exactly `mode`, whatever the umask; an existing one is left as it is."""
    try:
        if path.is_dir():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True)
        path.chmod(mode)
    except OSError as error:
        raise explain_os_error(error, "create", path) from error


def write_atomic(path: Path, content: str | bytes, *, mode: int = 0o600) -> None:
    """Write a file so that a crash at any moment leaves the old one or the new one, and never a part.

    Temporary file in the same folder, fsync, rename, fsync of the folder. Raise StateDirectoryError if it cannot be
    written; no temporary file is left then.
    """
    raw = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        temporary = name
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(name, path)  # noqa: PTH105 - one system call, named as the manual names it
        temporary = None
        _sync_folder(path.parent)
    except OSError as error:
        raise explain_os_error(error, "write", path) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108


def append_line(path: Path, record: Mapping[str, Any], *, mode: int = 0o600, sync: bool = True) -> None:
    """Append one JSON line with a single write, so that lines of several writers never mix on a local file system.

    A part of a line that a crash left behind is closed off first. Raise StateDirectoryError if it cannot be written.
    """
    line = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            info = os.fstat(descriptor)
            if info.st_size == 0:
                os.fchmod(descriptor, mode)
            elif os.pread(descriptor, 1, info.st_size - 1) != b"\n":
                line = b"\n" + line
            if os.write(descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise explain_os_error(error, "write", path) from error


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON lines of a journal. A damaged line is passed over: one crash must not blind us to the rest."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict):
                    yield record
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain_os_error(error, "read", path) from error


def read_regular(path: Path, limit_bytes: int = 65536) -> tuple[bytes, os.stat_result] | None:
    """Read a small file only if it is a regular one; return its content and status, or None when it is not there.

    Opened with O_NOFOLLOW and O_NONBLOCK, so that a symbolic link is not followed and a FIFO does not block.
    Raise StateDirectoryError if something else lies there, or it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StateDirectoryError(f"{path} is a symbolic link, not a regular file") from error
        if error.errno == errno.ENXIO:
            raise StateDirectoryError(f"{path} is not a regular file") from error
        raise explain_os_error(error, "read", path) from error
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise StateDirectoryError(f"{path} is not a regular file")
        return os.read(descriptor, limit_bytes), info
    except OSError as error:
        raise explain_os_error(error, "read", path) from error
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
