"""`resil watch inodes`: may more files be made? A disk with room refuses them when its inodes are used up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resilience.watch.checks._filesystem.amount import INODES
from resilience.watch.checks._filesystem.look import Look, check_amount, check_du, thresholds_of
from resilience.watch.checks._filesystem.reading import FileSystemReading
from resilience.watch.checks._filesystem.site import SiteCommand, check_site
from resilience.watch.reading import Memory, Target, Timed

if TYPE_CHECKING:
    from resilience.finding import Finding
    from resilience.runs.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class InodesSettings:
    """[watch.inodes]: the number of files on file systems.

    Attributes:
        paths: what to look at; `~` and `$SCRATCH` are filled in. In a settings file relative to the project, typed to
            the current folder. Default: the file systems of the project, the state directory, home, $SCRATCH, $WORK and
            the like, /dev/shm and /tmp.
        warn_percent: warn when more than this is used. Default: 85%, where no free number is asked for. Percents and
            free numbers may both be set: any that is crossed counts.
        crit_percent: critical when more than this is used. Default: 95%, as above.
        warn_free: warn when fewer inodes than this are free.
        crit_free: critical when fewer than this are free.
        warn_runway_s: warn when they will be used up sooner than this; 0 looks at no growth.
        crit_runway_s: critical when they will be used up sooner than this; 0 never is.
        usable_percent: how much of a limit counts as the whole.
        command: a command of your site that prints quotas, as a list: ["idrquota", "-w"]. {path} and {user} are filled
            in.
        used_regex: regular expression for the number of files in its output: the figure in the first group.
        limit_regex: the same for the limit.
        percent_regex: the same for the percentage, where it prints no numbers.
        command_max_age_s: how old the figures of that command may be.
        quota: whether lfs quota, mmlsquota, beegfs-ctl, quota and xfs_quota are asked where they fit.
        du: whether `du --inodes` counts the folder: slow, and hard on a parallel file system.
        du_limit: what du's total is held against.
        du_every_s: how often du counts anew.
        du_deadline_s: how long du may take.
        checkpoints: folder of the checkpoints. Default: checkpoints, checkpoint, ckpts or ckpt in the project.
        checkpoint_files: how many files and folders one checkpoint has. Default: counted there.
        checkpoint_every_s: how often one is written. Default: from the run's journal, else their times.
    """

    paths: tuple[str, ...] = ()
    warn_percent: float | None = None
    crit_percent: float | None = None
    warn_free: int | None = None
    crit_free: int | None = None
    warn_runway_s: float = 48 * 3600.0
    crit_runway_s: float = 12 * 3600.0
    usable_percent: float = 100.0
    command: tuple[str, ...] = ()
    used_regex: str = ""
    limit_regex: str = ""
    percent_regex: str = ""
    command_max_age_s: float = 0.0
    quota: bool = True
    du: bool = False
    du_limit: int | None = None
    du_every_s: float = 6 * 3600.0
    du_deadline_s: float = 600.0
    checkpoints: str = ""
    checkpoint_files: int | None = None
    checkpoint_every_s: float | None = None


SITE_KEYS = {"argv": "command", "used": "used_regex", "limit": "limit_regex", "percent": "percent_regex",
             "unit": "command_unit"}  # fmt: skip


def look_of(settings: InodesSettings) -> Look:
    """Given the settings, return what to do. Raise SettingsError if they cannot be meant. Pure."""
    site = SiteCommand(argv=settings.command, used=settings.used_regex, limit=settings.limit_regex,
                       percent=settings.percent_regex, max_age_s=settings.command_max_age_s)  # fmt: skip
    check_site(site, SITE_KEYS)
    thresholds = thresholds_of(
        warn_percent=settings.warn_percent, crit_percent=settings.crit_percent, warn_free=settings.warn_free,
        crit_free=settings.crit_free, warn_runway_s=settings.warn_runway_s, crit_runway_s=settings.crit_runway_s,
        usable_percent=settings.usable_percent, kind=INODES,
    )  # fmt: skip
    for key in ("du_limit", "checkpoint_files"):
        check_amount(key, getattr(settings, key), INODES)
    look = Look(
        kind=INODES, paths=settings.paths, thresholds=thresholds, site=site, asks_quota=settings.quota,
        du_limit=settings.du_limit if settings.du else None, du_every_s=settings.du_every_s,
        du_deadline_s=settings.du_deadline_s, checkpoints=settings.checkpoints, checkpoint=settings.checkpoint_files,
        checkpoint_every_s=settings.checkpoint_every_s,
    )  # fmt: skip
    check_du(look, wanted=settings.du, limit=settings.du_limit, limit_key="du_limit")
    return look


class InodesCheck:
    """The watchdog of inodes."""

    summary = "inodes on file systems: quotas, percent, free ones, how long they last"
    Settings = InodesSettings
    Reading = FileSystemReading
    memory = Memory(count=1)  # what was used before travels in the reading itself: growth.remembered
    argument = "paths"
    example = "resil watch inodes /scratch --warn-free 100000"
    path_fields = ("paths", "checkpoints")  # typed ones count from the current folder
    offers_top = True  # --top: who filled it

    def targets(self, settings: InodesSettings, scene: Context) -> Sequence[Target]:
        """Each file system that is needed, or each path that was named."""
        import resilience.watch.checks._filesystem.judge  # noqa: F401 - once, before a child is forked for each target
        from resilience.watch.checks._filesystem.probe import targets_of

        return targets_of(look_of(settings), scene)

    def probe(
        self, target: Target, settings: InodesSettings, scene: Context, before: Mapping[str, Timed[FileSystemReading]]
    ) -> Mapping[str, FileSystemReading]:
        """Ask for the figures of one."""
        from resilience.watch.checks._filesystem.probe import probe_target

        return probe_target(target, look_of(settings), scene, before)

    def judge(
        self, subject: str, readings: Sequence[Timed[FileSystemReading]], settings: InodesSettings, now: float
    ) -> Sequence[Finding]:
        """Say how many are used, and how long the rest lasts."""
        from resilience.watch.checks._filesystem.judge import judge_reading

        return judge_reading(subject, readings, look_of(settings), now)


CHECK = InodesCheck()
