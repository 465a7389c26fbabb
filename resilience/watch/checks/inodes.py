"""`resil watch inodes`: may more files be made? A disk with room refuses them when its inodes are used up."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.watch.checks._filesystem.check import FileSystemCheck
from resilience.watch.checks._filesystem.reading import INODES


@dataclass(frozen=True, slots=True, kw_only=True)
class InodesSettings:
    """[watch.inodes]: the number of files on file systems.

    Attributes:
        paths: the paths to watch; `~` and `$SCRATCH` are filled in. In a settings file relative to the project, typed
            to the current directory. Default: the file systems of the project, the state directory, home, $SCRATCH,
            $WORK and the like, /dev/shm and /tmp.
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
        du: whether `du --inodes` counts the directory: slow, and hard on a parallel file system.
        du_limit: the limit that du's total is compared with.
        du_every_s: how often du counts anew.
        du_deadline_s: how long du may take.
        checkpoints: directory of the checkpoints. Default: checkpoints, checkpoint, ckpts or ckpt in the project.
        checkpoint_files: how many files and directories one checkpoint has. Default: counted there.
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


class InodesCheck(FileSystemCheck):
    """The watchdog of inodes."""

    kind = INODES
    summary = "inodes on file systems: quotas, percent, free ones, how long they last"
    Settings = InodesSettings
    example = "resil watch inodes /scratch --warn-free 100000"


CHECK = InodesCheck()
