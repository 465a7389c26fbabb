"""Files of base/files.py for people: errors become sentences with what to try; journals of JSON lines; directories."""

from __future__ import annotations

import errno
import json
import os
import stat
from binascii import crc32
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from resilience.base import files
from resilience.errors import ResilError, StateDirectoryError

FULL = {errno.ENOSPC, errno.EDQUOT}
"""Neither the disk nor the quota has room: for data, or for one more name."""


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


def make_directory(path: Path, *, mode: int) -> tuple[Path, ...]:
    """Create a directory with exactly `mode`, whatever the umask, and its parents; return those created, outermost
    first.

    Parents that are missing get the mode too, but nobody besides the owner may write there. What exists already is
    left as it is. Raise StateDirectoryError if it cannot be created.
    """
    created: list[Path] = []
    try:
        if path.is_dir():
            return ()
        for directory in (*reversed(path.parents), path):
            if directory.is_dir():
                continue
            try:
                directory.mkdir(mode=0o700)  # never open wider than asked, not even for a moment
            except FileExistsError:
                if directory.is_dir():  # another job was quicker
                    continue
                raise
            directory.chmod(mode if directory == path else mode & ~0o022)
            created.append(directory)
    except OSError as error:
        raise explain_os_error(error, "create", path) from error
    return tuple(created)


def own_directory(path: Path) -> Path | None:
    """A directory that only this user can write in, made when missing; None if there can be none."""
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
    """Write a file so that a crash at any moment leaves the old one or the new one, and never a part.

    See `replace_file` in base/files.py. Raise StateDirectoryError if it cannot be written; no temporary file is left
    then. `sweep` also removes those that killed writers of the same file left, after STALE_S; it reads the directory.
    """
    try:
        files.replace_file(path, content, mode=mode, durable=durable)
        if sweep:
            # Compared with the file server's time, not ours.
            files.remove_stale(path.parent, path.stat().st_mtime, of=path.name)
    except OSError as error:
        raise explain_os_error(error, "write", path) from error


def append_line(path: Path, record: Mapping[str, Any], *, mode: int = 0o600, sync: bool = True) -> None:
    """Append one JSON line with a single write, so that lines of several writers never mix on a local file system.

    A part of a line that a crash left behind is closed off first. Raise StateDirectoryError if it cannot be written.
    """
    try:
        files.append(path, _json_line(record), mode=mode, sync=sync)
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


class NotRegularFile(StateDirectoryError):
    """A link, a FIFO, a directory or a device lies in a file's place: nothing that reading again could mend."""


def read_regular(path: Path, limit_bytes: int = files.LIMIT_BYTES) -> tuple[bytes, os.stat_result] | None:
    """Read a small file only if it is a regular one; return its content and status, or None when it is not there.

    See base/files.py. Raise NotRegularFile if it is something else, StateDirectoryError if it cannot be read.
    """
    try:
        return files.read_regular(path, limit_bytes=limit_bytes)
    except OSError as error:
        if error.errno in files.NOT_REGULAR:
            link = "a symbolic link, " if error.errno == errno.ELOOP else ""
            raise NotRegularFile(f"{path} is {link}not a regular file") from error
        raise explain_os_error(error, "read", path) from error


def _json_line(record: Mapping[str, Any]) -> bytes:
    """One line of JSON that `cat` shows as people write; bytes that are no text (a file's name) become escapes."""
    try:
        return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def open_without_waiting(path: str, flags: int) -> int:
    """Open, but never wait for the other end of a FIFO that lies in a file's place."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


_PACKAGE = Path(__file__).resolve().parent.parent


def shipped_directory(kind: str) -> Path:
    """Given `slurm_templates` or `cron`, return the directory, in a clone, an editable install and a wheel alike.

    A wheel holds them below the package (`_shipped`, see pyproject.toml); a clone beside it. Raise ResilError if the
    installation lacks them.
    """
    for directory in (_PACKAGE / "_shipped" / kind, _PACKAGE.parent / kind):
        if directory.is_dir():
            return directory
    raise ResilError(
        f"this installation of resil lacks its {kind} directory (looked beside and below {_PACKAGE})",
        hint="install it again: pip install --force-reinstall resil",
    )
