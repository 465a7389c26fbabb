"""Claims slots: the only arbiter between schedulers on any number of hosts.

A slot is a file `slots/<key>@<slot>`, made by link(2), which succeeds for one caller only; there is no lock (open(2) on
O_EXCL and NFS). The claim is a file of its own, `open/<key>@<slot>@<id>@<owner>`, and stays until the run is recorded
elsewhere: after a crash, the next tick finds what began and did not end, and takes it over with rename(2), which
succeeds for one caller only as well. All slots are in one directory, so a tick needs one listing. The newest few slots
of each entry are kept, and the floor below them, `slots/<key>@<slot>~`.
"""

from __future__ import annotations

import errno
import json
import os
from binascii import crc32
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from resilience.base.files import sync_directory
from resilience.base.processes import is_same, pid_space, start_ticks
from resilience.system.files import explain_os_error, make_directory, read_regular

KEPT_SLOTS = 8
"""Number of slot files kept per entry, so that a delayed scheduler still finds that its slot was taken."""

AHEAD_S = 900.0
"""A slot up to this far in the future was taken by a host whose clock is ahead, or before this clock was set back, and
counts. A later one was taken by a wrong clock and is ignored, as in cron(8)."""

FLOOR = "~"
"""Suffix of an entry's floor: the newest slot that was deleted."""

FOREIGN_OPEN_S = 600.0
"""A claim of another host, or of another boot of this one, is abandoned after this time: submitting takes at most 90 s
per job, and stops after the first job that hangs."""

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}
"""Errors of link(2) on file systems without hard links (EPERM: vfat, some FUSE and object stores)."""


class Claim(NamedTuple):
    """A claim on a slot.

    Attributes:
        key: of the entry.
        id: random id of this claim; the slot's file contains it if the claim won.
        owner: the process that holds it, as `_owner` formats it.
    """

    key: str
    slot: int
    id: str
    owner: str

    @property
    def name(self) -> str:
        """File name in `open/`."""
        return f"{self.key}@{self.slot}@{self.id}@{self.owner}"

    @property
    def time(self) -> float:
        """When the process took it, seconds since the epoch, by the clock of its host."""
        return float(self.owner.rpartition("-")[2])

    def is_mine(self) -> bool:
        """Return whether this process holds it."""
        return self.owner.rpartition("-")[0] == _owner(0).rpartition("-")[0]

    def is_gone(self, now: float) -> bool:
        """Return whether the process that held it is gone; that of another host is after FOREIGN_OPEN_S."""
        where, pid, ticks, began = self.owner.split("-")
        if where != machine():
            return abs(now - float(began)) > FOREIGN_OPEN_S
        return not is_same(int(pid), int(ticks))


