"""The marks of what runs now: `<state_dir>/.cron/running/<key>@<slot>`.

A mark says which process watches over a run, so that the overlap policy, and whoever comes after a crash, can see
whether it is under way. On its own host that can be looked at: process number, begin and boot are one process and no
other. On another host it cannot: there the mark is believed until the run's time is over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from resilience.base.processes import is_alive, is_there, pid_space, start_ticks
from resilience.cron.records import RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.errors import StateDirectoryError
from resilience.job import Liveness
from resilience.quantities import format_duration
from resilience.system.files import explain_os_error, make_directory, read_regular, write_atomic

REFRESH_S = 300.0
"""A supervisor touches its mark so often."""

LAPSE_S = 3600.0
"""A mark of another host that names no end is believed for so long after it was last touched."""

SKEW_S = 120.0
"""Clocks of two hosts may differ by so much, and a file server may be so late."""

_SIZE_BYTES = 4096
"""A mark takes a whole block from the begin: the end of the run fits into it when the disk is full."""


class Here(NamedTuple):
    """What process numbers of this machine mean something in.

    Attributes:
        host: its name.
        boot: of this start of the machine; empty: not told.
        namespace: of process numbers (pid_namespaces(7)); empty: not told.
    """

    host: str
    boot: str
    namespace: str


class Mark(NamedTuple):
    """One run under way, as its supervisor said.

    Attributes:
        name, key, slot: of the entry.
        host, boot, namespace: as of Here; empty where the mark is damaged.
        pid, ticks: the supervisor: its number, and when it began, in clock ticks since the start of the machine.
        started: seconds since the epoch.
        until: by when it has ended, whatever happens; None: it may take for ever.
        end: what became of it, where that could not be written into the history: the disk was full.
    """

    name: str
    key: str
    slot: int
    host: str
    boot: str
    namespace: str
    pid: int
    ticks: int
    started: float
    until: float | None
    end: RunRecord | None = None

    @property
    def file_name(self) -> str:
        """Its name in `running/`."""
        return f"{self.key}@{self.slot}"


def here() -> Here:
    """This machine, as it is now."""
    return Here(os.uname().nodename, *pid_space())


def marks(directory: CronDirectory) -> tuple[Mark, ...]:
    """All marks, oldest slot first. Raise StateDirectoryError if they cannot be read."""
    place = directory.path / "running"
    try:
        names = os.listdir(place)  # noqa: PTH208 - names only
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise explain_os_error(error, "read", place) from error
    found = [mark for name in names if not name.startswith(".") and (mark := _read(place / name)) is not None]
    return tuple(sorted(found, key=lambda mark: (mark.slot, mark.key)))


def write_mark(directory: CronDirectory, mark: Mark) -> None:
    """Say that a run is under way. Raise StateDirectoryError if it cannot be written."""
    place = directory.path / "running"
    make_directory(place, mode=directory.directory_mode)
    write_atomic(place / mark.file_name, _line(mark), mode=directory.file_mode)


def write_end(directory: CronDirectory, mark: Mark, end: RunRecord) -> None:
    """Write into the mark's own block what became of the run: where there is no room for a line of the history.

    Raise StateDirectoryError if it cannot be written.
    """
    path = directory.path / "running" / mark.file_name
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, _line(mark._replace(end=end)), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise explain_os_error(error, "write", path) from error


def touch_mark(directory: CronDirectory, mark: Mark) -> None:
    """Show other hosts that the run is still watched over."""
    with suppress(OSError):
        os.utime(directory.path / "running" / mark.file_name)


def remove_mark(directory: CronDirectory, mark: Mark) -> bool:
    """The run is over; return whether the mark was there."""
    try:
        (directory.path / "running" / mark.file_name).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise explain_os_error(error, "remove", directory.path / "running" / mark.file_name) from error
    return True


def liveness(mark: Mark, *, now: float, at: Here, touched: float | None = None) -> tuple[Liveness, str]:
    """Whether that run is under way, and how we know.

    UNKNOWN counts as running: it is on another host, and its time is not over. `touched`: when the mark was last
    touched, seconds since the epoch, where that is known.
    """
    who = f"process {mark.pid} on {mark.host or 'a host that the damaged mark does not name'}"
    if mark.host == at.host and mark.boot and mark.boot != at.boot and at.boot:
        return Liveness.GONE, f"{mark.host} was started anew since"
    if (mark.host, mark.boot, mark.namespace) == at and at.boot:
        ticks = start_ticks(mark.pid)
        if ticks == mark.ticks and is_alive(mark.pid):
            return Liveness.ALIVE, f"{who} watches over it"
        if ticks is not None or not is_there(mark.pid):
            return Liveness.GONE, f"{who} has ended"
    last = (touched if touched is not None else mark.started) + LAPSE_S if mark.until is None else mark.until + SKEW_S
    if now <= last:
        return Liveness.UNKNOWN, f"{who}: it cannot be seen from here, and may take {format_duration(last - now)} more"
    return Liveness.GONE, f"{who}: its time was over {format_duration(now - last)} ago"


def is_running(directory: CronDirectory, key: str, *, now: float, at: Here | None = None) -> tuple[Liveness, str]:
    """Whether any run of an entry is under way: the most alive of its marks, with one sentence.

    Raise StateDirectoryError if the marks cannot be read.
    """
    found = Liveness.GONE, "nothing of it runs"
    for mark in marks(directory):
        if mark.key == key and mark.end is None:
            state, reason = look(directory, mark, now=now, at=at)
            if state is Liveness.ALIVE:
                return state, reason
            if state is Liveness.UNKNOWN:
                found = state, reason
    return found


def look(directory: CronDirectory, mark: Mark, *, now: float, at: Here | None = None) -> tuple[Liveness, str]:
    """As `liveness`, with a look at when the mark was touched."""
    touched = None
    if mark.until is None:
        with suppress(OSError):
            touched = (directory.path / "running" / mark.file_name).stat().st_mtime
    return liveness(mark, now=now, at=at or here(), touched=touched)


def _line(mark: Mark) -> bytes:
    record: dict[str, Any] = {**mark._asdict(), "end": mark.end.to_json() if mark.end is not None else None}
    return json.dumps(record).encode().ljust(_SIZE_BYTES - 1) + b"\n"


def _read(path: Path) -> Mark | None:
    try:
        found = read_regular(path)
    except StateDirectoryError:
        found = b"", None  # type: ignore[assignment]
    if found is None:  # it has just ended
        return None
    key, _, slot = path.name.rpartition("@")
    if not key or not slot.isdigit():
        return None
    try:
        return _mark(json.loads(found[0]))
    except (ValueError, KeyError, TypeError):  # a power cut
        began = found[1].st_mtime if found[1] is not None else 0.0
        return Mark(key.replace("+", "/"), key, int(slot), "", "", "", 0, 0, began, None)


def _mark(record: Mapping[str, Any]) -> Mark:
    until = record["until"]
    return Mark(
        str(record["name"]),
        str(record["key"]),
        int(record["slot"]),
        str(record["host"]),
        str(record["boot"]),
        str(record["namespace"]),
        int(record["pid"]),
        int(record["ticks"]),
        float(record["started"]),
        None if until is None else float(until),
        RunRecord.from_json(record["end"]) if record.get("end") else None,
    )
