"""Which slots of cron are taken, and by whom: the only arbiter between schedulers on any number of hosts.

A slot is a file `slots/<key>@<slot>`, made by link(2), which the file server does once; there is no lock (open(2) on
O_EXCL and NFS). What took it is a file of its own, `open/<key>@<slot>@<id>@<owner>`, and stays until the run is under
way in other books: whoever finds it after a crash knows what was begun and not ended, and takes it over with
rename(2), which succeeds once as well. All slots lie in one directory: what every tick asks is one listing. Of each
entry the newest few are kept, and the floor below them, `slots/<key>@<slot>~`.
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
"""So many taken slots of an entry stay as files: a scheduler that lags behind still finds that its slot was taken."""

AHEAD_S = 900.0
"""A slot this much newer than now was taken by a host whose clock is ahead, or before ours was set back, and counts.
One that is newer still was taken by a clock that was wrong: the time of now counts at once, as in cron(8)."""

FLOOR = "~"
"""Ends the name of an entry's floor: the newest slot that was removed."""

FOREIGN_OPEN_S = 600.0
"""What another host, or another boot of this one, began to take and did not hand on within this time, died there: a
submit takes at most a minute and a half of one job, and gives up after the first that hangs."""

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}
"""What link(2) says where a file system has no hard links (EPERM: vfat, some FUSE and object stores)."""


class Claim(NamedTuple):
    """A slot that somebody began to take.

    Attributes:
        key: the entry's.
        id: random word of this taking; the slot's file has it as well if it was won.
        owner: which process has it in hand, as `_owner` writes it.
    """

    key: str
    slot: int
    id: str
    owner: str

    @property
    def name(self) -> str:
        """Its file's name in `open/`."""
        return f"{self.key}@{self.slot}@{self.id}@{self.owner}"

    @property
    def time(self) -> float:
        """When it was taken in hand, seconds since the epoch, by the clock of its host."""
        return float(self.owner.rpartition("-")[2])

    def is_mine(self) -> bool:
        """Whether this process has it in hand."""
        return self.owner.rpartition("-")[0] == _owner(0).rpartition("-")[0]

    def is_gone(self, now: float) -> bool:
        """Whether the process that had it in hand is no more. That of another host is, when enough time has passed."""
        where, pid, ticks, began = self.owner.split("-")
        if where != machine():
            return abs(now - float(began)) > FOREIGN_OPEN_S
        return not is_same(int(pid), int(ticks))


