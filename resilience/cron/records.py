"""Data model of cron. Pure.

An *entry* is a crontab line or a drop-in; a *slot* is one time at which an entry is due, in seconds since the epoch,
and identifies the run; a *run record* is the result of one slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MINUTE_S = 60

VARIABLE = "$"
"""Prefix of installation facts that are environment variables of the ticks: `$PATH`."""


class Kind(StrEnum):
    """How an entry is started."""

    RUN = "run"
    """By the scheduler of this project itself, as its child."""
    SUBMIT = "submit"
    """Submit the command as a job, with sbatch."""


class Overlap(StrEnum):
    """What to do when a slot is due while an earlier run of the entry is still active."""

    SKIP = "skip"
    """The slot is skipped and counted."""
    ALLOW = "allow"
    """Both run."""
    REPLACE = "replace"
    """The earlier run is ended first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryOptions:
    """Options of a crontab line or a drop-in, given in a comment: `# resil: timeout=10m catch_up=none`.

    Attributes:
        timeout_s: time limit; then SIGTERM to the whole process group, and SIGKILL 10 s later. 0: none.
        catch_up: how many missed slots are run late: 0 (`none`), 1 (`once`, the newest), N (`all<=N`, the newest N,
            oldest first).
        overlap: see Overlap.
        jitter_s: maximum delay after the slot; the delay is constant for each entry and user.
        ok: exit codes that mean success; those of a watchdog are verdicts, for instance.
        rerun: whether a slot that was cut short (power cut, kill -9) may be run again, because repeating is safe.
        takes_cron_sbatch: for a batch script: whether options such as account and partition come from `[cron] sbatch`
            unless the script sets them, so that shipped scripts need no changes.
    """

    timeout_s: float = 3600.0
    catch_up: int = 1
    overlap: Overlap = Overlap.SKIP
    jitter_s: float = 0.0
    ok: tuple[int, ...] = (0,)
    rerun: bool = False
    takes_cron_sbatch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A scheduled command.

    Attributes:
        name: `cron.hourly/backup`, or `crontab/backup` for a crontab line (from its option `name=`, or eight
            hexadecimal digits of schedule and command). Stable as long as the meaning is the same.
        place: its location for display: `cron/cron.hourly/backup`, `cron/crontab:12`.
        schedule: as written: `*/5 * * * *`, `@hourly`, `@every 90s`, `@reboot`; of a drop-in, that of its directory.
        zone: IANA time zone of the schedule (CRON_TZ=); empty: this machine's.
        kind: run or submit.
        argv: the command; for a drop-in, only its absolute path.
        path: absolute path of a drop-in; empty for a crontab line.
        environment: `NAME=value` lines above the crontab line.
        mail_to: MAILTO. None: not set; empty: never mail.
        options: see EntryOptions.
    """

    name: str
    place: str
    schedule: str
    kind: Kind
    argv: tuple[str, ...]
    zone: str = ""
    path: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    mail_to: str | None = None
    options: EntryOptions = EntryOptions()

    @property
    def key(self) -> str:
        """The name in a form usable as a file name."""
        return self.name.replace("/", "+")


@dataclass(frozen=True, slots=True)
class Ignored:
    """Something in the cron directory that does not run.

    Attributes:
        place: as in Entry.
        reason: one sentence for the user.
        hint: what to try; may be empty.
        is_fault: whether it was probably meant to run (a rejected drop-in, an invalid line), unlike a README.
    """

    place: str
    reason: str
    hint: str = ""
    is_fault: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Parsed content of the cron directory.

    Attributes:
        entries: with unique names.
        ignored: everything else.
    """

    entries: tuple[Entry, ...] = ()
    ignored: tuple[Ignored, ...] = ()


@dataclass(frozen=True, slots=True)
class Due:
    """A slot that is due.

    Attributes:
        slot: seconds since the epoch.
        start: when to start: the slot plus the entry's jitter.
        passed_over: number of older slots that were missed and are not run.
        reason: one sentence: on time, or how late.
    """

    entry: Entry
    slot: int
    start: float
    passed_over: int = 0
    reason: str = ""


