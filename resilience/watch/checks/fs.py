"""`resil watch fs`: is there room, and for how long? Bytes, quotas, missing and read-only file systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resilience.watch.checks._filesystem.amount import BYTES
from resilience.watch.checks._filesystem.look import Look, check_amount, check_du, thresholds_of
from resilience.watch.checks._filesystem.reading import FileSystemReading
from resilience.watch.checks._filesystem.site import SiteCommand, check_site
from resilience.watch.reading import Memory, Target, Timed

if TYPE_CHECKING:
    from resilience.finding import Finding
    from resilience.runs.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class FsSettings:
    """[watch.fs]: the room on file systems.

    Attributes:
        paths: what to look at; `~` and `$SCRATCH` are filled in. In a settings file relative to the project, typed to
            the current folder. Default: the file systems of the project, the state directory, home, $SCRATCH, $WORK and
            the like, /dev/shm and /tmp.
        warn_percent: warn when more than this is used. Default: 85%, where no free amount is asked for. Percents and
            free amounts may both be set: any that is crossed counts.
        crit_percent: critical when more than this is used. Default: 95%, as above.
        warn_free_bytes: warn when less than this is free: 500GiB.
        crit_free_bytes: critical when less than this is free.
        warn_runway_s: warn when it will be full sooner than this; 0 looks at no growth.
        crit_runway_s: critical when it will be full sooner than this; 0 never is.
        usable_percent: how much of a limit counts as the whole: 80% for file systems that fail before they are full.
        large_bytes: a shared file system larger than this is judged by what is free and by its runway, not by percent,
            unless a percentage is set.
        large_warn_free_bytes: warn when less than this is free on such a one, where nothing else is set.
        large_crit_free_bytes: critical when less than this is free on such a one, where nothing else is set.
        command: a command of your site that prints quotas, as a list: ["idrquota", "-w"]. {path} and {user} are filled
            in.
        used_regex: regular expression for what is used in its output: the figure in the first group, its unit there or
            in a second.
        limit_regex: the same for the limit.
        percent_regex: the same for the percentage, where it prints no amounts.
        command_unit: the unit of sizes printed without one: KiB.
        command_max_age_s: how old the figures of that command may be.
        quota: whether lfs quota, mmlsquota, beegfs-ctl, quota and xfs_quota are asked where they fit.
        du: whether du counts the folder: slow, and hard on a parallel file system.
        du_limit_bytes: what du's total is held against.
        du_every_s: how often du counts anew.
        du_deadline_s: how long du may take.
        checkpoints: folder of the checkpoints. Default: checkpoints, checkpoint, ckpts or ckpt in the project.
        checkpoint_bytes: what one checkpoint takes. Default: measured there.
        checkpoint_every_s: how often one is written. Default: from the run's journal, else their times.
        purge_days: the site deletes files that were not used for so many days; 0: it does not. Looked at are the
            checkpoints, else the path that was named, else the project.
        purge_warn_days: how many days before that it is told.
        read_only: whether it is meant that nothing can be written there.
    """

    paths: tuple[str, ...] = ()
    warn_percent: float | None = None
    crit_percent: float | None = None
    warn_free_bytes: int | None = None
    crit_free_bytes: int | None = None
    warn_runway_s: float = 48 * 3600.0
    crit_runway_s: float = 12 * 3600.0
    usable_percent: float = 100.0
    large_bytes: int = 100 * 2**40
    large_warn_free_bytes: int = 10 * 2**40
    large_crit_free_bytes: int = 2 * 2**40
    command: tuple[str, ...] = ()
    used_regex: str = ""
    limit_regex: str = ""
    percent_regex: str = ""
    command_unit: str = "B"
    command_max_age_s: float = 0.0
    quota: bool = True
    du: bool = False
    du_limit_bytes: int | None = None
    du_every_s: float = 6 * 3600.0
    du_deadline_s: float = 600.0
    checkpoints: str = ""
    checkpoint_bytes: int | None = None
    checkpoint_every_s: float | None = None
    purge_days: float = 0.0
    purge_warn_days: float = 7.0
    read_only: bool = False


SITE_KEYS = {"argv": "command", "used": "used_regex", "limit": "limit_regex", "percent": "percent_regex",
             "unit": "command_unit"}  # fmt: skip


def look_of(settings: FsSettings) -> Look:
    """Given the settings, return what to do. Raise SettingsError if they cannot be meant. Pure."""
    site = SiteCommand(argv=settings.command, used=settings.used_regex, limit=settings.limit_regex,
                       percent=settings.percent_regex, unit=settings.command_unit,
                       max_age_s=settings.command_max_age_s)  # fmt: skip
    check_site(site, SITE_KEYS)
    thresholds = thresholds_of(
        warn_percent=settings.warn_percent, crit_percent=settings.crit_percent, warn_free=settings.warn_free_bytes,
        crit_free=settings.crit_free_bytes, warn_runway_s=settings.warn_runway_s, crit_runway_s=settings.crit_runway_s,
        usable_percent=settings.usable_percent, kind=BYTES, large=settings.large_bytes,
        large_free=(settings.large_warn_free_bytes, settings.large_crit_free_bytes),
    )  # fmt: skip
    for key in ("du_limit_bytes", "checkpoint_bytes", "large_bytes", "large_warn_free_bytes", "large_crit_free_bytes"):
        check_amount(key, getattr(settings, key), BYTES)
    look = Look(
        kind=BYTES, paths=settings.paths, thresholds=thresholds, site=site, asks_quota=settings.quota,
        du_limit=settings.du_limit_bytes if settings.du else None, du_every_s=settings.du_every_s,
        du_deadline_s=settings.du_deadline_s, checkpoints=settings.checkpoints, checkpoint=settings.checkpoint_bytes,
        checkpoint_every_s=settings.checkpoint_every_s, purge_s=settings.purge_days * 86400,
        purge_warn_s=settings.purge_warn_days * 86400, read_only_is_meant=settings.read_only,
    )  # fmt: skip
    check_du(look, wanted=settings.du, limit=settings.du_limit_bytes, limit_key="du_limit_bytes")
    return look


class FsCheck:
    """The watchdog of bytes, and of whether a file system is there and can be written."""

    summary = "room on file systems: quotas, percent, free bytes, how long it lasts; missing and read-only ones"
    Settings = FsSettings
    Reading = FileSystemReading
    memory = Memory(count=1)  # what was used before travels in the reading itself: growth.remembered
    argument = "paths"
    example = "resil watch fs /scratch --warn-percent 80"
    path_fields = ("paths", "checkpoints")  # typed ones count from the current folder
    offers_top = True  # --top: who filled it

    def targets(self, settings: FsSettings, scene: Context) -> Sequence[Target]:
        """Each file system that is needed, or each path that was named."""
        import resilience.watch.checks._filesystem.judge  # noqa: F401 - once, before a child is forked for each target
        from resilience.watch.checks._filesystem.probe import targets_of

        return targets_of(look_of(settings), scene)

    def probe(
        self, target: Target, settings: FsSettings, scene: Context, before: Mapping[str, Timed[FileSystemReading]]
    ) -> Mapping[str, FileSystemReading]:
        """Ask for the figures of one."""
        from resilience.watch.checks._filesystem.probe import probe_target

        return probe_target(target, look_of(settings), scene, before)

    def judge(
        self, subject: str, readings: Sequence[Timed[FileSystemReading]], settings: FsSettings, now: float
    ) -> Sequence[Finding]:
        """Say how full it is, how long it lasts, and what else is wrong with it."""
        from resilience.watch.checks._filesystem.judge import judge_reading

        return judge_reading(subject, readings, look_of(settings), now)


CHECK = FsCheck()
