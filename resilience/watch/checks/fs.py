"""`resil watch fs`: free space, quotas, growth, and missing or read-only file systems."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.watch.checks._filesystem import FileSystemCheck
from resilience.watch.checks._filesystem.reading import BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class FsSettings:
    """[watch.fs]: free space on file systems.

    Attributes:
        paths: the paths to watch; `~` and `$SCRATCH` are expanded. Relative paths are relative to the project in a
            settings file, and to the current directory on the command line. Default: the file systems of the project,
            the state directory, home, $SCRATCH, $WORK and the like, /dev/shm and /tmp.
        warn_percent: warn if more than this is used. Default: 85%, unless a free amount is set. Percentages and free
            amounts may both be set; crossing either counts.
        crit_percent: critical if more than this is used. Default: 95%, unless a free amount is set.
        warn_free_bytes: warn if less than this is free: 500GiB.
        crit_free_bytes: critical if less than this is free.
        warn_runway_s: warn if the file system will be full sooner than this at its measured growth; 0: never.
        crit_runway_s: critical if the file system will be full sooner than this at its measured growth; 0: never.
        usable_percent: the usable part of each limit: 80% for file systems that fail before they are full.
        large_bytes: a shared file system larger than this is judged by its free amount and runway, not by percent,
            unless a percentage is set.
        large_warn_free_bytes: warn if less than this is free on such a file system and no other threshold is set.
        large_crit_free_bytes: critical if less than this is free on such a file system and no other threshold is set.
        command: a command of your site that prints quotas, as a list: ["idrquota", "-w"]. {path} and {user} are filled
            in.
        used_regex: regular expression for the usage in the command's output: the figure in the first group, the unit
            in the same or a second group.
        limit_regex: regular expression for the limit, as `used_regex`.
        percent_regex: regular expression for the percentage, if the command prints no amounts.
        command_unit: the unit of sizes printed without one: KiB.
        command_max_age_s: the maximum age of the command's figures.
        quota: query lfs quota, mmlsquota, beegfs-ctl, quota and xfs_quota, depending on the file system.
        du: measure the directory with du, which is slow and loads a parallel file system.
        du_limit_bytes: the limit for du's total.
        du_every_s: how often to run du.
        du_deadline_s: the time limit of du.
        checkpoints: directory of the checkpoints. Default: checkpoints, checkpoint, ckpts or ckpt in the project.
        checkpoint_bytes: the size of one checkpoint. Default: measured in that directory.
        checkpoint_every_s: the interval between checkpoints. Default: from the run's journal, else from the file
            times of the checkpoints.
        purge_days: the site deletes files not used for this many days; 0: never. Checked are the checkpoints, else
            the named path, else the project.
        purge_warn_days: how many days before the purge to warn.
        read_only: accept a read-only file system.
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
    """The watchdog of free space, and of missing and read-only file systems."""

    kind = BYTES
    summary = "free space on file systems: quotas, percent, free bytes, runway; missing and read-only file systems"
    Settings = FsSettings
    example = "resil watch fs /scratch --warn-percent 80"


CHECK = FsCheck()
