"""A directory of small files with a fallback on this node, for when its own disk is full, read-only or unavailable.

These files are needed most when a disk fails, which may be the disk that they are on. Readers see one directory: the
union of both; files of the fallback take precedence. When the disk works again, the files move to the primary
directory.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from resilience.base.files import remove_stale
from resilience.errors import StateDirectoryError
from resilience.system.files import (
    explain_os_error,
    make_directory,
    own_directory,
    read_regular,
    short_digest,
    write_atomic,
)
from resilience.system.ports import System

LIMIT_BYTES = 4 * 2**20
"""Maximum size of a file; the rest is not read."""

ABANDONED_S = 86400.0
"""Age at which a temporary file has no writer any more. A day, because clocks of file servers differ."""

_GONE = ".gone-"
"""Prefix of a marker in the fallback directory: the file is removed, although its disk refused the removal."""


def fallback_path(system: System, directory: Path, *, in_tmp: bool = False) -> Path:
    """Return the fallback of a directory on this node: `$XDG_STATE_HOME/resil/...` if set, else or `in_tmp` in /tmp.

    The default is not in the home directory, which is a network file system on clusters, and often the full one.
    """
    base = system.environ.get("XDG_STATE_HOME")
    # $XDG_STATE_HOME must be absolute, or is ignored: https://specifications.freedesktop.org/basedir-spec.
    root = (
        Path(base) / "resil" if base and base.startswith("/") and not in_tmp else Path(f"/tmp/resil-{system.host.uid}")
    )
    return root / f"{directory.name.lstrip('.')}-{short_digest(os.fsencode(directory))}"


class FallbackDirectory:
    """Small files, written atomically to `primary` or, if that fails, to `fallback`.

    Names that begin with a dot are internal and are not listed.

    Attributes:
        primary: the directory of the files. Created at the first write.
        fallback: directory for this user only (0700), on this node only, used while `primary` fails; may be None.
        error: the last error of `primary`, one sentence; empty while there is none.
    """

    def __init__(
        self,
        primary: Path,
        fallback: Path | None,
        *,
        directory_mode: int = 0o700,
        file_mode: int = 0o600,
        gid: int | None = None,
        unavailable: str = "",
    ) -> None:
        """`gid`: group of new directories; None: the system's default.

        `unavailable`: why `primary` must not be accessed, because access hangs; empty if `primary` may be accessed.
        """
        self.primary = primary
        self.fallback = fallback
        self.error = unavailable
        self._unavailable = unavailable
        self._directory_mode = directory_mode
        self._file_mode = file_mode
        self._gid = gid
        self._is_made = False

    @property
    def is_unavailable(self) -> bool:
        """Return whether `primary` must not be accessed."""
        return bool(self._unavailable)

    def sibling(self, name: str) -> FallbackDirectory:
        """Return the directory `name` next to this one, with the same modes and a fallback of that name."""
        fallback = self.fallback.with_name(name) if self.fallback is not None else None
        return FallbackDirectory(
            self.primary.with_name(name),
            fallback,
            directory_mode=self._directory_mode,
            file_mode=self._file_mode,
            gid=self._gid,
            unavailable=self._unavailable,
        )

    def names(self) -> tuple[str, ...]:
        """Return the names of the files, sorted. A directory that does not exist has no files.

        If `primary` cannot be read, set `error` and return the files of the fallback.
        """
        own = set(() if self._unavailable else self._names(self.primary, is_primary=True))
        fallback = self._names(self.fallback) if self.fallback is not None else ()
        gone = {name.removeprefix(_GONE) for name in fallback if name.startswith(_GONE)}
        return tuple(sorted(name for name in (own - gone) | set(fallback) if not name.startswith(".")))

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if the file does not exist.

        Raise StateDirectoryError if the file cannot be read: NotRegularFile for a directory, a FIFO, a link.
        """
        found = self.read_owned(name)
        return found[0] if found is not None else None

    def read_owned(self, name: str) -> tuple[bytes, int] | None:
        """Return the content of a file and its owner's uid, or None if the file does not exist. Raise as `read`."""
        if self.fallback is not None:
            with suppress(StateDirectoryError):
                found = read_regular(self.fallback / name, LIMIT_BYTES)
                if found is not None and found[1].st_uid == os.getuid():
                    return found[0], found[1].st_uid
            if self._exists(self.fallback / (_GONE + name)):
                return None
        if self._unavailable:
            return None
        try:
            found = read_regular(self.primary / name, LIMIT_BYTES)
        except StateDirectoryError as error:
            if isinstance(error.__cause__, NotADirectoryError):
                return None
            raise
        return (found[0], found[1].st_uid) if found is not None else None

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless `primary` has it; return False if it has. Of several processes, one creates the file.

        Where the disk has no hard links or refuses the file, write as `write` does. Raise StateDirectoryError as
        `write` does.
        """
        aside = f".{name}.{os.urandom(6).hex()}.tmp"  # matches `remove_stale`
        try:
            self._write_primary(aside, content, durable=False)
            os.link(self.primary / aside, self.primary / name)  # atomic even on NFS
        except FileExistsError:
            return False
        except (StateDirectoryError, OSError):
            self.write(name, content, durable=False)
        finally:
            if not self._unavailable:
                _remove(self.primary / aside)
        return True

    def write(self, name: str, content: bytes, *, durable: bool = True) -> None:
        """Write a file atomically to `primary`, or to the fallback if that fails.

        Without `durable`, a power failure may leave the file empty. Raise StateDirectoryError if both writes fail.
        """
        try:
            self._write_primary(name, content, durable)
        except StateDirectoryError as error:
            self.error = error.message
            if self.fallback is None:
                raise
            self._write_fallback(name, content, durable)
            _remove(self.fallback / (_GONE + name))
            return
        if self.fallback is not None:
            _remove(self.fallback / name)
            _remove(self.fallback / (_GONE + name))

    def remove(self, name: str) -> None:
        """Remove a file, if it exists.

        If the disk refuses the removal, write a marker to the fallback directory, which hides the file on this node.
        Raise StateDirectoryError if the marker cannot be written either.
        """
        if self.fallback is not None:
            _remove(self.fallback / name)
        try:
            if self._unavailable:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            os.unlink(self.primary / name)  # noqa: PTH108 - one system call, named as the manual names it
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            explained = explain_os_error(error, "remove", self.primary / name)
            self.error = explained.message
            if self.fallback is None:
                raise explained from error
            self._write_fallback(_GONE + name, b"", durable=False)
            return
        if self.fallback is not None:
            _remove(self.fallback / (_GONE + name))

    def quarantine(self, name: str) -> str:
        """Rename a damaged file to `.damaged-NAME-...` in the same directory, and return the new path."""
        aside = f".damaged-{name}-{os.urandom(3).hex()}"
        where = ""
        for place in (self.fallback, self.primary):
            if place is None or (place == self.primary and self._unavailable):
                continue
            try:
                os.rename(place / name, place / aside)  # noqa: PTH104
                where = where or str(place / aside)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                self.error = explain_os_error(error, "rename", place / name).message
                if self.fallback is not None:
                    with suppress(StateDirectoryError):
                        self._write_fallback(_GONE + name, b"", durable=False)
        return where or str(self.primary / name)

    def flush_fallback(self) -> int:
        """Move as many files as possible from the fallback directory to `primary`; return their number."""
        if self.fallback is None or self._unavailable:
            return 0
        moved = 0
        names = self._names(self.fallback)
        for name in names:
            if name.startswith(_GONE):
                # Keep the file if it was written again since.
                if (removed := name.removeprefix(_GONE)) not in names:
                    with suppress(StateDirectoryError):
                        self.remove(removed)
                continue
            if name.startswith("."):
                continue
            try:
                content = self.read(name)
                if content is not None:
                    self._write_primary(name, content, durable=True)
                    _remove(self.fallback / name)
                    _remove(self.fallback / (_GONE + name))
                    moved += 1
            except StateDirectoryError as error:
                self.error = error.message
                break  # the next write would fail too
        return moved

    def _write_primary(self, name: str, content: bytes, durable: bool) -> None:
        self.make()
        try:
            write_atomic(self.primary / name, content, mode=self._file_mode, durable=durable, sweep=durable)
        except StateDirectoryError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            self._is_made = False  # removed meanwhile
            self.make()
            write_atomic(self.primary / name, content, mode=self._file_mode, durable=durable, sweep=durable)

    def make(self) -> None:
        """Create the primary directory. Raise StateDirectoryError if that fails, or if its disk does not respond."""
        if self._unavailable:
            raise StateDirectoryError(self._unavailable, transient=True)
        if self._is_made:
            return
        # The parent first: other users of the group must be able to create directories in the parent.
        for directory in (self.primary.parent, self.primary):
            for made in make_directory(directory, mode=self._directory_mode):
                if self._gid is not None:
                    with suppress(OSError):
                        os.chown(made, -1, self._gid)
                        made.chmod(self._directory_mode if made == directory else self._directory_mode & ~0o022)
        self._is_made = True

    def _write_fallback(self, name: str, content: bytes, durable: bool) -> None:
        assert self.fallback is not None
        if own_directory(self.fallback) is None or not _is_safe(self.fallback.parent):
            raise StateDirectoryError(
                f"{self.error}, and the fallback directory {self.fallback} cannot be used either",
                hint=f"it must belong to you alone: check `namei -l {self.fallback}`",
            )
        write_atomic(self.fallback / name, content, mode=0o600, durable=durable, sweep=durable)

    def _names(self, directory: Path, *, is_primary: bool = False) -> tuple[str, ...]:
        try:
            if not is_primary and directory.lstat().st_uid != os.getuid():
                return ()
            names = tuple(os.listdir(directory))  # noqa: PTH208 - a name each, no objects
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            if is_primary:
                self.error = explain_os_error(error, "read", directory).message
            return ()
        if any(name.startswith(".") and name.endswith(".tmp") for name in names):
            remove_stale(directory, time.time(), older_than_s=ABANDONED_S)
        return names

    @staticmethod
    def _exists(path: Path) -> bool:
        try:
            return path.lstat().st_uid == os.getuid()
        except OSError:
            return False


def _is_safe(directory: Path) -> bool:
    """Return whether no other user can replace a subdirectory: in /tmp, another user may have created the directory."""
    for level in (directory, *directory.parents):
        try:
            info = level.lstat()
        except OSError:
            return False
        is_open_to_all = bool(info.st_mode & stat.S_IWOTH) and not info.st_mode & stat.S_ISVTX
        if not stat.S_ISDIR(info.st_mode) or info.st_uid not in (0, os.getuid()) or is_open_to_all:
            return False
    return True


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
