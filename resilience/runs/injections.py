"""The faults that were injected into a run on purpose: their records, and the events of them in the journal.

A record is written before its fault starts, and is enough to undo the fault from another process. Format:
docs/reference/run-directory.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from resilience import layout
from resilience.errors import StateDirectoryError
from resilience.runs.run_directory import RunDirectory
from resilience.switch import printable
from resilience.system.files import (
    append_line,
    explain_os_error,
    make_directory,
    read_lines,
    read_regular,
    write_atomic,
)

LARGEST_BYTES = 4 * 2**20
JOURNAL = f"{layout.JOURNAL}/inject.jsonl"
BEGIN, END = "inject_begin", "inject_end"
NOT_STARTED = "it did not start"
"""How a fault ended that could not be started: `how` begins with it."""


@dataclass(frozen=True, slots=True)
class Injection:
    """One injected fault.

    Attributes:
        id: `kill-3fa2`, unique in its run.
        fault: the name of the fault: `kill`.
        target: what it hits: `rank 3 of job 12 (process 4242 on node7)`.
        does, undoes: what it does, and how that is undone, as sentences; `undoes` is empty if there is nothing to undo.
        begun: when, in seconds since the epoch, as all times here.
        until: when it is undone; None for a fault of a moment.
        by: login name of who injected it, and `host` and `pid` of the injector.
        attempt: number of the attempt that runs, 0 for none, and `job` its id.
        settings: the options of the fault.
        state: what undoing it needs.
        ended: when it was undone, or was over; None while it is on.
        how: why it ended then.
        error: why it could not be started or undone; empty if it could.
    """

    id: str
    fault: str
    target: str = ""
    does: str = ""
    undoes: str = ""
    begun: float = 0.0
    until: float | None = None
    by: str = ""
    host: str = ""
    pid: int = 0
    attempt: int = 0
    job: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    ended: float | None = None
    how: str = ""
    error: str = ""

    @property
    def is_on(self) -> bool:
        """Return whether the fault may still be there."""
        return self.ended is None

    def is_overdue(self, now: float) -> bool:
        """Return whether nobody has undone it in time: its injector and its keeper were killed."""
        return self.ended is None and now > (self.until or self.begun)


def allows_injection(directory: RunDirectory) -> bool:
    """Return whether the run said `allow_inject = true` at its last submit. Raise StateDirectoryError if unreadable."""
    run = directory.settings().get("run")
    return isinstance(run, dict) and run.get("allow_inject") is True


def create_injection(directory: RunDirectory, injection: Injection) -> Injection:
    """Write the record of a fault that is about to start, with an id of its own, and return it.

    Raise StateDirectoryError if it cannot be written: then no fault may start.
    """
    folder = directory.path / layout.INJECTIONS
    make_directory(folder, mode=directory.directory_mode)
    while True:
        made = replace(injection, id=f"{injection.fault}-{os.urandom(2).hex()}")
        if not (folder / f"{made.id}.json").exists():
            break
    keep_injection(directory, made)
    return made


def keep_injection(directory: RunDirectory, injection: Injection) -> None:
    """Write the record of an injection. Raise StateDirectoryError if that fails."""
    path = directory.path / layout.INJECTIONS / f"{injection.id}.json"
    write_atomic(path, json.dumps(asdict(injection), indent=1) + "\n", mode=directory.file_mode)


def read_injection(directory: RunDirectory, name: str) -> Injection | None:
    """Return the record of an injection; None if there is none, or if it is damaged."""
    found = read_regular(directory.path / layout.INJECTIONS / f"{name}.json", limit_bytes=LARGEST_BYTES)
    with suppress(ValueError, TypeError, RecursionError):
        return None if found is None else parse_injection(json.loads(found[0]))
    return None


def read_injections(directory: RunDirectory) -> tuple[Injection, ...]:
    """Return the injections of a run, oldest first. Raise StateDirectoryError if they cannot be listed."""
    folder = directory.path / layout.INJECTIONS
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".json") and name[0] != "."]  # noqa: PTH208
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise explain_os_error(error, "read", folder) from error
    found = [read_injection(directory, name.removesuffix(".json")) for name in names]
    return tuple(sorted((one for one in found if one is not None), key=lambda one: (one.begun, one.id)))


def parse_injection(record: Mapping[str, Any]) -> Injection:
    """Given a record, return the injection. Raise ValueError or TypeError if it is damaged. Pure."""
    known = {one.name: record[one.name] for one in fields(Injection) if one.name in record}
    texts = ("id", "fault", "target", "does", "undoes", "by", "host", "job", "how", "error")
    known |= {name: printable(str(known[name])) for name in texts if name in known}
    for name in ("begun", "until", "ended"):
        if known.get(name) is not None:
            known[name] = float(known[name])
    for name in ("settings", "state"):
        if not isinstance(known.get(name, {}), dict):
            raise TypeError(name)
    return Injection(**known)


# ---- the journal: what reports show ---------------------------------------------------------------------------------


def journal_begin(directory: RunDirectory, injection: Injection) -> None:
    """Append that a fault starts. Raise StateDirectoryError if that fails."""
    _append(directory, BEGIN, injection.begun, injection, target=injection.target, does=injection.does,
            until=injection.until)  # fmt: skip


def journal_end(directory: RunDirectory, injection: Injection) -> None:
    """Append that a fault is over. Raise StateDirectoryError if that fails."""
    error = {"error": injection.error} if injection.error else {}
    _append(directory, END, injection.ended or injection.begun, injection, how=injection.how, **error)


def _append(directory: RunDirectory, name: str, time: float, injection: Injection, **more: Any) -> None:
    event = {"time": round(time, 3), "event": name, "id": injection.id, "fault": injection.fault}
    place = {"attempt": injection.attempt, "job": injection.job}
    append_line(directory.path / JOURNAL, event | place | more, mode=directory.file_mode)


def journalled(directory: RunDirectory) -> tuple[Injection, ...]:
    """Return the injections that the run's journal tells, oldest first; none if it cannot be read."""
    path: Path = directory.path / JOURNAL
    with suppress(StateDirectoryError):
        return fold_injections(read_lines(path))
    return ()


def fold_injections(events: Iterable[Mapping[str, Any]]) -> tuple[Injection, ...]:
    """Return the injections that events tell, oldest first; damaged events are skipped. Pure."""
    found: dict[str, Injection] = {}
    for event in events:
        with suppress(ValueError, TypeError):
            name = str(event.get("id", ""))
            if event.get("event") == BEGIN:
                found[name] = parse_injection({**event, "begun": event.get("time")})
            elif event.get("event") == END and name in found and found[name].is_on:
                ended, how = float(event.get("time") or 0.0), printable(str(event.get("how", "")))
                found[name] = replace(found[name], ended=ended, how=how, error=printable(str(event.get("error", ""))))
    return tuple(sorted(found.values(), key=lambda one: (one.begun, one.id)))


def describe_injection(injection: Injection) -> str:
    """Return one sentence for reports: `kill: rank 3 of job 12 (process 4242 on node7)`. Pure."""
    if injection.is_on or injection.how.startswith(NOT_STARTED):
        return f"{injection.fault}: {injection.target} ({'still on' if injection.is_on else NOT_STARTED})"
    length = (injection.ended or injection.begun) - injection.begun
    return f"{injection.fault}: {injection.target}" + (f" for {length:.0f} s" if injection.until is not None else "")
