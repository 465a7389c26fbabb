"""Refuses, before a byte is written, what would harm a run: a checkpoint that is in use, a directory that is watched.

"In use" is known from the directory of checkpoints (a save in flight, a pin), from the run that it belongs to (live
jobs), and from the processes of this host that have a file open or mapped. Processes of other hosts, and of other users
unless root asks, cannot be seen: the run's jobs can.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.names import parse_part
from resilience.checkpoints.pins import is_pinned
from resilience.errors import CheckpointError, UsageError
from resilience.messages import quoted

IsAlive = Callable[[str], str]
"""Given the run that owns the directory of a checkpoint (empty: none is known), returns why the checkpoint is in use;
empty: no job of a run that it belongs to lives."""


class InUse(CheckpointError):
    """The checkpoint is in use, or its directory is."""


class _User(NamedTuple):
    pid: int
    name: str
    path: str
    writes: bool


def store_around(path: Path) -> tuple[StoreDirectory, str] | None:
    """Return the directory of checkpoints that a path is in, and the name of the checkpoint there; None outside of one.
    Raise OSError."""
    below = path
    for parent in path.parents:
        store = StoreDirectory(parent)
        with suppress(PermissionError):  # a directory above, such as /home, may be passed and not listed
            if store.is_there():
                return store, below.name
        below = parent
    return None


def check_source(path: Path, *, in_place: bool) -> None:
    """Raise InUse if a checkpoint is being written, since its copy would be torn; in place, if any process has it open.
    OSError."""
    found = store_around(path)
    if found is not None and parse_part(found[1]) is not None:
        raise InUse(f"{path} is a save in flight", hint="alter a committed one: resil ckpt list")
    for user in _users(path):
        who = f"process {user.pid} ({user.name})"
        if user.writes:
            raise InUse(f"{user.path} is open for writing by {who}", hint="wait for the end of its save")
        if in_place:
            raise InUse(f"{user.path} is open in {who}", hint="alter a copy: without --in-place")


def check_output(path: Path, option: str = "--output") -> None:
    """Raise UsageError unless a new file can be made at a path without harm: nothing is there, nothing watches it."""
    if os.path.lexists(path):
        raise UsageError(f"{path} exists already", hint=f"name another file: {option} FILE")
    if not path.parent.is_dir():
        raise UsageError(f"there is no directory {path.parent}", hint=f"mkdir -p {quoted(path.parent)}")
    if (found := store_around(path)) is not None:
        raise InUse(
            f"{path} is in {found[0].path}, a directory of checkpoints of {_owner(found[0])}, which stays as it is",
            hint=f"name a file elsewhere: {option} FILE",
        )


def check_in_place(path: Path, is_alive: IsAlive) -> None:
    """Raise InUse or UsageError if a checkpoint must not be altered itself. OSError."""
    for file in (path, *(path.rglob("*") if path.is_dir() else ())):
        if not file.stat().st_mode & 0o222:
            raise UsageError(f"{file} is read-only", hint="alter a copy: without --in-place")
    found = store_around(path)
    if found is not None and is_pinned(*found):
        hint = f"alter a copy; or: resil ckpt unpin {quoted(found[0].path / found[1])}"
        raise InUse(f"{found[1]} is pinned in {found[0].path}", hint=hint)
    hint = "alter a copy: --output FILE, elsewhere, without --in-place"
    if why := is_alive(found[0].run() if found is not None else ""):
        raise InUse(f"{path} is in use: {why}", hint=hint)
    if found is not None and found[0].parts():
        raise InUse(f"a save is in flight in {found[0].path}", hint=hint)


def _owner(store: StoreDirectory) -> str:
    run = store.run()
    return f"the run {run}" if run else "no run"


def _users(path: Path) -> Iterator[_User]:
    """Yield the other processes of this host that have a file open or mapped, or one in a directory. Compares names: a
    file of another process may be on a disk that hangs."""
    wanted = os.path.realpath(path)
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):  # noqa: PTH208
        if pid == os.getpid():
            continue
        with suppress(OSError, ValueError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
                with suppress(OSError, ValueError, StopIteration):
                    target = os.readlink(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH115
                    if _is_in(target, wanted):
                        yield _User(pid, _name(pid), target, _writes(pid, descriptor))
            mapped = Path(f"/proc/{pid}/maps").read_bytes()
            if os.fsencode(wanted) in mapped:
                for line in os.fsdecode(mapped).splitlines():
                    fields = line.split(None, 5)
                    if len(fields) == 6 and _is_in(fields[5], wanted):
                        yield _User(pid, _name(pid), fields[5], "w" in fields[1] and "s" in fields[1])


def _is_in(target: str, wanted: str) -> bool:
    return target == wanted or target.startswith(f"{wanted}/")


def _writes(pid: int, descriptor: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{descriptor}", encoding="ascii") as file:
        flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
    return flags & os.O_ACCMODE != os.O_RDONLY


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "?"
