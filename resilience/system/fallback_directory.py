"""A directory of small files that has a fallback on this node, for when its own disk is full, read-only or gone.

These files are needed most when a disk fails, and it may be this very disk. Readers see one directory: the
union of both, the fallback's files first. When the disk is well again, the files move home.
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
"""No file of ours is longer; more than that is not read."""

ABANDONED_S = 86400.0
"""A temporary file that is older has no writer any more. A day: clocks of file servers differ from ours."""

_GONE = ".gone-"
"""In the fallback directory: that file is removed, though the disk that has it would not let go of it."""


def fallback_path(system: System, directory: Path) -> Path:
    """Where the fallback of a directory lies on this node: `$XDG_STATE_HOME/resil/...` where that is set, else in /tmp.

    Not below the home directory otherwise: that is a network file system on clusters, and often the full one.
    """
    base = system.environ.get("XDG_STATE_HOME")
    # $XDG_STATE_HOME must be absolute, or it is passed over: https://specifications.freedesktop.org/basedir-spec.
    root = Path(base) / "resil" if base and base.startswith("/") else Path(f"/tmp/resil-{system.host.uid}")
    return root / f"{directory.name.lstrip('.')}-{short_digest(os.fsencode(directory))}"


class FallbackDirectory:
    """Small files, each whole or not there, in `primary` or, where that takes none, in `fallback`.

    Names that begin with a dot are its own business and are not listed.

    Attributes:
        primary: where the files belong. Made when first written to.
        fallback: where they go meanwhile: only for this user (0700), only on this node. None: there is none.
        trouble: what was last wrong with `primary`, one sentence; empty when it answers.
    """

    def __init__(
        self,
        primary: Path,
        fallback: Path | None,
        *,
        directory_mode: int = 0o700,
        file_mode: int = 0o600,
        gid: int | None = None,
        away: str = "",
    ) -> None:
        """`gid`: the group that a new directory is given to, None leaves it to the system.

        `away`: why `primary` must not even be touched, because it hangs; empty: it may.
        """
        self.primary = primary
        self.fallback = fallback
        self.trouble = away
        self._away = away
        self._directory_mode = directory_mode
        self._file_mode = file_mode
        self._gid = gid
        self._is_made = False

    @property
    def is_unavailable(self) -> bool:
        """Return whether `primary` must not even be touched."""
        return bool(self._away)

    def beside(self, name: str) -> FallbackDirectory:
        """The directory of that name next to this one, with the same modes, and its fallback next to this one's."""
        fallback = self.fallback.with_name(name) if self.fallback is not None else None
        return FallbackDirectory(
            self.primary.with_name(name),
            fallback,
            directory_mode=self._directory_mode,
            file_mode=self._file_mode,
            gid=self._gid,
            away=self._away,
        )

    def names(self) -> tuple[str, ...]:
        """The names of the files there are, sorted. A directory that is not there yet has none.

        A directory that cannot be read is `trouble`, and the fallback's files are all that is known.
        """
        own = set(() if self._away else self._names(self.primary, is_home=True))
        fallback = self._names(self.fallback) if self.fallback is not None else ()
        gone = {name.removeprefix(_GONE) for name in fallback if name.startswith(_GONE)}
        return tuple(sorted(name for name in (own - gone) | set(fallback) if not name.startswith(".")))

    def read(self, name: str) -> bytes | None:
        """A file's content, or None when it is not there.

        Raise StateDirectoryError if it cannot be read: NotRegularFile where it is a directory, a FIFO, a link.
        """
        if self.fallback is not None:
            with suppress(StateDirectoryError):
                found = read_regular(self.fallback / name, LIMIT_BYTES)
                if found is not None and found[1].st_uid == os.getuid():
                    return found[0]
            if self._lies(self.fallback / (_GONE + name)):
                return None
        if self._away:
            return None
        try:
            found = read_regular(self.primary / name, LIMIT_BYTES)
        except StateDirectoryError as error:
            if isinstance(error.__cause__, NotADirectoryError):
                return None
            raise
        return found[0] if found is not None else None

    def write(self, name: str, content: bytes, *, durable: bool = True) -> None:
        """Write a file, whole or not at all, to the first of the two directories that takes it.

        Without `durable` a power cut may leave it empty. Raise StateDirectoryError if neither takes it.
        """
        try:
            self._write_home(name, content, durable)
        except StateDirectoryError as error:
            self.trouble = error.message
            if self.fallback is None:
                raise
            self._write_spare(name, content, durable)
            _remove(self.fallback / (_GONE + name))
            return
        if self.fallback is not None:
            _remove(self.fallback / name)
            _remove(self.fallback / (_GONE + name))

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error.

        A disk that will not let go of it gets a note in the fallback directory, so that it is not seen again from this
        node. Raise StateDirectoryError if that cannot be written either.
        """
        if self.fallback is not None:
            _remove(self.fallback / name)
        try:
            if self._away:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            os.unlink(self.primary / name)  # noqa: PTH108 - one system call, named as the manual names it
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            explained = explain_os_error(error, "remove", self.primary / name)
            self.trouble = explained.message
            if self.fallback is None:
                raise explained from error
            self._write_spare(_GONE + name, b"", durable=False)
            return
        if self.fallback is not None:
            _remove(self.fallback / (_GONE + name))

    def quarantine(self, name: str) -> str:
        """Rename a file that makes no sense to `.damaged-NAME-...`, beside where it lay, and return that path."""
        aside = f".damaged-{name}-{os.urandom(3).hex()}"
        where = ""
        for place in (self.fallback, self.primary):
            if place is None or (place == self.primary and self._away):
                continue
            try:
                os.rename(place / name, place / aside)  # noqa: PTH104
                where = where or str(place / aside)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                self.trouble = explain_os_error(error, "set aside", place / name).message
                if self.fallback is not None:
                    with suppress(StateDirectoryError):
                        self._write_spare(_GONE + name, b"", durable=False)
        return where or str(self.primary / name)

    def flush_fallback(self) -> int:
        """Move the files of the fallback directory to the primary one, as far as possible; return how many moved."""
        if self.fallback is None or self._away:
            return 0
        moved = 0
        names = self._names(self.fallback)
        for name in names:
            if name.startswith(_GONE):
                # A file of that name was written since.
                if (removed := name.removeprefix(_GONE)) not in names:
                    with suppress(StateDirectoryError):
                        self.remove(removed)
                continue
            if name.startswith("."):
                continue
            try:
                content = self.read(name)
                if content is not None:
                    self._write_home(name, content, durable=True)
                    _remove(self.fallback / name)
                    _remove(self.fallback / (_GONE + name))
                    moved += 1
            except StateDirectoryError as error:
                self.trouble = error.message
                break  # the next would not fare better
        return moved

    def _write_home(self, name: str, content: bytes, durable: bool) -> None:
        self._make()
        try:
            write_atomic(self.primary / name, content, mode=self._file_mode, durable=durable, sweep=durable)
        except StateDirectoryError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            self._is_made = False  # it vanished meanwhile
            self._make()
            write_atomic(self.primary / name, content, mode=self._file_mode, durable=durable, sweep=durable)

    def _make(self) -> None:
        if self._away:
            raise StateDirectoryError(self._away, transient=True)
        if self._is_made:
            return
        # The one above first: a colleague of the group must be able to make the next directory in it.
        for directory in (self.primary.parent, self.primary):
            for made in make_directory(directory, mode=self._directory_mode):
                if self._gid is not None:
                    with suppress(OSError):
                        os.chown(made, -1, self._gid)
                        made.chmod(self._directory_mode if made == directory else self._directory_mode & ~0o022)
        self._is_made = True

    def _write_spare(self, name: str, content: bytes, durable: bool) -> None:
        assert self.fallback is not None
        if own_directory(self.fallback) is None or not _is_safe(self.fallback.parent):
            raise StateDirectoryError(
                f"{self.trouble}, and the fallback directory {self.fallback} cannot be used either",
                hint=f"it must belong to you alone: look at `namei -l {self.fallback}`",
            )
        write_atomic(self.fallback / name, content, mode=0o600, durable=durable, sweep=durable)

    def _names(self, directory: Path, *, is_home: bool = False) -> tuple[str, ...]:
        try:
            if not is_home and directory.lstat().st_uid != os.getuid():
                return ()
            names = tuple(os.listdir(directory))  # noqa: PTH208 - a name each, no objects
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            if is_home:
                self.trouble = explain_os_error(error, "read", directory).message
            return ()
        if any(name.startswith(".") and name.endswith(".tmp") for name in names):
            remove_stale(directory, time.time(), older_than_s=ABANDONED_S)
        return names

    @staticmethod
    def _lies(path: Path) -> bool:
        try:
            return path.lstat().st_uid == os.getuid()
        except OSError:
            return False


def _is_safe(directory: Path) -> bool:
    """Return whether nobody else can replace a directory in here by another: in /tmp, anybody may have been first."""
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