class Slots:
    """The slots of one project.

    Args:
        path: `<state_dir>/.cron`.
        directory_mode, file_mode: modes of new directories and files.
    """

    def __init__(self, path: Path, *, directory_mode: int, file_mode: int) -> None:
        self._slots, self._open = path / "slots", path / "open"
        self._directory_mode, self._file_mode = directory_mode, file_mode

    def taken(self) -> dict[str, list[int]]:
        """Return the newest taken slots of every entry by its key, ascending.

        Raise StateDirectoryError if they cannot be read.
        """
        return self._list()[0]

    def _list(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Return the taken slots, and the floors; slots up to an entry's floor can no longer be taken."""
        taken: dict[str, list[int]] = {}
        floors: dict[str, list[int]] = {}
        for name in _names(self._slots):
            key, _, slot = name.rpartition("@")
            number = slot.removesuffix(FLOOR)
            if key and number.isascii() and number.isdigit():
                (taken if number == slot else floors).setdefault(key, []).append(int(number))
        for slots in (*taken.values(), *floors.values()):
            slots.sort()
        return taken, floors

    def claim(self, key: str, slot: int, by: Mapping[str, Any], clock: Callable[[], float]) -> Claim | None:
        """Claim a slot: return a Claim to exactly one caller on any host, None to all others.

        The claim stays in `open/` until `close`, so a crash leaves a trace. `by` describes the owner for the user.
        `clock` returns the time whenever needed, because the process may be suspended for a day anywhere in here. Raise
        StateDirectoryError if the directory cannot be written: then no process has the slot.
        """
        for directory in (self._slots, self._open):
            make_directory(directory, mode=self._directory_mode)
        claim = Claim(key, slot, os.urandom(6).hex(), _owner(clock()))
        content = json.dumps({"id": claim.id, **by}).encode() + b"\n"
        mine, place = str(self._open / claim.name), str(self._slots / f"{key}@{slot}")
        rollback: tuple[str, ...] = (mine,)
        try:
            create_once(mine, content, mode=self._file_mode)
            if link_once(mine, place, content, mode=self._file_mode):
                rollback = (place, mine)
                sync_directory(self._slots)
                rollback = () if self._delete_old(key, slot, clock) else rollback
        except OSError as error:
            raise explain_os_error(error, "take the slot", Path(place)) from error
        finally:
            for path in rollback:
                with suppress(OSError):
                    os.unlink(path)  # noqa: PTH108
        return None if rollback else claim

    def close(self, claim: Claim) -> None:
        """Delete the claim: the run or its end is recorded elsewhere."""
        with suppress(OSError):
            os.unlink(self._open / claim.name)  # noqa: PTH108

    def holds(self, claim: Claim) -> bool:
        """Return whether this process still holds the claim; another process may have seized it meanwhile."""
        return os.path.lexists(self._open / claim.name)

    def open_claims(self) -> list[Claim]:
        """Return all open claims, of live and dead processes. Raise StateDirectoryError if they cannot be read."""
        found = []
        for name in _names(self._open):
            with suppress(ValueError):
                rest, id, owner = name.rsplit("@", 2)
                key, _, slot = rest.rpartition("@")
                _, pid, ticks, began = owner.split("-")
                if int(pid) and int(ticks) >= 0 and int(began) >= 0:
                    found.append(Claim(key, int(slot), id, owner))
        return sorted(found)

    def seize(self, claim: Claim, now: float) -> Claim | None:
        """Take over a claim of another process: return the new claim to exactly one caller, None to all others."""
        mine = claim._replace(owner=_owner(now))
        try:
            os.rename(self._open / claim.name, self._open / mine.name)  # noqa: PTH104 - the manual's name
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain_os_error(error, "take over", self._open / claim.name) from error
        return mine

    def is_won(self, claim: Claim) -> bool | None:
        """Return whether a claim won its slot. None: unknown, because it is too old or the crash lost it."""
        limit = max(claim.slot, claim.time) + AHEAD_S
        if any(claim.slot <= floor <= limit for floor in self._list()[1].get(claim.key, [])):
            return False  # the slot had ended before
        found = read_regular(self._slots / f"{claim.key}@{claim.slot}")
        if found is None or not found[0].strip():
            return None
        return claim.id.encode() in found[0]

    def _delete_old(self, key: str, slot: int, clock: Callable[[], float]) -> bool:
        """Delete old slots of an entry, and return whether our claim counts.

        A delayed scheduler may have claimed a slot that ran and was deleted long ago: the floor shows that. The floor
        rises by rename(2) of the slot's own file, and never above an open claim, whose file has two names.
        """
        all_taken, all_floors = self._list()
        limit = max(slot, clock()) + AHEAD_S  # read after the listing, so that nothing listed can seem to be ahead
        floors = [floor for floor in all_floors.get(key, []) if floor <= limit]
        if floors and slot <= floors[-1]:
            return False
        for old in [taken for taken in all_taken.get(key, []) if taken <= limit][:-KEPT_SLOTS]:
            path = str(self._slots / f"{key}@{old}")
            try:
                if os.stat(path).st_nlink > 1:  # noqa: PTH116
                    break
                os.rename(path, f"{path}{FLOOR}")  # noqa: PTH104 - the manual's name
            except FileNotFoundError:
                continue
            floors.append(old)
        for floor in sorted(floors)[:-1]:
            with suppress(OSError):
                os.unlink(self._slots / f"{key}@{floor}{FLOOR}")  # noqa: PTH108
        return True

    def forget_ahead(self, clock: Callable[[], float]) -> dict[str, int]:
        """Delete slots that only a wrong clock can have taken; return the newest of each entry."""
        found: dict[str, int] = {}
        listed = self._list()
        limit = clock() + AHEAD_S  # read after the listing, as in `_delete_old`: others may have run these slots
        for slots, suffix in zip(listed, ("", FLOOR), strict=True):
            for key, numbers in slots.items():
                for number in numbers:
                    if number > limit:
                        found[key] = max(number, found.get(key, 0))
                        with suppress(OSError):
                            os.unlink(self._slots / f"{key}@{number}{suffix}")  # noqa: PTH108
        return found

    def forget(self, key: str) -> None:
        """Delete all slots of an entry that was removed long ago."""
        for slots, suffix in zip(self._list(), ("", FLOOR), strict=True):
            for number in slots.get(key, []):
                with suppress(OSError):
                    os.unlink(self._slots / f"{key}@{number}{suffix}")  # noqa: PTH108


def create_once(path: str | Path, content: bytes, *, mode: int) -> None:
    """Create a file that must not exist. Raise OSError; FileExistsError if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        if os.write(descriptor, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
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
        with suppress(OSError):
            os.unlink(place)  # noqa: PTH108
        raise
    return True


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 - names only
    except FileNotFoundError:
        return []
    except OSError as error:
        raise explain_os_error(error, "read", directory) from error


def _owner(now: float) -> str:
    """Return this process as part of a file name: machine, process id, start time, and now."""
    pid = os.getpid()
    return f"{machine()}-{pid}-{start_ticks(pid) or 0}-{int(now)}"


@cache
def machine() -> str:
    """Return an id of this boot of this machine and its pid namespace (pid_namespaces(7))."""
    facts = " ".join((os.uname().nodename, *pid_space()))
    return f"{crc32(facts.encode('utf-8', 'surrogateescape')):08x}"
