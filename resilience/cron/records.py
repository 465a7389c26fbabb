"""The words of cron: what runs when, and what became of it. Pure.

An *entry* is one line of the crontab or one drop-in; a *slot* is one moment at which an entry is to run, in seconds
since the epoch, and its name for ever; a *run record* is what became of one slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MINUTE_S = 60


class Kind(StrEnum):
    """How an entry is run."""

    RUN = "run"
    """By the scheduler of this project itself, as its child."""
    SUBMIT = "submit"
    """Submit the command as a job, with sbatch."""


class Overlap(StrEnum):
    """What happens when a slot comes while the run of an earlier one is still under way."""

    SKIP = "skip"
    """The slot is passed over and counted."""
    ALLOW = "allow"
    """Both run."""
    REPLACE = "replace"
    """The earlier one is ended first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryOptions:
    """What a line of the crontab, or a line of comment in a drop-in, may ask for: `# resil: timeout=10m catch_up=none`.

    Attributes:
        timeout_s: SIGTERM after so long, SIGKILL 10 s later, to the whole process group. 0: never.
        catch_up: how many missed slots are made up for: 0 (`none`), 1 (`once`, the newest), N (`all<=N`, the newest N,
            oldest first).
        overlap: see Overlap.
        jitter_s: each entry of each user starts up to so much after its slot, always by the same amount.
        ok: exit codes that are no failure; those of a watchdog are verdicts, for instance.
        rerun: whether a slot that was begun and cut short (power cut, kill -9) may be run again: it is safe to repeat.
        takes_cron_sbatch: of a batch script: whether account, partition and their like come from `[cron] sbatch`, where
            the script itself says nothing of them: so that one that is shipped need not be changed.
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
    """One thing that runs at times.

    Attributes:
        name: what people call it: `cron.hourly/backup`, or `crontab/backup` for a line of the crontab (its option
            `name=`, or eight hexadecimal digits made of schedule and command). The same for as long as it means the
            same.
        place: where it stands, for people: `cron/cron.hourly/backup`, `cron/crontab:12`.
        schedule: as written: `*/5 * * * *`, `@hourly`, `@every 90s`, `@reboot`; of a drop-in, its directory's.
        zone: IANA time zone that the schedule is meant in (CRON_TZ=); empty: this machine's.
        kind: run or submit.
        argv: the command; for a drop-in, its absolute path alone.
        path: of a drop-in: the file, absolute. Empty for a line.
        environment: the crontab's own `NAME=value` lines above it.
        mail_to: who is mailed what it writes. None: nothing was said; empty: nobody, whatever else is set.
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
        """The name as a file's name."""
        return self.name.replace("/", "+")


@dataclass(frozen=True, slots=True)
class Ignored:
    """Something in the cron directory that does not run, why, and what to do.

    Attributes:
        place: as of an entry.
        reason: one sentence, for people.
        hint: what to try; may be empty.
        is_fault: whether somebody must have meant it to run (a refused drop-in, a line that nobody understands), and
            not, for instance, a README.
    """

    place: str
    reason: str
    hint: str = ""
    is_fault: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """All that the cron directory says.

    Attributes:
        entries: by name, each once.
        ignored: the rest.
    """

    entries: tuple[Entry, ...] = ()
    ignored: tuple[Ignored, ...] = ()


@dataclass(frozen=True, slots=True)
class Due:
    """One slot that is to run.

    Attributes:
        slot: seconds since the epoch.
        start: when it is to start: the slot, and the entry's jitter.
        passed_over: how many older slots were missed and are not made up for.
        reason: one sentence: on time, or which slots are made up for.
    """

    entry: Entry
    slot: int
    start: float
    passed_over: int = 0
    reason: str = ""


