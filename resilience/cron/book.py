"""The book of runs: one record per run, a file that moves through its states by rename(2).

    runs/KEY@SLOT@ID@claimed@PROCESS     a scheduler has the slot, and starts the run or submits its job
    runs/KEY@SLOT@ID@running@PROCESS     a supervisor runs the program
    runs/KEY@SLOT@ID@queued@JOB          the job is queued
    history/KEY/SLOT@ID@OUTCOME          the run has ended; MISSED+3: it stands for three slots

rename(2) succeeds for one caller: the process that a record names writes it, and a process that finds the other one
dead takes the record over under its own name. The slot is a second name of the same file (slots.py), and the file has a
whole block from the beginning, so that the end of the run fits even on a full disk. Where not even that block was free,
the file stays empty, and its name says what happened.
"""

from __future__ import annotations

import json
import os
import time
from binascii import crc32
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience.base.processes import is_alive, is_there, pid_space, start_ticks
from resilience.cron.records import Outcome, RunRecord
from resilience.cron.slots import Slots, create_once, names
from resilience.errors import StateDirectoryError
from resilience.quantities import format_duration
from resilience.system.files import (
    FULL,
    NotRegularFile,
    explain_os_error,
    make_directory,
    parse_lines,
    read_regular,
    write_atomic,
)

if TYPE_CHECKING:
    from resilience.job import Liveness  # an idle tick does not need it

CLAIM_S = 600.0
"""A claim of another host, or of another boot of this one, is abandoned after this time: submitting takes at most 90 s
per job, and stops after the first job that hangs."""

LAPSE_S = 3600.0
"""A run on another host without a time limit is trusted for this long after its record was last touched."""

SKEW_S = 120.0
"""Tolerance for clocks of two hosts, and for a slow file server."""

DOUBT_S = 60.0
"""After this time on another host, the scheduler's job of a run is looked up: it may have ended with its node."""

AGAIN = "#"
"""Separates an entry's key from the attempt number in the claim for a rerun."""

LOOSE, KEPT = 64, 512
"""An entry has at most so many records that are files of their own; half as many older ones are one file. Such a file
is deleted when newer ones have so many slots: two processes that fold at once write some records into two files."""

_BLOCK = 4096
_SUMMARY = 1000


class State(StrEnum):
    """The state of a record in `runs/`."""

    CLAIMED = "claimed"
    RUNNING = "running"
    QUEUED = "queued"


class Run(NamedTuple):
    """A run that has not ended: the name of its record.

    Attributes:
        key: of the entry; with `#2` for the second attempt at its slot.
        id: random id of the claim, ascending with time.
        holder: the process that holds the record, as `_holder` formats it; for a queued job `scheduler-job`.
    """

    key: str
    slot: int
    id: str
    state: State
    holder: str

    @property
    def name(self) -> str:
        """File name in `runs/`."""
        return "@".join((self.key, str(self.slot), self.id, self.state, self.holder))

    @property
    def entry_key(self) -> str:
        """Key of the entry."""
        return self.key.partition(AGAIN)[0]

    @property
    def pid(self) -> int:
        """Process id of the holder."""
        return int(self.holder.split("-")[1])

    @property
    def time(self) -> float:
        """When the holder took it, seconds since the epoch, by the clock of its host."""
        return float(self.holder.split("-")[3])

    @property
    def is_here(self) -> bool:
        """Return whether the holder is a process of this boot of this machine."""
        return self.holder.partition("-")[0] == machine()

    @property
    def is_mine(self) -> bool:
        """Return whether this process is the holder."""
        return self.holder.rpartition("-")[0] == _holder(0).rpartition("-")[0]

    def is_doubtful(self, now: float) -> bool:
        """Return whether it runs on another host, and for so long that its scheduler's job should be looked up."""
        return self.state is State.RUNNING and not self.is_here and now - self.time > DOUBT_S

    @property
    def job(self) -> tuple[str, str]:
        """Scheduler and id of a queued job."""
        scheduler, _, job_id = self.holder.rpartition("-")
        return scheduler, job_id


