"""[cron]: the scheduler where there is no cron. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSettings:
    """[cron]: what runs when, and who makes the ticks.

    Attributes:
        folder: the cron directory: `cron.hourly/` and its sisters, and `crontab`. Relative to the project directory.
        backend: who makes the ticks: auto, scrontab, crontab, systemd, slurm or foreground.
        mode: of the backend slurm: `daemon`, one small job that ticks until shortly before its time limit, or `pulse`,
            one short job for each tick.
        tick_s: how often the daemon looks at the table; a slot between two ticks is not late for that.
        pulse_s: how often a pulse comes.
        time_limit_s: of the daemon's job.
        pulse_limit_s: of a pulse's job; what it runs must end within that.
        sbatch: sbatch's own long options for the scheduler's job, and for batch scripts in the cron directory that say
            `sbatch=cron`: `{ partition = "cpu", account = "abc" }`.
        timeout_s: how long what runs may take, where it does not say otherwise.
        catch_up: how missed slots are made up for, where nothing else is said: none, once, or all<=N.
        jitter_s: drop-ins start up to so long after their slot, so that not everybody's do in the same second.
        keep_runs: so many outputs of each entry are kept.
        output_bytes: of one run's output, its beginning and its end.
        revive: whether the batch shells of training jobs start the scheduler's chain of jobs again when it is dead.
        late_s: a tick this long overdue is late. 0: twice the expected pause, at least three minutes.
        ping_url: a dead man's switch, as healthchecks.io has them: asked at the start and the end of each tick.
        ping_url_file: file (mode 0600) that holds the address, where it is a secret.
        ping_allow_http: whether the address may be plain http to another machine than this.
        digest_at: local time of the daily message that all is well: `"08:00"`. Empty: none.
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
