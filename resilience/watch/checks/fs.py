"""`resil watch fs`: is there room, and for how long? Bytes, quotas, missing and read-only file systems."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.watch.checks._filesystem.check import FileSystemCheck
from resilience.watch.checks._filesystem.reading import BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class FsSettings:
    """[watch.fs]: the room on file systems.

    Attributes:
        paths: the paths to watch; `~` and `$SCRATCH` are filled in. In a settings file relative to the project, typed
            to the current directory. Default: the file systems of the project, the state directory, home, $SCRATCH,
            $WORK and the like, /dev/shm and /tmp.
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
        du: whether du counts the directory: slow, and hard on a parallel file system.
        du_limit_bytes: the limit that du's total is compared with.
        du_every_s: how often du counts anew.
        du_deadline_s: how long du may take.
        checkpoints: directory of the checkpoints. Default: checkpoints, checkpoint, ckpts or ckpt in the project.
        checkpoint_bytes: what one checkpoint takes. Default: measured there.
        checkpoint_every_s: how often one is written. Default: from the run's journal, else their times.
        purge_days: the site deletes files that were not used for so many days; 0: it does not. Looked at are the
            checkpoints, else the path that was named, else the project.
        purge_warn_days: how many days before that the watchdog warns.
        read_only: whether the file system is read-only on purpose.
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


class FsCheck(FileSystemCheck):
    """The watchdog of bytes, and of whether a file system is there and can be written."""

    kind = BYTES
    summary = "room on file systems: quotas, percent, free bytes, how long it lasts; missing and read-only ones"
    Settings = FsSettings
    example = "resil watch fs /scratch --warn-percent 80"


CHECK = FsCheck()
