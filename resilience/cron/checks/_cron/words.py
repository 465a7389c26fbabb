"""What the watchdog of cron may be told, and what it sees. Pure words."""

from __future__ import annotations

from dataclasses import dataclass, field

SCHEDULER = "scheduler"
"""The subject that is no entry: whoever makes the ticks. No entry is called so: each has a `/` in its name."""

TABLE_FILE = "table.json"
"""In `<state_dir>/.cron`: the entries and what is ignored, as the last tick read them (cron/tell.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronCheckSettings:
    """[watch.cron]: does the scheduler of this project live, and do its entries run well?

    Attributes:
        entries: which entries are looked at, by name or pattern: `cron.hourly/backup`, `crontab/*`. Default: all, the
            scheduler itself and what is ignored by mistake.
        late_s: a tick this long overdue is late. 0: as [cron] late_s says, or twice the expected pause and at least
            three minutes.
        crit_failures: so many failures of an entry in a row are CRITICAL. 0: never.
        skips: so many skips of an entry in a row are told.
        ignored: whether it is told what in the cron directory does not run and must have been meant to.
    """

    entries: tuple[str, ...] = ()
    late_s: float = 0.0
    crit_failures: int = 3
    skips: int = 3
    ignored: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CronReading:
    """What was seen of the scheduler, of one entry, or of one thing that is ignored. Times: seconds since the epoch.

    Attributes:
        kind: `scheduler`, `entry` or `ignored`.
        nothing: why there is nothing to judge, one sentence; empty: there is.
        time, expected, alive_since, ticks, driver, host, trouble, next_slot: as in the heartbeat; of a scheduler that
            never ticked, `time` is when it was installed and `ticks` 0.
        patience_s: [cron] late_s, as the tick knew it; 0: nothing was set.
        damaged: what is wrong with the heartbeat.
        is_installed: whether an installation is there.
        stopped: who stopped it, when and why, one sentence; empty: nobody did.
        awake_since: when the node that looks was booted, or woke up.
        slept_s: how long that node has been suspended since it was booted.
        boot: which boot that was.
        outcome: of an entry: what became of its last run that ended; empty: none has.
        slot, ended, exit_code, summary, job_id, ran_on: of that run.
        failures: how many runs failed in a row.
        first_failed: since when.
        skips: how many slots were skipped in a row since the last run began.
        missed: how many slots were missed since the last run.
        running_since: when the run began that is under way; 0: none is.
        tail: the last lines that a failed run wrote.
        hint: what to try.
    """

    kind: str = SCHEDULER
    nothing: str = ""
    time: float = 0.0
    expected: float = 0.0
    alive_since: float = 0.0
    ticks: int = 0
    driver: str = ""
    host: str = ""
    trouble: str = ""
    next_slot: float | None = None
    patience_s: float = 0.0
    damaged: str = ""
    is_installed: bool = False
    stopped: str = ""
    awake_since: float = 0.0
    slept_s: float = 0.0
    boot: str = ""
    outcome: str = ""
    slot: int = 0
    ended: float = 0.0
    exit_code: int | None = None
    summary: str = ""
    job_id: str = ""
    ran_on: str = ""
    failures: int = 0
    first_failed: float = 0.0
    skips: int = 0
    missed: int = 0
    running_since: float = 0.0
    tail: tuple[str, ...] = field(default=())
    hint: str = ""
