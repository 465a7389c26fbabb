"""Claims slots: the only arbiter between schedulers on any number of hosts.

A slot is a file `slots/<key>@<slot>`, made by link(2) from the record of the run, which succeeds for one caller only;
there is no lock (open(2) on O_EXCL and NFS). All slots are in one directory, so a tick needs one listing. The newest
few slots of each entry are kept, and the floor below them, `slots/<key>@<slot>~`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from resilience.base.files import sync_directory
from resilience.system.files import FULL, explain_os_error, read_regular

KEPT_SLOTS = 8
"""Number of slot files kept per entry, so that a delayed scheduler still finds that its slot was taken."""

AHEAD_S = 900.0
"""A slot up to this far in the future was taken by a host whose clock is ahead, or before this clock was set back, and
counts. A later one was taken by a wrong clock and is ignored, as in cron(8)."""

FLOOR = "~"
"""Suffix of an entry's floor: the newest slot that was deleted."""

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}
"""Errors of link(2) on file systems without hard links (EPERM: vfat, some FUSE and object stores)."""


class Slots:
    """The slots of one project. `path`: the directory `slots`."""

    def __init__(self, path: Path, *, file_mode: int) -> None:
        self.path, self._file_mode = path, file_mode

    def taken(self) -> dict[str, list[int]]:
        """Return the newest taken slots of every entry by its key, ascending.

        Raise StateDirectoryError if they cannot be read.
        """
        return self._list()[0]

    def _list(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Return the taken slots, and the floors; slots up to an entry's floor can no longer be taken."""
        taken: dict[str, list[int]] = {}
        floors: dict[str, list[int]] = {}
        for name in names(self.path):
            key, _, slot = name.rpartition("@")
            number = slot.removesuffix(FLOOR)
            if key and number.isascii() and number.isdigit():
                (taken if number == slot else floors).setdefault(key, []).append(int(number))
        for slots in (*taken.values(), *floors.values()):
            slots.sort()
        return taken, floors

    def claim(
        self,
        record: Path,
        content: bytes,
        key: str,
        slot: int,
        held: Callable[[], Collection[int]],
        clock: Callable[[], float],
    ) -> bool:
        """Claim a slot for a run whose complete record exists; return True to exactly one caller on any host.

        `held` returns the slots of the entry whose claim nobody has acted upon yet; no floor rises above them. `clock`
        returns the time whenever needed, because the process may be suspended for a day anywhere in here. Raise OSError
        if the directory cannot be written: then no process has the slot.
        """
        place = self.path / f"{key}@{slot}"
        if not link_once(record, place, content, mode=self._file_mode):
            return False
        try:
            sync_directory(self.path)
            if self._delete_old(key, slot, held, clock):
                return True
        except BaseException:
            _unlink(place)
            raise
        _unlink(place)
        return False

    def has(self, record: Path, id: str, key: str, slot: int, time: float) -> bool | None:
        """Return whether the record claimed at `time` won its slot: not if its scheduler was killed before that.

        None: unknown, because a power cut took the content of the slot.
        """
        limit = max(slot, time) + AHEAD_S
        if any(slot <= floor <= limit for floor in self._list()[1].get(key, [])):
            return False  # the slot had ended before
        place = self.path / f"{key}@{slot}"
        with suppress(OSError):
            if record.samefile(place):
                return True
        found = read_regular(place)
        return False if found is None else None if not found[0].strip() else id.encode() in found[0]

    def _delete_old(self, key: str, slot: int, held: Callable[[], Collection[int]], clock: Callable[[], float]) -> bool:
        """Delete old slots of an entry, and return whether our claim counts.

        A delayed scheduler may have claimed a slot that ran and was deleted long ago: the floor shows that. The floor
        rises by rename(2) of the slot's own file.
        """
        all_taken, all_floors = self._list()
        limit = max(slot, clock()) + AHEAD_S  # read after the listing, so that nothing listed can seem to be ahead
        floors = [floor for floor in all_floors.get(key, []) if floor <= limit]
        if floors and slot <= floors[-1]:
            return False
        if old_slots := [taken for taken in all_taken.get(key, []) if taken <= limit][:-KEPT_SLOTS]:
            claimed = held()  # a claim is made before its slot, so it is found for each slot listed above
            for old in old_slots:
                if old in claimed:
                    break
                path = str(self.path / f"{key}@{old}")
                with suppress(OSError):  # without room, the floor rises later
                    os.rename(path, f"{path}{FLOOR}")  # noqa: PTH104 - the manual's name
                    floors.append(old)
        for floor in sorted(floors)[:-1]:
            _unlink(self.path / f"{key}@{floor}{FLOOR}")
        return True

    def forget_ahead(self, clock: Callable[[], float]) -> dict[str, int]:
        """Delete slots that only a wrong clock can have taken; return the newest of each entry."""
        found: dict[str, int] = {}
        listed = self._list()
        limit = clock() + AHEAD_S  # read after the listing, as in `_delete_old`: others may have run these slots
        for slots, suffix in zip(listed, ("", FLOOR), strict=True):
            for key, numbers in slots.items():
                for number in (number for number in numbers if number > limit):
                    found[key] = max(number, found.get(key, 0))
                    _unlink(self.path / f"{key}@{number}{suffix}")
        return found

    def forget(self, key: str) -> None:
        """Delete all slots of an entry that was removed long ago."""
        for slots, suffix in zip(self._list(), ("", FLOOR), strict=True):
            for number in slots.get(key, []):
                _unlink(self.path / f"{key}@{number}{suffix}")


def create_once(path: str | Path, content: bytes, *, mode: int, or_empty: bool = False) -> None:
    """Create a file that must not exist. Raise OSError; FileExistsError if it exists.

    With `or_empty`, the file stays empty if the disk has room for a name but for no content.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            if os.write(descriptor, content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if not or_empty or error.errno not in FULL:
                raise
            os.ftruncate(descriptor, 0)
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_once(mine: str | Path, place: str | Path, content: bytes, *, mode: int) -> bool:
    """Give a complete file a second name that only one caller can create; return whether this call did. Raise OSError.

    Without hard links, a file of that name is created exclusively, and written.
    """
    try:
        os.link(mine, place)
        return True
    except FileExistsError:
        # NFS repeats a request whose answer was lost, and the second link finds the first (open(2), NOTES).
        return os.stat(mine).st_nlink > 1  # noqa: PTH116
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    try:
        create_once(place, content, mode=mode)
    except FileExistsError:
        return False
    except OSError:  # the name is ours, but its content is missing: give the slot back
        _unlink(Path(place))
        raise
    return True


def names(directory: Path) -> list[str]:
    """Return the names in a directory that may not exist. Raise StateDirectoryError if it cannot be read."""
    try:
        return os.listdir(directory)  # noqa: PTH208 - names only
    except FileNotFoundError:
        return []
    except OSError as error:
        raise explain_os_error(error, "read", directory) from error


def _unlink(path: Path) -> None:
    with suppress(OSError):
        os.unlink(path)  # noqa: PTH108