class Outcome(StrEnum):
    """Result of a slot."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    TIMEOUT = "timeout"
    """It exceeded its time limit and was ended."""
    SUBMITTED = "submitted"
    """Its job is queued."""
    REFUSED = "refused"
    """It could not be started, or sbatch refused it."""
    SKIPPED = "skipped"
    """An earlier run was still active."""
    MISSED = "missed"
    """No scheduler was running, and it is not run late."""
    CUT_SHORT = "cut short"
    """It started, and its scheduler or its next run ended it, or its supervisor died."""

    @property
    def is_failure(self) -> bool:
        """Return whether the result needs attention."""
        return self in {Outcome.FAILED, Outcome.TIMEOUT, Outcome.REFUSED, Outcome.CUT_SHORT}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One line of an entry's history.

    Attributes:
        name: the entry.
        slot: the slot.
        outcome: the result.
        time: when the result was known, seconds since the epoch.
        started: when the run started; None: it did not.
        exit_code: 128 + signal for a run killed by a signal; None: unknown.
        job_id: of a submitted entry.
        host: where it ran.
        pid: process id of its supervisor.
        summary: one line for the user, without secrets.
        output: name of its output file in `output/<key>/`; empty: no output.
        count: for MISSED and SKIPPED: number of slots this line stands for.
    """

    name: str
    slot: int
    outcome: Outcome
    time: float
    started: float | None = None
    exit_code: int | None = None
    job_id: str = ""
    host: str = ""
    pid: int = 0
    summary: str = ""
    output: str = ""
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values, without defaults."""
        found = {key: getattr(self, key) for key in self.__slots__}
        return {key: value for key, value in found.items() if value not in (None, "") and (value or key != "pid")}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RunRecord:
        """Return the record that `to_json` wrote. Raise KeyError, TypeError or ValueError if it is invalid."""
        known = {key: record[key] for key in cls.__slots__ if key in record}
        return cls(**known | {"outcome": Outcome(record["outcome"]), "slot": int(record["slot"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Written by every tick: proves that the project's scheduler is alive.

    Attributes:
        time: start of the tick, seconds since the epoch.
        expected: latest start of the next tick.
        alive_since: since when no gap between ticks exceeded three times the expected interval.
        ticks: number of ticks since then.
        late_s: delay of this tick after its expected time; 0: on time.
        driver: what makes the ticks: `crontab`, `slurm`, `foreground` ...
        host, pid, job_id: of the process that made this tick.
        next_slot: when the next entry is due; None: never.
        entries: number of entries in the table.
        trouble: error in this tick itself, one sentence; empty: none.
        patience_s: [cron] late_s, for readers without the settings; 0: not set.
        is_last: whether the scheduler was ended on purpose (Ctrl-C, `resil cron uninstall`), so no next tick is
            expected.
    """

    time: float
    expected: float
    alive_since: float
    ticks: int = 1
    late_s: float = 0.0
    driver: str = ""
    host: str = ""
    pid: int = 0
    job_id: str = ""
    next_slot: float | None = None
    entries: int = 0
    trouble: str = ""
    patience_s: float = 0.0
    is_last: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the heartbeat as JSON values."""
        return {key: getattr(self, key) for key in self.__slots__}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Heartbeat:
        """Return the heartbeat that `to_json` wrote; unknown keys are ignored. Raise TypeError or ValueError if it is
        invalid."""
        heartbeat = cls(**{key: record[key] for key in cls.__slots__ if key in record})
        if not all(isinstance(value, int | float) for value in (heartbeat.time, heartbeat.expected)):
            raise ValueError("a heartbeat without a time")
        return heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Result of `resil cron install`, stored in `driver.json`.

    Attributes:
        driver: name of the driver: `scrontab`, `crontab`, `systemd`, `slurm`, `foreground`.
        token: random id; lines, units and job comments carry it, which marks them as written by this installation.
        time: when, seconds since the epoch.
        by: login name of the user under whose account everything runs.
        host: host of the installation: crontab and systemd are per machine.
        project: absolute path of the project directory.
        python: absolute path of the interpreter.
        mode: of the drivers slurm and scrontab: `pulse` or `daemon`. Empty for others.
        facts: data of the driver, such as the name of a unit.
    """

    driver: str
    token: str
    time: float
    by: str
    host: str
    project: str
    python: str
    mode: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the ticks."""
        return {name[1:]: value for name, value in sorted(self.facts.items()) if name.startswith(VARIABLE)}

    def to_json(self) -> dict[str, Any]:
        """Return the installation as JSON values."""
        return {key: getattr(self, key) for key in self.__slots__}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Installation:
        """Return the installation that `to_json` wrote; unknown keys are ignored. Raise TypeError if it is invalid."""
        return cls(**{key: record[key] for key in cls.__slots__ if key in record})


RUN_NAME = ".cron"
"""Used instead of a run name in job comments (`resil:<run>:<token>`): no run can have this name."""
