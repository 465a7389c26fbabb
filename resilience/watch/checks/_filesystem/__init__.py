"""The watchdog of file systems, with two amounts: bytes (`resil watch fs`) and inodes (`resil watch inodes`).

Both use the same places, sources and rules. In a tick of both, a path is probed once. Imports probe and judge lazily
to keep start-up fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resilience.watch.checks._filesystem.reading import FileSystemReading
from resilience.watch.checks._filesystem.task import task_of
from resilience.watch.reading import Memory, Target, Timed

if TYPE_CHECKING:
    from resilience.finding import Finding
    from resilience.runs.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemSettings:
    """The settings of both amounts.

    Attributes:
        paths: the paths to watch; `~` and `$SCRATCH` are expanded. Relative paths are relative to the project in a
            settings file, and to the current directory on the command line. Default: the file systems of the project,
            the state directory, home, $SCRATCH, $WORK and the like, /dev/shm and /tmp, and of the command, the data
            and the environment that the run's batch script and journal name.
        warn_percent: warn if more than this is used. Default: 85%, unless a free amount is set. Percentages and free
            amounts may both be set; crossing either counts.
        crit_percent: critical if more than this is used. Default: 95%, unless a free amount is set.
        warn_runway_s: warn if the file system will be full sooner than this at its measured growth; 0: never.
        crit_runway_s: critical if the file system will be full sooner than this at its measured growth; 0: never.
        usable_percent: the usable part of each limit: 80% for file systems that fail before they are full.
        command: a command of your site that prints quotas, as a list: ["idrquota", "-w"]. {path} and {user} are filled
            in.
        used_regex: regular expression for the usage in the command's output: the figure in the first group, the unit
            of a size in the same or a second group.
        limit_regex: regular expression for the limit, as `used_regex`.
        percent_regex: regular expression for the percentage, if the command prints no amounts.
        command_max_age_s: the maximum age of the command's figures.
        quota: query lfs quota, mmlsquota, beegfs, quota and xfs_quota, depending on the file system.
        du: measure the directory with du, which is slow and loads a parallel file system.
        du_every_s: how often to run du.
        du_deadline_s: the time limit of du.
        checkpoints: directory of the checkpoints. Default: checkpoints, checkpoint, ckpts or ckpt in the project.
        checkpoint_every_s: the interval between checkpoints. Default: from the run's journal, else from the file
            times of the checkpoints.
    """

    paths: tuple[str, ...] = ()
    warn_percent: float | None = None
    crit_percent: float | None = None
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
    du_every_s: float = 6 * 3600.0
    du_deadline_s: float = 600.0
    checkpoints: str = ""
    checkpoint_every_s: float | None = None


class FileSystemCheck:
    """The watchdog of one of the amounts."""

    Reading = FileSystemReading
    memory = Memory(count=1)  # each reading carries its own history: reading.remembered
    argument = "paths"
    path_fields = ("paths", "checkpoints")  # relative to the current directory on the command line
    offers_top = True  # --top: the largest and fastest-growing directories

    def __init__(self, kind: str, settings: type, summary: str, example: str) -> None:
        self.kind, self.Settings, self.summary, self.example = kind, settings, summary, example

    def together(self, settings: FileSystemSettings) -> str:
        """Return what is probed in one child for both amounts; a command of the site and du have their own."""
        return "" if settings.command or settings.du else "file system"

    def targets(self, settings: Any, context: Context) -> Sequence[Target]:
        """Return a target for each file system that a training needs, or for each path in the settings."""
        import resilience.watch.checks._filesystem.judge  # noqa: F401 - once, before forking a child per target
        from resilience.watch.checks._filesystem.probe import targets_of

        return targets_of(task_of(settings, self.kind), context)

    def probe(
        self, target: Target, settings: Any, context: Context, before: Mapping[str, Timed[FileSystemReading]]
    ) -> Mapping[str, FileSystemReading]:
        """Return the readings of one target."""
        from resilience.watch.checks._filesystem.probe import probe_target

        return probe_target(target, task_of(settings, self.kind), context, before)

    def judge(
        self, subject: str, readings: Sequence[Timed[FileSystemReading]], settings: Any, now: float
    ) -> Sequence[Finding]:
        """Return the findings about usage, growth, and other faults of the file system."""
        from resilience.watch.checks._filesystem.judge import judge_reading

        return judge_reading(subject, readings, task_of(settings, self.kind), now)
