"""File operations of base/files.py with errors for users; journals of JSON lines; directories."""

from __future__ import annotations

import errno
import json
import os
import stat
from binascii import crc32
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from resilience.base import files
from resilience.errors import ResilError, StateDirectoryError

FULL = {errno.ENOSPC, errno.EDQUOT}
"""The disk or the quota is full, for data or for inodes."""


def explain_os_error(error: OSError, action: str, path: Path) -> StateDirectoryError:
    """Return an OSError as StateDirectoryError with a hint. For instance, the hint for EDQUOT names the quota."""
    number = error.errno or 0
    if number in FULL:
        hint = "the disk or your quota is full: free some space (and inodes), or choose another state_dir"
    elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "choose another state_dir in resil.toml, or ask for write permission"
    elif number in (errno.ESTALE, errno.EIO, errno.ETIMEDOUT):
        hint = "the file system is faulty; retry, or try another node"
    else:
        hint = ""
    transient = number in FULL or number in (errno.ESTALE, errno.EIO, errno.ETIMEDOUT)
    reason = os.strerror(number) if number else str(error)
    return StateDirectoryError(f"cannot {action} {path}: {reason}", hint=hint, transient=transient)


def short_digest(raw: bytes) -> str:
    """Return a digest of sixteen characters for file names. Not cryptographic: the import of hashlib loads OpenSSL,
    which takes a quarter of the start-up time of the interpreter."""
    return f"{crc32(raw):08x}{crc32(raw[::-1]):08x}"


def make_directory(path: Path, *, mode: int) -> tuple[Path, ...]:
    """Create a directory and its missing parents with exactly `mode`, regardless of the umask; return the created
    directories, outermost first.

    Missing parents also get `mode`, without write permission for group and others. Existing directories are not
    changed. Raise StateDirectoryError if the directory cannot be created.
    """
    created: list[Path] = []
    try:
        if path.is_dir():
            return ()
        for directory in (*reversed(path.parents), path):
            if directory.is_dir():
                continue
            try:
                directory.mkdir(mode=0o700)  # never more permissive than `mode`, not even briefly
            except FileExistsError:
                if directory.is_dir():  # created by another job meanwhile
                    continue
                raise
            directory.chmod(mode if directory == path else mode & ~0o022)
            created.append(directory)
    except OSError as error:
        raise explain_os_error(error, "create", path) from error
    return tuple(created)


def own_directory(path: Path) -> Path | None:
    """Return a directory that only this user can write to, created if missing; None if that is not possible."""
    try:
        make_directory(path, mode=0o700)
        info = path.lstat()
    except (OSError, StateDirectoryError):
        return None
    is_own = stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o022
    return path if is_own else None


def write_atomic(
    path: Path, content: str | bytes, *, mode: int = 0o600, durable: bool = True, sweep: bool = True
) -> None:
    """Write a file so that a crash at any moment leaves the old or the new content, never a part.

    See `replace_file` in base/files.py. Raise StateDirectoryError if the file cannot be written; no temporary file
    remains then. `sweep` also removes temporary files of killed writers of the same file, after STALE_S; this lists the
    directory.
    """
    try:
        files.replace_file(path, content, mode=mode, durable=durable)
        if sweep:
            with suppress(FileNotFoundError):  # a switch that its reader has removed already
                # Compared with the time of the file server, not of this node.
                files.remove_stale(path.parent, path.stat().st_mtime, of=path.name)
    except OSError as error:
        raise explain_os_error(error, "write", path) from error


def append_line(path: Path, record: Mapping[str, Any], *, mode: int = 0o600, sync: bool = True) -> None:
    """Append one JSON line with a single write, so that lines of several writers never mix on a local file system.

    A partial line left by a crash is terminated first. Raise StateDirectoryError if the file cannot be written.
    """
    try:
        files.append(path, _json_line(record), mode=mode, sync=sync)
    except OSError as error:
        raise explain_os_error(error, "write", path) from error


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON lines of a journal. Damaged lines are skipped, so that a crash does not hide the other lines."""
    try:
        with open(path, encoding="utf-8", errors="replace", opener=open_without_waiting) as file:
            yield from parse_lines(file)
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain_os_error(error, "read", path) from error


def parse_lines(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a journal that are JSON objects."""
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
            continue
        if isinstance(record, dict):
            yield record


class NotRegularFile(StateDirectoryError):
    """The path is a link, a FIFO, a directory or a device; a retry does not help."""


def read_regular(path: Path, limit_bytes: int = files.LIMIT_BYTES) -> tuple[bytes, os.stat_result] | None:
    """Return the content and status of a small regular file, or None if the file does not exist.

    See base/files.py. Raise NotRegularFile if the path is not a regular file, StateDirectoryError if the file cannot be
    read.
    """
    try:
        return files.read_regular(path, limit_bytes=limit_bytes)
    except OSError as error:
        if error.errno in files.NOT_REGULAR:
            link = "a symbolic link, " if error.errno == errno.ELOOP else ""
            raise NotRegularFile(f"{path} is {link}not a regular file") from error
        raise explain_os_error(error, "read", path) from error


def _json_line(record: Mapping[str, Any]) -> bytes:
    """Return a line of readable JSON; bytes that are not UTF-8 (from a file name) are escaped."""
    try:
        return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file without blocking if the path is a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


_PACKAGE = Path(__file__).resolve().parent.parent


def shipped_directory(kind: str) -> Path:
    """Return the directory `slurm_templates` or `cron` of a clone, an editable install or a wheel.

    In a wheel the directories are inside the package (`_shipped`, see pyproject.toml), in a clone next to the package.
    Raise ResilError if the installation lacks the directory.
    """
    for directory in (_PACKAGE / "_shipped" / kind, _PACKAGE.parent / kind):
        if directory.is_dir():
            return directory
    raise ResilError(
        f"this installation of resil lacks its {kind} directory (searched next to and inside {_PACKAGE})",
        hint="install resil again, from a clone or a wheel",
    )