class Outcome(StrEnum):
    """What became of a slot."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    TIMEOUT = "timeout"
    """It was ended because it took too long."""
    SUBMITTED = "submitted"
    """The job is queued; what becomes of it is the scheduler's."""
    REFUSED = "refused"
    """It could not be started, or sbatch refused it."""
    SKIPPED = "skipped"
    """An earlier run was still under way."""
    MISSED = "missed"
    """Nobody was there, and it is not made up for."""
    CUT_SHORT = "cut short"
    """It began, and whoever ran it died before it ended."""

    @property
    def is_failure(self) -> bool:
        """Whether somebody should look."""
        return self in {Outcome.FAILED, Outcome.TIMEOUT, Outcome.REFUSED, Outcome.CUT_SHORT}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One line of an entry's history.

    Attributes:
        name: the entry.
        slot: the slot.
        outcome: what became of it.
        time: when that was known, seconds since the epoch.
        started: when it began; None: it did not.
        exit_code: 128 + signal where a signal ended it; None: there is none.
        job_id: of a submitted one.
        host: where it ran.
        pid: its supervisor's process id.
        summary: one line for people, without secrets.
        output: name of the file of its output, in the cron directory's `output/<key>/`; empty: it wrote none.
        count: of MISSED and SKIPPED: how many slots this line stands for.
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
        """As JSON's own types; defaults are left out."""
        found = {key: getattr(self, key) for key in self.__slots__}
        return {key: value for key, value in found.items() if value not in (None, "") and (value or key != "pid")}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RunRecord:
        """What `to_json` wrote. Raise KeyError, TypeError or ValueError if it is none."""
        known = {key: record[key] for key in cls.__slots__ if key in record}
        return cls(**known | {"outcome": Outcome(record["outcome"]), "slot": int(record["slot"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What every tick leaves: that the scheduler of the project lives, and how well.

    Attributes:
        time: when the tick began, seconds since the epoch.
        expected: when the next tick is to begin, at the latest.
        alive_since: since when ticks have come without a gap of more than three times the expected pause.
        ticks: how many since then.
        late_s: by how much this tick came after the moment it was expected at; 0: in time.
        driver: who makes the ticks: `crontab`, `slurm`, `foreground` ...
        host, pid, job_id: who made this one.
        next_slot: when something is due next; None: nothing ever.
        entries: how many entries the table has.
        trouble: what went wrong in this tick itself, one sentence; empty: nothing.
        patience_s: [cron] late_s, for those who look and do not read the settings; 0: nothing was set.
        is_last: who ticked was ended on purpose (Ctrl-C, `resil cron uninstall`): nobody misses the next tick.
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
        """As JSON's own types."""
        return {key: getattr(self, key) for key in self.__slots__}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Heartbeat:
        """What `to_json` wrote. Raise TypeError or ValueError if it is none; later versions' keys are left."""
        heartbeat = cls(**{key: record[key] for key in cls.__slots__ if key in record})
        if not all(isinstance(value, int | float) for value in (heartbeat.time, heartbeat.expected)):
            raise ValueError("a heartbeat without a time")
        return heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What `resil cron install` made, as it stands in `driver.json`.

    Attributes:
        driver: which one: `scrontab`, `crontab`, `systemd`, `slurm`, `foreground`.
        token: random word; what was written elsewhere (a line, a unit, a job's comment) carries it, and so is known as
            ours, and as this installation's.
        time: when, seconds since the epoch.
        by: login name of whose rights everything runs with.
        host: where it was installed: crontab and systemd live on one machine.
        project: the project directory, absolute.
        python: absolute path of the interpreter.
        mode: of the drivers slurm and scrontab: `pulse` or `daemon`. Empty for others.
        facts: the driver's own: a unit's name, for instance.
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

    def to_json(self) -> dict[str, Any]:
        """As JSON's own types."""
        return {key: getattr(self, key) for key in self.__slots__}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Installation:
        """What `to_json` wrote. Raise TypeError if it is none; later versions' keys are left."""
        return cls(**{key: record[key] for key in cls.__slots__ if key in record})


RUN_NAME = ".cron"
"""Stands where jobs of a training carry their run's name (`resil:<run>:<token>`): no run can be called so."""