class Book:
    """The records of one project.

    Args:
        path: `<state_dir>/.cron`.
        directory_mode, file_mode: modes of new directories and files.
    """

    def __init__(self, path: Path, *, directory_mode: int, file_mode: int) -> None:
        self._path, self._runs, self._history = path, path / "runs", path / "history"
        self._directory_mode, self._file_mode = directory_mode, file_mode
        self.slots = Slots(path / "slots", file_mode=file_mode)

    # ---- active runs ------------------------------------------------------------------------------------------

    def active(self) -> list[Run]:
        """Return the runs that have not ended, oldest slot first. Raise StateDirectoryError if they are unreadable."""
        found = []
        for name in names(self._runs):
            with suppress(ValueError, IndexError):
                key, slot, id, state, holder = name.rsplit("@", 4)
                run = Run(key, int(slot), id, State(state), holder)
                if run.state is State.QUEUED or (run.pid > 0 and run.time >= 0 and int(holder.split("-")[2]) >= 0):
                    found.append(run)
        return sorted(found, key=lambda run: (run.slot, run.key, run.id))

    def adopt(self) -> None:
        """Adopt claims and queued jobs of earlier releases, whose names were `open/KEY@SLOT@ID@PROCESS` and
        `jobs/KEY@SLOT@JOB@SCHEDULER`. The supervisors of earlier releases end their runs in the old history."""
        for old, state in (("open", State.CLAIMED), ("jobs", State.QUEUED)):
            for name in names(self._path / old):
                key_and_slot, id, holder = [*name.rsplit("@", 2), "", ""][:3]
                if state is State.QUEUED:
                    id, holder = f"{0:020x}", f"{holder}-{id}"
                with suppress(OSError, StateDirectoryError):
                    make_directory(self._runs, mode=self._directory_mode)
                    (self._path / old / name).rename(self._runs / f"{key_and_slot}@{id}@{state}@{holder}")
            with suppress(OSError):
                (self._path / old).rmdir()

    def claim(
        self, key: str, slot: int, about: Mapping[str, Any], clock: Callable[[], float], *, limit_s: float = 0.0
    ) -> Run | None:
        """Claim a slot: return its run to exactly one caller on any host, None to all others.

        `about`: facts for the user; `name` is the entry's name. `clock` returns the time whenever needed, because the
        process may be suspended for a day anywhere in here. `limit_s`: how long the run can last; 0: unknown. Raise
        StateDirectoryError if the directory cannot be written: then no process has the slot.
        """
        for directory in (self.slots.path, self._runs):
            make_directory(directory, mode=self._directory_mode)
        run = Run(key, slot, _new_id(), State.CLAIMED, _holder(clock()))
        boot, namespace = pid_space()
        facts = {"id": run.id, "host": os.uname().nodename, "boot": boot, "namespace": namespace, "limit_s": limit_s}
        content, place = _block({**facts, **about}), self._runs / run.name

        def held() -> set[int]:
            return {run.slot for run in self.active() if run.key == key and run.state is State.CLAIMED}

        try:
            create_once(place, content, mode=self._file_mode, or_empty=True)
            if self.slots.claim(place, content, key, slot, held, clock):
                return run
        except OSError as error:
            self.drop(run)
            raise explain_os_error(error, "take a slot in", self.slots.path) from error
        self.drop(run)
        return None

    def take(self, run: Run, state: State, now: float) -> Run | None:
        """Make this process the holder of a record: return it to exactly one caller, None to all others.

        Raise StateDirectoryError if that fails.
        """
        return self._rename(run, run._replace(state=state, holder=_holder(now)))

    def queue(self, run: Run, record: RunRecord, scheduler: str) -> Run:
        """Record that the job of a run is queued. Raise StateDirectoryError if that fails."""
        with suppress(FileNotFoundError):
            self._write(run, record)
        queued = run._replace(state=State.QUEUED, holder=f"{scheduler}-{record.job_id}")
        return self._rename(run, queued) or queued

    def _rename(self, run: Run, new: Run) -> Run | None:
        try:
            os.rename(self._runs / run.name, self._runs / new.name)  # noqa: PTH104 - the manual's name
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain_os_error(error, "take over", self._runs / run.name) from error
        return new

    def has_slot(self, run: Run) -> bool | None:
        """Return whether a claim won its slot; None: unknown, because of a power cut."""
        return self.slots.has(self._runs / run.name, run.id, run.key, run.slot, run.time)

    def touch(self, run: Run) -> None:
        """Show other hosts that the run is still supervised."""
        with suppress(OSError):
            os.utime(self._runs / run.name)

    def drop(self, run: Run) -> None:
        """Delete the record of a run that never got its slot."""
        with suppress(OSError):
            os.unlink(self._runs / run.name)  # noqa: PTH108

    def about(self, run: Run) -> Mapping[str, Any]:
        """Return the content of a record; empty if it is gone or damaged."""
        return _read(self._runs / run.name) or {}

    def name_of(self, run: Run) -> str:
        """Return the name of the entry."""
        return str(self.about(run).get("name") or run.entry_key.replace("+", "/", 1))

    def liveness(self, run: Run, now: float) -> tuple[Liveness, str]:
        """Return whether the holder of a record is alive, with an explanation.

        On the same host this is certain: process id, start time and boot identify one process. UNKNOWN counts as alive:
        a run on another host, within its time limit.
        """
        from resilience.job import Liveness

        if run.is_here:
            who, ticks = f"process {run.pid} on {os.uname().nodename}", start_ticks(run.pid)
            if ticks == int(run.holder.split("-")[2]) and is_alive(run.pid):
                return Liveness.ALIVE, f"{who} supervises it"
            if ticks is not None or not is_there(run.pid):
                return Liveness.GONE, f"{who} has ended"
        about = self.about(run)
        host, boot = str(about.get("host") or "another host"), about.get("boot")
        if host == os.uname().nodename and boot and pid_space()[0] not in ("", boot):
            return Liveness.GONE, f"{host} was rebooted since"
        limit_s = limit if isinstance(limit := about.get("limit_s"), int | float) else 0.0
        if run.state is State.CLAIMED:
            last = run.time + CLAIM_S if run.time <= now + CLAIM_S else 0.0
        elif limit_s:
            last = run.time + limit_s + SKEW_S
        else:
            last = run.time + LAPSE_S
            with suppress(OSError):
                last = os.stat(self._runs / run.name).st_mtime + LAPSE_S  # noqa: PTH116
        who = f"process {run.pid} on {host}"
        if now <= last:
            left = format_duration(last - now)
            return Liveness.UNKNOWN, f"{who} cannot be checked from this host; its time limit is in {left}"
        return Liveness.GONE, f"{who} exceeded its time limit {format_duration(now - last)} ago"

    # ---- ended runs -------------------------------------------------------------------------------------------

    def end(self, run: Run, record: RunRecord) -> bool:
        """Write the end of a run, and file its record in the history; return whether this process held the record.

        Raise StateDirectoryError if that fails; the next tick files a record that has its end.
        """
        record = replace(record, summary=record.summary[:_SUMMARY])
        try:
            self._write(run, record)
            os.rename(self._runs / run.name, self._place(run.entry_key, run.slot, run.id, record))  # noqa: PTH104
        except FileNotFoundError:
            return False
        except OSError as error:
            raise explain_os_error(error, "write", self._runs / run.name) from error
        self._fold(run.entry_key)
        return True

    def settle(self, run: Run, now: float, why: str, host: str) -> RunRecord | None:
        """End a run whose holder is gone: with the end that it has, or as CUT_SHORT because of `why`.

        Return the record to one of several callers, None to the others and if the run never got its slot. Raise
        StateDirectoryError if that fails.
        """
        mine = self.take(run, run.state, now)
        if mine is None:
            return None
        if run.state is State.CLAIMED and self.has_slot(mine) is False:
            self.drop(mine)
            return None
        about = self.about(mine)
        record = record_from(about.get("end"))
        if record is None:
            started = run.time if run.state is State.RUNNING else None
            record = RunRecord(
                name=self.name_of(mine), slot=run.slot, outcome=Outcome.CUT_SHORT, time=now, started=started,
                host=str(about.get("host") or host), pid=run.pid if started else 0, summary=why,
            )  # fmt: skip
        return record if self.end(mine, record) else None

    def settle_dead(self, now: float, host: str) -> Iterator[RunRecord]:
        """Settle the runs whose supervisor is gone, and kill what is left of them on this host.

        Raise StateDirectoryError if the records cannot be read or written.
        """
        for run in self.active():
            if run.state is not State.RUNNING:
                continue
            state, reason = self.liveness(run, now)
            if state.name == "GONE" or run.is_mine:  # this process is no supervisor: it settled, and could not write
                if run.is_here:
                    kill_session(run.pid)
                record = self.settle(run, now, f"its supervisor died: {reason}", host)
                if record is not None:
                    yield record

    def add(self, key: str, record: RunRecord) -> None:
        """Record an end that has no run: missed slots, for instance. Raise StateDirectoryError if that fails."""
        try:
            content = (json.dumps({"end": record.to_json()}) + "\n").encode()
            place = self._place(key, record.slot, _new_id(), record)
            create_once(place, content, mode=self._file_mode, or_empty=True)
        except OSError as error:
            raise explain_os_error(error, "write", self._history / key) from error
        self._fold(key)

    def history(self, key: str) -> tuple[RunRecord, ...]:
        """Return the slots of an entry that ended or were submitted, oldest first, each with its last record.

        A record moves from the queued ones to the files of one record, and then into a file of several: looked for in
        that order, it is found.
        """
        queued = [run for run in self.active() if run.entry_key == key and run.state is State.QUEUED]
        records = [record_from(self.about(run).get("end")) or _by_name(run, Outcome.SUBMITTED) for run in queued]
        filed = [self._filed(key, *names) for names in self._listed(key)[1]]
        found: dict[int, RunRecord] = {}
        for path in self._listed(key)[0]:
            found |= _segment(path)
        found |= {record.slot: record for record in (*records, *filed) if record is not None}
        return tuple(found[slot] for slot in sorted(found))

    def newest(self, key: str) -> tuple[int, str]:
        """Return slot and outcome of the newest ended run of an entry, by names only; (0, "") if there is none."""
        loose = self._listed(key)[1]
        return (loose[-1][0], loose[-1][2]) if loose else (0, "")

    def keys(self) -> tuple[str, ...]:
        """Return the keys of all entries with slots or a history."""
        found = [key for key in self.slots.taken() if AGAIN not in key]
        found += [name.removesuffix(".jsonl") for name in names(self._history) if not name.endswith(".damaged")]
        return tuple(sorted({key for key in found if key[:1] != "."}))

    def _listed(self, key: str) -> tuple[list[Path], list[tuple[int, str, str]]]:
        """Return the files of several records, oldest first, and slot, id and outcome of the others."""
        segments, loose = [], []
        directory = self._history / key
        try:
            listed = os.listdir(directory)  # noqa: PTH208 - names only
        except (FileNotFoundError, NotADirectoryError):
            listed = []
        except OSError as error:
            raise explain_os_error(error, "read", directory) from error
        for name in listed:
            with suppress(ValueError, KeyError):
                if name.endswith(".jsonl"):
                    segments.append((int(name.partition("@")[0]), directory / name))
                else:
                    slot, id, outcome = name.split("@")
                    _outcome(outcome)
                    loose.append((int(slot), f"{int(id, 16):020x}", outcome))
        return [self._history / f"{key}.jsonl", *(path for _, path in sorted(segments))], sorted(loose)

    def _fold(self, key: str) -> None:
        """Write the older half of many records into one file. The files are deleted after that: a record is twice there
        for a moment, or after a crash, but never missing; and of each slot one counts."""
        segments, loose = self._listed(key)
        if len(loose) <= LOOSE:
            return
        old, directory = loose[: LOOSE // 2], self._history / key
        with suppress(OSError, StateDirectoryError):
            paths = [directory / "@".join((str(slot), id, outcome)) for slot, id, outcome in old]
            records = [self._filed(key, *names) for names in old]
            text = "".join(json.dumps(record.to_json()) + "\n" for record in records if record is not None)
            if None in records:  # another process is writing them into a file
                return
            digest = crc32(" ".join(path.name for path in paths).encode())  # two processes may list different records
            write_atomic(directory / f"{old[-1][0]}@{digest:08x}.jsonl", text, mode=self._file_mode)
            for path in paths:
                path.unlink(missing_ok=True)
            newer: set[int] = set()
            for path in reversed(segments):
                if len(newer) >= KEPT:
                    path.unlink(missing_ok=True)
                newer |= _segment(path).keys()

    def _filed(self, key: str, slot: int, id: str, outcome: str) -> RunRecord | None:
        """Return a record that is a file of its own; None: it moved meanwhile.

        Without content there was no room for more than its name, or a power cut took it.
        """
        about = _read(self._history / key / f"{slot}@{id}@{outcome}")
        if about is None:
            return None
        return record_from(about.get("end")) or _by_name(Run(key, slot, id, State.RUNNING, ""), *_outcome(outcome))

    def _place(self, key: str, slot: int, id: str, record: RunRecord) -> Path:
        directory = self._history / key
        if not directory.is_dir() or directory.is_symlink():
            with suppress(FileNotFoundError):
                directory.rename(directory.with_name(f"{key}.{os.urandom(3).hex()}.damaged"))
            make_directory(directory, mode=self._directory_mode)
        several = f"+{record.count}" if record.count > 1 else ""
        return directory / f"{slot}@{id}@{record.outcome.name}{several}"

    def _write(self, run: Run, record: RunRecord) -> None:
        """Write an end into the file of a record. Raise OSError."""
        path = self._runs / run.name
        content = {**(_read(path) or {"id": run.id}), "end": record.to_json()}
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, _block(content), 0)
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in FULL or os.fstat(descriptor).st_size >= _BLOCK:
                raise
            os.ftruncate(descriptor, 0)  # there was no room from the beginning: the name says what happened
        finally:
            os.close(descriptor)


