"""[watch.job]: the settings of the job watchdog. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from resilience.errors import SettingsError

QUEUED, RUNNING = "queued", "running"
EVERYBODY = "*"
GRACE_WITHOUT_RUNNING_S = 600.0
"""With `require = "running"`: between two jobs of a chain lie seconds (2 s by SLURM's defaults), after a requeue two
minutes (cred_expire, 121 s), so that only more than this is news."""
END_NOTICE_S = 3600.0
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """[watch.job]: is the run alive, and will it stay so?

    Attributes:
        names: the jobs to watch, by name: exactly that name (`gpt`), a pattern for the whole name with *, ?
            and [] (`tr11-*`), or a regular expression found anywhere in it (`/^tr11-.*-ml$/`). `=a[1]` is that very
            name. Jobs that match one pattern count as one chain. Default: the runs of the state directory.
        users: owners of the jobs, with `names`: login names, or `*` for all users. Default: one's own.
        clusters: which of SLURM's clusters are asked for `names`, each by a query of its own. Default: the one that
            your own squeue asks.
        require: `queued`: waiting is fine; `running`: a run that only waits is a fault after `max_pending_s`.
        max_pending_s: how long nothing of a run may run while something waits. Default: no limit, and 10 minutes with
            `require = "running"`.
        blocked_s: how long a run may wait for what only others can change (a partition that is down, a limit, a
            node) before that is CRITICAL.
        end_notice_s: how long before the end of what runs it is said that nothing is queued behind it. Default: an
            hour, and a quarter of the time limit for shorter jobs.
        min_queued: how many jobs must be left behind what runs; an array's tasks count. Default: 1 for a run that is
            a chain of jobs, none for a single job.
        configuring_s: how long nodes may take to get ready for a job.
        completing_s: how long a job may take to end.
        suspended_s: how long a job may be suspended or stopped before that is CRITICAL.
        churn_count: so many attempts or requeues within `churn_s` are a fault; twice as many are CRITICAL. 0: never.
        churn_s: see there.
        unknown_critical_after_s: how long the scheduler may be silent before that is CRITICAL.
        forget_s: how long a run is still reported that is finished, or was killed on purpose.
        pulse_file: a log of its own that gets a line each hour: what runs since when and where. Never the training's.
        pulse_s: the least time between two lines about the same job.
        deadline_s: how long the whole look may take; at least 15 s more than [scheduler] deadline_s in any case.
    """

    names: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    require: str = QUEUED
    max_pending_s: float | None = None
    blocked_s: float = 3600.0
    end_notice_s: float | None = None
    min_queued: int | None = None
    configuring_s: float = 1200.0
    completing_s: float = 900.0
    suspended_s: float = 1800.0
    churn_count: int = 4
    churn_s: float = 3600.0
    unknown_critical_after_s: float = 1800.0
    forget_s: float = 86400.0
    pulse_file: str = ""
    pulse_s: float = 3600.0
    deadline_s: float = 75.0

    def notice_s(self, limit_s: float | None) -> float:
        """How long before the end of a job with this time limit a missing successor is told."""
        if self.end_notice_s is not None:
            return self.end_notice_s
        return END_NOTICE_S if limit_s is None else min(END_NOTICE_S, limit_s / 4)

    @property
    def pending_limit_s(self) -> float | None:
        """How long a run may wait with nothing running; None: as long as it likes."""
        if self.max_pending_s is None and self.require == RUNNING:
            return GRACE_WITHOUT_RUNNING_S
        return self.max_pending_s


def check_settings(settings: JobSettings) -> None:
    """Raise SettingsError for settings that cannot be meant."""
    if settings.require not in (QUEUED, RUNNING):
        raise SettingsError(f"require = {settings.require!r} of the job watchdog: there are queued and running")
    if settings.min_queued is not None and settings.min_queued < 0:
        raise SettingsError(f"min_queued = {settings.min_queued} of the job watchdog is less than none")
    if settings.churn_count < 0:
        raise SettingsError(f"churn_count = {settings.churn_count} of the job watchdog is less than none")
    for field in ("deadline_s", "churn_s", "pulse_s"):
        if getattr(settings, field) <= 0:
            raise SettingsError(f"{field} of the job watchdog must be more than 0")
    for user in settings.users:
        if not user or any(character.isspace() or character == "," for character in user):
            raise SettingsError(
                f"{user!r} in users of the job watchdog is no login name", hint='users = ["alice", "bob"], or ["*"]'
            )
        if user.startswith("-"):
            raise SettingsError(f"{user!r} in users of the job watchdog is no login name")
    for cluster in settings.clusters:
        if _CLUSTER.fullmatch(cluster) is None or cluster == "all":
            raise SettingsError(
                f"{cluster!r} in clusters of the job watchdog is no cluster", hint="see: sacctmgr show clusters"
            )
    if settings.clusters and not settings.names:
        raise SettingsError(
            "clusters of the job watchdog is set, and names is not", hint="a run knows where its jobs are"
        )
    if settings.users and not settings.names:
        raise SettingsError(
            "users of the job watchdog is set, and names is not",
            hint="runs of the state directory are known by their journals, whoever submitted them; "
            "to watch somebody's jobs, name them: resil watch job NAME --users bob",
        )
    if EVERYBODY in settings.users and len(settings.users) > 1:
        raise SettingsError("users of the job watchdog has * and names: * is everybody already")
