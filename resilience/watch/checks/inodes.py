"""`resil watch inodes`: free inodes. Without these, creating a file fails although there is free space."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.watch.checks._filesystem import FileSystemCheck
from resilience.watch.checks._filesystem.reading import INODES


@dataclass(frozen=True, slots=True, kw_only=True)
class InodesSettings:
    """[watch.inodes]: the number of files on file systems.

    Attributes:
        paths: the paths to watch; `~` and `$SCRATCH` are expanded. Relative paths are relative to the project in a
            settings file, and to the current directory on the command line. Default: the file systems of the project,
            the state directory, home, $SCRATCH, $WORK and the like, /dev/shm and /tmp.
        warn_percent: warn if more than this is used. Default: 85%, unless a free number is set. Percentages and free
            numbers may both be set; crossing either counts.
        crit_percent: critical if more than this is used. Default: 95%, unless a free number is set.
        warn_free: warn if fewer inodes than this are free.
        crit_free: critical if fewer inodes than this are free.
        warn_runway_s: warn if the inodes will be used up sooner than this at the measured growth; 0: never.
        crit_runway_s: critical if the inodes will be used up sooner than this at the measured growth; 0: never.
        usable_percent: the usable part of each limit.
        command: a command of your site that prints quotas, as a list: ["idrquota", "-w"]. {path} and {user} are filled
            in.
        used_regex: regular expression for the number of files in the command's output, in the first group.
        limit_regex: regular expression for the limit, as `used_regex`.
        percent_regex: regular expression for the percentage, if the command prints no numbers.
        command_max_age_s: the maximum age of the command's figures.
        quota: query lfs quota, mmlsquota, beegfs-ctl, quota and xfs_quota, depending on the file system.
        du: count files with `du --inodes`, which is slow and loads a parallel file system.
        du_limit: the limit for du's total.
        du_every_s: how often to run du.
        du_deadline_s: the time limit of du.
        checkpoints: directory of the checkpoints. Default: checkpoints, checkpoint, ckpts or ckpt in the project.
        checkpoint_files: files and directories in one checkpoint. Default: counted in that directory.
        checkpoint_every_s: the interval between checkpoints. Default: from the run's journal, else from the file
            times of the checkpoints.
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


class InodesCheck(FileSystemCheck):
    """The watchdog of inodes."""

    kind = INODES
    summary = "inodes on file systems: quotas, percent, free inodes, runway"
    Settings = InodesSettings
    example = "resil watch inodes /scratch --warn-free 100000"


CHECK = InodesCheck()