def kill_session(leader: int) -> int:
    """Kill the processes of a session whose leader has died; return how many.

    The kernel does not reuse the number of a session while a process of it exists (setsid(2), alloc_pid): its processes
    belong to that session, unless the number is that of a live process.
    """
    if leader <= 1 or is_alive(leader):
        return 0
    ended = 0
    for pid in session_members(leader):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, 9)
            ended += 1
    return ended


def session_members(leader: int) -> tuple[int, ...]:
    """Return the live processes of a session (proc_pid_stat(5), field 6)."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - names only
        with suppress(OSError, ValueError):
            pid, fields = int(name), Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
            if len(fields) > 3 and int(fields[3]) == leader and fields[0] not in (b"Z", b"X") and pid != leader:
                found.append(pid)
    return tuple(found)


def _read(path: Path) -> dict[str, Any] | None:
    """Return the content of a record; None: it is not there; empty: it is damaged."""
    try:
        found = read_regular(path)
        if found is None:
            return None
        content = json.loads(found[0])
        return content if isinstance(content, dict) else {}
    except (StateDirectoryError, ValueError, RecursionError):
        return {}


def record_from(content: object) -> RunRecord | None:
    """Return a record from its JSON; None if there is none, or it is invalid."""
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        return RunRecord.from_json(content)  # type: ignore[arg-type]
    return None


def _segment(path: Path) -> dict[int, RunRecord]:
    """Return the records of a file of several by slot; empty if it is gone. Raise StateDirectoryError."""
    with suppress(NotRegularFile):
        content = read_regular(path, 2**22)
        lines = map(record_from, parse_lines(content[0].splitlines() if content is not None else ()))
        return {line.slot: line for line in lines if line is not None and line.outcome is not Outcome.RUNNING}
    return {}


def _outcome(text: str) -> tuple[Outcome, int]:
    """Return outcome and count as the name of a record has them. Raise KeyError or ValueError."""
    name, _, count = text.partition("+")
    return Outcome[name], int(count or 1)


def _by_name(run: Run, outcome: Outcome, count: int = 1) -> RunRecord:
    name, moment = run.entry_key.replace("+", "/", 1), int(run.id[:16], 16) / 1e9
    return RunRecord(name=name, slot=run.slot, outcome=outcome, time=moment, job_id=run.job[1], count=count)


def _block(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode().ljust(_BLOCK - 1) + b"\n"


def _new_id() -> str:
    return f"{time.time_ns():016x}{os.urandom(2).hex()}"


def _holder(now: float) -> str:
    """Return this process as part of a file name: machine, process id, start time, and now."""
    pid = os.getpid()
    return f"{machine()}-{pid}-{start_ticks(pid) or 0}-{now:.3f}"


@cache
def machine() -> str:
    """Return an id of this boot of this machine and its pid namespace (pid_namespaces(7))."""
    facts = " ".join((os.uname().nodename, *pid_space()))
    return f"{crc32(facts.encode('utf-8', 'surrogateescape')):08x}"
