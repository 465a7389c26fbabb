"""Files that are whole or not there: atomic writes, journals of lines, explicit modes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from binascii import crc32
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from resilience.errors import StateDirectoryError

FULL = {errno.ENOSPC, errno.EDQUOT}
"""Neither the disk nor the quota has room: for data, or for one more name."""
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP}

STALE_S = 600.0
"""A temporary file older than this was left by a writer that crashed: no write takes so long."""


def explain_os_error(error: OSError, action: str, path: Path) -> StateDirectoryError:
    """Given what the kernel said, return it as a sentence with what to try. For instance, EDQUOT names the quota."""
    number = error.errno or 0
    if number in FULL:
        hint = "the disk or your quota is full: free some space (and inodes), or choose another state_dir"
    elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "choose another state_dir in resil.toml, or ask for write permission"
    elif number in (errno.ESTALE, errno.EIO, errno.ETIMEDOUT):
        hint = "the file system is not well; try again, or from another node"
    else:
        hint = ""
    transient = number in FULL or number in (errno.ESTALE, errno.EIO, errno.ETIMEDOUT)
    reason = os.strerror(number) if number else str(error)
    return StateDirectoryError(f"cannot {action} {path}: {reason}", hint=hint, transient=transient)


def short_digest(raw: bytes) -> str:
    """Given any bytes, return sixteen characters for the name of a file. For names only, where nobody means harm:
    hashlib loads OpenSSL, which takes a quarter of the time of a bare interpreter, at every start."""
    return f"{crc32(raw):08x}{crc32(raw[::-1]):08x}"


def make_folder(path: Path, *, mode: int) -> tuple[Path, ...]:
    """Create a folder with exactly `mode`, whatever the umask, and its parents; return those created, outermost first.

    Parents that are missing get the mode too, but nobody besides the owner may write there. What exists already is
    left as it is. Raise StateDirectoryError if it cannot be created.
    """
    created: list[Path] = []
    try:
        if path.is_dir():
            return ()
        for folder in (*reversed(path.parents), path):
            if folder.is_dir():
                continue
            try:
                folder.mkdir(mode=0o700)  # never open wider than asked, not even for a moment
            except FileExistsError:
                if folder.is_dir():  # another job was quicker
                    continue
                raise
            folder.chmod(mode if folder == path else mode & ~0o022)
            created.append(folder)
    except OSError as error:
        raise explain_os_error(error, "create", path) from error
    return tuple(created)


def own_folder(path: Path) -> Path | None:
    """A folder that only this user can write in, made when missing; None if there can be none."""
    try:
        make_folder(path, mode=0o700)
        info = path.lstat()
    except (OSError, StateDirectoryError):
        return None
    is_own = stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o022
    return path if is_own else None


def write_atomic(path: Path, content: str | bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Write a file so that a crash at any moment leaves the old one or the new one, and never a part.

    Temporary file in the same folder, fsync, rename, fsync of the folder. Without `durable` there is no fsync: a power
    cut may then leave an empty file. Raise StateDirectoryError if it cannot be written; no temporary file is left then.
    What writers killed in the middle left behind is removed after STALE_S.
    """
    raw = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    temporary = None
    try:
        name = str(path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp"))
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        temporary = name
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
            written = os.fstat(file.fileno()).st_mtime
        os.replace(name, path)  # noqa: PTH105 - one system call, named as the manual names it
        temporary = None
        if durable:
            sync_folder(path.parent)
        _sweep(path, written)
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
    line = _json_line(record)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            info = os.fstat(descriptor)
            if info.st_size == 0:
                if info.st_uid == os.geteuid():
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
        with open(path, encoding="utf-8", errors="replace", opener=open_without_waiting) as file:
            yield from parse_lines(file)
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain_os_error(error, "read", path) from error


def parse_lines(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """Given the lines of a journal, yield those that are JSON objects."""
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
            continue
        if isinstance(record, dict):
            yield record


def read_regular(path: Path, limit_bytes: int = 65536) -> tuple[bytes, os.stat_result] | None:
    """Read a small file only if it is a regular one; return its content and status, or None when it is not there.

    Opened with O_NOFOLLOW, O_NONBLOCK and O_NOCTTY, so that a symbolic link is not followed, a FIFO does not block and
    a terminal does not become ours.
    Raise StateDirectoryError if something else lies there, or it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
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


def sync_folder(path: Path) -> None:
    """Have what was made, renamed and removed in a folder outlast a power cut. Raise OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE file systems cannot sync a folder at all; the file is written nevertheless.
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def _sweep(path: Path, now: float) -> None:
    """Remove what crashed writers of the same file left; `now` is the file server's time, not ours."""
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if not (entry.name.startswith(f".{path.name}.") and entry.name.endswith(".tmp")):
                continue
            with contextlib.suppress(OSError):
                if now - entry.stat(follow_symlinks=False).st_mtime > STALE_S:
                    os.unlink(entry.path)  # noqa: PTH108


def _json_line(record: Mapping[str, Any]) -> bytes:
    """One line of JSON that `cat` shows as people write; bytes that are no text (a file's name) become escapes."""
    try:
        return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def open_without_waiting(path: str, flags: int) -> int:
    """Open, but never wait for the other end of a FIFO that lies in a file's place."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
