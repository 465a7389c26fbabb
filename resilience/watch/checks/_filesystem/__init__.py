"""The watchdog of file systems, with two amounts: bytes (`resil watch fs`) and inodes (`resil watch inodes`).

Both use the same places, sources and rules. In a tick of both, a path is probed once. Imports probe and judge lazily
to keep start-up fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from resilience.watch.checks._filesystem.reading import FileSystemReading
from resilience.watch.checks._filesystem.task import FileSystemSettings, task_of
from resilience.watch.reading import Memory, Target, Timed

if TYPE_CHECKING:
    from resilience.finding import Finding
    from resilience.runs.context import Context


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
