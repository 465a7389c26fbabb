"""[watch.job]: the settings of the job watchdog. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from resilience.errors import SettingsError

QUEUED, RUNNING = "queued", "running"
EVERYBODY = "*"
GRACE_WITHOUT_RUNNING_S = 600.0
"""The default of max_pending_s with `require = "running"`. The gap between two jobs of a chain takes seconds (2 s with
SLURM's defaults), a requeue two minutes (cred_expire, 121 s)."""
END_NOTICE_S = 3600.0
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """[watch.job]: runs and jobs in the queue.

    Attributes:
        names: the names of jobs to watch: an exact name (`gpt`), a pattern for the whole name with *, ? and []
            (`tr11-*`), or a regular expression to search for (`/^tr11-.*-ml$/`). `=a[1]` is an exact name with special
            characters. Jobs that match one pattern count as one chain. Default: the runs of the state directory.
        users: owners of the jobs in `names`: login names, or `*` for all users. Default: the current user.
        clusters: the SLURM clusters to query for `names`, with one query each. Default: the local cluster.
        require: the state that a run needs. `queued`: a pending job is enough. `running`: no running job for
            `max_pending_s` is a fault.
        max_pending_s: how long all jobs of a run may be pending. Default: no limit, and 10 minutes with
            `require = "running"`.
        blocked_s: CRITICAL after a run is blocked this long by what only others can change (a partition that is down,
            a limit, a node).
        end_notice_s: warn this long before the last running job ends if no job is queued behind it. Default: an hour,
            and a quarter of the time limit for shorter jobs.
        min_queued: warn if fewer jobs or array tasks are queued behind the running one. Default: 1 for a chain of
            jobs, 0 for a single job.
        configuring_s: warn after a job configures its nodes for this long.
        completing_s: warn after a job is completing for this long.
        suspended_s: CRITICAL after a job is suspended or stopped for this long.
        churn_count: warn at this many attempts or requeues within `churn_s`; twice as many are CRITICAL. 0: never.
        churn_s: the time over which attempts and requeues are counted.
        unknown_critical_after_s: CRITICAL after the scheduler does not respond for this long.
        forget_s: how long a finished or deliberately killed run is still reported.
        pulse_file: a separate log, never the training's, for an hourly line on which job is running, since when and
            where.
        pulse_s: the least time between two lines about the same job.
        deadline_s: the deadline of the probe; at least 15 s more than [scheduler] deadline_s.
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
        """Return how long before the end of a job with this time limit a missing successor is reported."""
        if self.end_notice_s is not None:
            return self.end_notice_s
        return END_NOTICE_S if limit_s is None else min(END_NOTICE_S, limit_s / 4)

    @property
    def pending_limit_s(self) -> float | None:
        """Return how long all jobs of a run may be pending; None: no limit."""
        if self.max_pending_s is None and self.require == RUNNING:
            return GRACE_WITHOUT_RUNNING_S
        return self.max_pending_s


def check_settings(settings: JobSettings) -> None:
    """Raise SettingsError for invalid settings."""
    if settings.require not in (QUEUED, RUNNING):
        raise SettingsError(
            f"require = {settings.require!r} of the job watchdog is unknown",
            hint='use require = "queued" or require = "running"',
        )
    for field in ("deadline_s", "churn_s", "pulse_s"):
        if getattr(settings, field) <= 0:
            raise SettingsError(f"{field} of the job watchdog must be more than 0")
    for user in settings.users:
        if not user or any(character.isspace() or character == "," for character in user):
            raise SettingsError(
                f"{user!r} in users of the job watchdog is not a login name", hint='users = ["alice", "bob"], or ["*"]'
            )
        if user.startswith("-"):
            raise SettingsError(f"{user!r} in users of the job watchdog is not a login name")
    for cluster in settings.clusters:
        if _CLUSTER.fullmatch(cluster) is None or cluster == "all":
            raise SettingsError(
                f"{cluster!r} in clusters of the job watchdog is not a cluster", hint="see: sacctmgr show clusters"
            )
    if settings.clusters and not settings.names:
        raise SettingsError(
            "clusters of the job watchdog is set without names", hint="the cluster of a run is known from its journal"
        )
    if settings.users and not settings.names:
        raise SettingsError(
            "users of the job watchdog is set without names",
            hint="runs of the state directory are known from their journals, whichever user submitted them; "
            "to watch another user's jobs, name them: resil watch job NAME --users bob",
        )
    if EVERYBODY in settings.users and len(settings.users) > 1:
        raise SettingsError("users of the job watchdog has * and login names: * includes all users")