class Slots:
    """The slots of one project.

    Args:
        path: `<state_dir>/.cron`.
        directory_mode, file_mode: what its directories and files are made with.
    """

    def __init__(self, path: Path, *, directory_mode: int, file_mode: int) -> None:
        self._slots, self._open = path / "slots", path / "open"
        self._directory_mode, self._file_mode = directory_mode, file_mode

    def taken(self) -> dict[str, list[int]]:
        """The slots taken of every entry by its key, ascending: the newest few. Raise StateDirectoryError."""
        return self._look()[0]

    def _look(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """The slots taken, and the floors: up to there all is over, and nothing can be taken any more."""
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
        """Take a slot for good: a Claim for exactly one caller on earth, None for everybody else.

        The claim stays in `open/` until `close`: who dies before has left word. `by` says who took it, for people.
        `clock` tells the time, whenever it is asked: a process may be stopped anywhere in here, for a day, and what it
        knew of the time is a day old then. Raise StateDirectoryError if the directory cannot be written: then nobody
        has the slot.
        """
        for directory in (self._slots, self._open):
            make_directory(directory, mode=self._directory_mode)
        claim = Claim(key, slot, os.urandom(6).hex(), _owner(clock()))
        content = json.dumps({"id": claim.id, **by}).encode() + b"\n"
        mine, place = str(self._open / claim.name), str(self._slots / f"{key}@{slot}")
        undo: tuple[str, ...] = (mine,)
        try:
            create_once(mine, content, mode=self._file_mode)
            if link_once(mine, place, content, mode=self._file_mode):
                undo = (place, mine)
                sync_directory(self._slots)
                undo = () if self._tidy(key, slot, clock) else undo
        except OSError as error:
            raise explain_os_error(error, "take the slot", Path(place)) from error
        finally:
            for path in undo:
                with suppress(OSError):
                    os.unlink(path)  # noqa: PTH108
        return None if undo else claim

    def close(self, claim: Claim) -> None:
        """The slot is in other hands' books now, or its end is recorded."""
        with suppress(OSError):
            os.unlink(self._open / claim.name)  # noqa: PTH108

    def holds(self, claim: Claim) -> bool:
        """Whether it is still in this process's hands: one that was stopped for long may find that it was seized."""
        return os.path.lexists(self._open / claim.name)

    def open_claims(self) -> list[Claim]:
        """What was begun and not handed on, by living processes and dead ones. Raise StateDirectoryError."""
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
        """Take over what another process had in hand: the claim for exactly one caller, None for everybody else."""
        mine = claim._replace(owner=_owner(now))
        try:
            os.rename(self._open / claim.name, self._open / mine.name)  # noqa: PTH104 - the manual's name
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain_os_error(error, "take over", self._open / claim.name) from error
        return mine

    def is_won(self, claim: Claim) -> bool | None:
        """Whether a claim got its slot. None: nobody can tell any more, it is too long ago, or the crash took that."""
        limit = max(claim.slot, claim.time) + AHEAD_S
        if any(claim.slot <= floor <= limit for floor in self._look()[1].get(claim.key, [])):
            return False  # it was over before
        found = read_regular(self._slots / f"{claim.key}@{claim.slot}")
        if found is None or not found[0].strip():
            return None
        return claim.id.encode() in found[0]

    def _tidy(self, key: str, slot: int, clock: Callable[[], float]) -> bool:
        """Remove all but the newest slots of an entry, and say whether ours counts.

        One that lags behind may have taken a slot that was run and removed long ago: the floor tells. It rises by
        rename(2) of the slot's own file, and never above a slot that somebody has in hand: its file has two names.
        """
        all_taken, all_floors = self._look()
        limit = max(slot, clock()) + AHEAD_S  # asked after the look: nothing that was seen there can seem to be ahead
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
        """Remove what only a wrong clock can have taken; return the newest of each entry."""
        found: dict[str, int] = {}
        looked = self._look()
        limit = clock() + AHEAD_S  # asked after the look, as in `_tidy`: others may have run what we see
        for slots, suffix in zip(looked, ("", FLOOR), strict=True):
            for key, numbers in slots.items():
                for number in numbers:
                    if number > limit:
                        found[key] = max(number, found.get(key, 0))
                        with suppress(OSError):
                            os.unlink(self._slots / f"{key}@{number}{suffix}")  # noqa: PTH108
        return found

    def forget(self, key: str) -> None:
        """Remove all slots of an entry that is long gone."""
        for slots, suffix in zip(self._look(), ("", FLOOR), strict=True):
            for number in slots.get(key, []):
                with suppress(OSError):
                    os.unlink(self._slots / f"{key}@{number}{suffix}")  # noqa: PTH108


def create_once(path: str | Path, content: bytes, *, mode: int) -> None:
    """Make a file that was not there. Raise OSError, FileExistsError where it was."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        if os.write(descriptor, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_once(mine: str | Path, place: str | Path, content: bytes, *, mode: int) -> bool:
    """Give a whole file of ours a name that only one can have; say whether it was us. Raise OSError.

    Where there are no hard links, a file of that name is made exclusively, and filled.
    """
    try:
        os.link(mine, place)
        return True
    except FileExistsError:
        # An answer lost on the way is asked for again, and the second link finds the first (open(2), NOTES).
        return os.stat(mine).st_nlink > 1  # noqa: PTH116
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    try:
        create_once(place, content, mode=mode)
    except FileExistsError:
        return False
    except OSError:  # the name is ours, and what it should say is not written: then nobody has it
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
    """This process, as a word for a file's name: where its number means something, the number, its start, and now."""
    pid = os.getpid()
    return f"{machine()}-{pid}-{start_ticks(pid) or 0}-{int(now)}"


@cache
def machine() -> str:
    """This boot of this machine, and the namespace that process numbers belong to (pid_namespaces(7))."""
    facts = " ".join((os.uname().nodename, *pid_space()))
    return f"{crc32(facts.encode('utf-8', 'surrogateescape')):08x}"
