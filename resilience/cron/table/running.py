"""Marks of active runs: `<state_dir>/.cron/running/<key>@<slot>`.

A mark names the process that supervises a run, so that the overlap policy, and a tick after a crash, can check whether
the run is active. On the same host this is certain: process id, start time and boot identify one process. A mark of
another host is trusted until the run's time limit.
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
"""Interval at which a supervisor touches its mark."""

LAPSE_S = 3600.0
"""A mark of another host without a time limit is trusted for this long after it was last touched."""

SKEW_S = 120.0
"""Tolerance for clocks of two hosts, and for a slow file server."""

_SIZE_BYTES = 4096
"""A mark occupies a whole block from the beginning, so that the end of the run fits even on a full disk."""


class Here(NamedTuple):
    """Identity of this machine, in which its process ids are valid.

    Attributes:
        host: name.
        boot: boot id; empty: unknown.
        namespace: pid namespace (pid_namespaces(7)); empty: unknown.
    """

    host: str
    boot: str
    namespace: str


class Mark(NamedTuple):
    """An active run, as recorded by its supervisor.

    Attributes:
        name, key, slot: of the entry.
        host, boot, namespace: as in Here; empty if the mark is damaged.
        pid, ticks: process id of the supervisor, and its start in clock ticks since boot.
        started: seconds since the epoch.
        until: when it has ended at the latest; None: no limit.
        end: its result, if that could not be written to the history because the disk was full.
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
        """File name in `running/`."""
        return f"{self.key}@{self.slot}"


def here() -> Here:
    """Return the identity of this machine."""
    return Here(os.uname().nodename, *pid_space())


def marks(directory: CronDirectory) -> tuple[Mark, ...]:
    """Return all marks, oldest slot first. Raise StateDirectoryError if they cannot be read."""
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
    """Write a mark. Raise StateDirectoryError if that fails."""
    place = directory.path / "running"
    make_directory(place, mode=directory.directory_mode)
    write_atomic(place / mark.file_name, _line(mark), mode=directory.file_mode)


def write_end(directory: CronDirectory, mark: Mark, end: RunRecord) -> None:
    """Write the result of the run into the mark's own block, if there is no space for a line in the history.

    Raise StateDirectoryError if that fails.
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
    """Touch a mark, to show other hosts that the run is still supervised."""
    with suppress(OSError):
        os.utime(directory.path / "running" / mark.file_name)


def remove_mark(directory: CronDirectory, mark: Mark) -> bool:
    """Delete a mark; return whether it existed."""
    try:
        (directory.path / "running" / mark.file_name).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise explain_os_error(error, "remove", directory.path / "running" / mark.file_name) from error
    return True


def liveness(mark: Mark, *, now: float, at: Here, touched: float | None = None) -> tuple[Liveness, str]:
    """Return whether a run is active, with an explanation.

    UNKNOWN counts as active: the run is on another host, within its time limit. `touched`: mtime of the mark, if known.
    """
    who = f"process {mark.pid} on {mark.host or 'a host that the damaged mark does not name'}"
    if mark.host == at.host and mark.boot and mark.boot != at.boot and at.boot:
        return Liveness.GONE, f"{mark.host} was rebooted since"
    if (mark.host, mark.boot, mark.namespace) == at and at.boot:
        ticks = start_ticks(mark.pid)
        if ticks == mark.ticks and is_alive(mark.pid):
            return Liveness.ALIVE, f"{who} supervises it"
        if ticks is not None or not is_there(mark.pid):
            return Liveness.GONE, f"{who} has ended"
    last = (touched if touched is not None else mark.started) + LAPSE_S if mark.until is None else mark.until + SKEW_S
    if now <= last:
        return (
            Liveness.UNKNOWN,
            f"{who} cannot be checked from this host; its time limit is in {format_duration(last - now)}",
        )
    return Liveness.GONE, f"{who} exceeded its time limit {format_duration(now - last)} ago"


def is_running(directory: CronDirectory, key: str, *, now: float, at: Here | None = None) -> tuple[Liveness, str]:
    """Return whether any run of an entry is active: the most alive of its marks, with an explanation.

    Raise StateDirectoryError if the marks cannot be read.
    """
    found = Liveness.GONE, "no active run"
    for mark in marks(directory):
        if mark.key == key and mark.end is None:
            state, reason = liveness_of(directory, mark, now=now, at=at)
            if state is Liveness.ALIVE:
                return state, reason
            if state is Liveness.UNKNOWN:
                found = state, reason
    return found


def liveness_of(directory: CronDirectory, mark: Mark, *, now: float, at: Here | None = None) -> tuple[Liveness, str]:
    """Like `liveness`, but reads the mtime of the mark."""
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
    if found is None:  # the run has just ended
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
