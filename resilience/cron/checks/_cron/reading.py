"""Settings and reading of the watchdog for cron. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

SCHEDULER = "scheduler"
"""Subject of findings about the scheduler itself. No entry has this name: entry names contain a `/`."""

TABLE_FILE = "table.json"
"""In `<state_dir>/.cron`: entries and ignored files, as the last tick read them (cron/report.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronCheckSettings:
    """[watch.cron]: health of this project's scheduler, and results of its entries.

    Attributes:
        entries: entries to check, by name or pattern: `cron.hourly/backup`, `crontab/*`. Default: all, the scheduler
            itself, and files ignored by mistake.
        late_s: a tick overdue by more than this is late. 0: [cron] late_s, or twice the expected interval, and at least
            three minutes.
        crit_failures: number of consecutive failures of an entry that are CRITICAL. 0: never.
        skips: alert after this many consecutive skips of an entry.
        ignored: whether to report files in the cron directory that do not run but were probably meant to.
    """

    entries: tuple[str, ...] = ()
    late_s: float = 0.0
    crit_failures: int = 3
    skips: int = 3
    ignored: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CronReading:
    """Reading of the scheduler, of one entry, or of one ignored file. Times: seconds since the epoch.

    Attributes:
        kind: `scheduler`, `entry` or `ignored`.
        nothing: why there is nothing to judge, one sentence; empty: there is something.
        time, expected, alive_since, ticks, driver, host, trouble, next_slot: as in the heartbeat; if the scheduler
            never ticked, `time` is when it was installed and `ticks` 0.
        patience_s: [cron] late_s, as the tick knew it; 0: not set.
        damaged: problem of the heartbeat file.
        is_installed: whether an installation is recorded.
        stopped: who stopped it, when and why, one sentence; empty: not stopped.
        awake_since: when the observing node was booted, or resumed.
        slept_s: how long that node has been suspended since boot.
        boot: boot id of that node.
        outcome: for an entry: result of its last finished run; empty: none.
        slot, ended, exit_code, summary, job_id, ran_on: of that run.
        failures: number of consecutive failures.
        first_failed: time of the first of them.
        skips: number of slots skipped since the last run began.
        missed: number of slots missed since the last run.
        running_since: start of the active run; 0: none.
        tail: last lines of a failed run's output.
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
