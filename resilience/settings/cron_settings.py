"""[cron]: the scheduler for hosts without cron. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSettings:
    """[cron]: schedule and backend of periodic commands.

    Attributes:
        folder: the cron directory, with `crontab`, `cron.hourly/` and the like. Relative to the project directory.
        backend: driver that runs the ticks: auto, scrontab, crontab, systemd, slurm or foreground.
        mode: mode of the backend slurm: `daemon`, one small job that ticks until shortly before its time limit, or
            `pulse`, one short job per tick.
        tick_s: interval at which the daemon checks the table; an entry that is due between two ticks is not late.
        pulse_s: interval between two pulses.
        time_limit_s: time limit of the daemon's job.
        pulse_limit_s: time limit of a pulse's job; its commands must end within this time.
        sbatch: sbatch's long options for the scheduler's job, and for batch scripts in the cron directory that request
            `sbatch=cron`: `{ partition = "cpu", account = "abc" }`.
        timeout_s: default time limit of a command. Unless this is changed, an entry that is due more often than every
            hour may run until its next slot.
        catch_up: default policy for missed slots: none, once, or all<=N.
        jitter_s: maximum random delay of drop-ins, so that not all projects start theirs in the same second.
        keep_runs: number of outputs kept for each entry.
        output_bytes: bytes kept of the output of one run: its beginning and its end.
        revive: whether the batch shells of training jobs restart the scheduler's chain of jobs when the chain is dead.
        late_s: a tick is late when overdue by this time. 0: twice the expected interval, at least three minutes.
        ping_url: address of a dead man's switch such as healthchecks.io, requested at the end of each tick.
        ping_url_file: file (mode 0600) that contains the address, where the address is a secret.
        ping_allow_http: whether the address may be plain http to another machine.
        digest_at: local time of the daily message that confirms normal operation: `"08:00"`. Empty: no message.
    """

    folder: str = "cron"
    backend: str = "auto"
    mode: str = "daemon"
    tick_s: float = 60.0
    pulse_s: float = 900.0
    time_limit_s: float = 86400.0
    pulse_limit_s: float = 1800.0
    sbatch: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 3600.0
    catch_up: str = "once"
    jitter_s: float = 20.0
    keep_runs: int = 20
    output_bytes: float = 1024.0**2
    revive: bool = False
    late_s: float = 0.0
    ping_url: str = ""
    ping_url_file: str = ""
    ping_allow_http: bool = False
    digest_at: str = ""
