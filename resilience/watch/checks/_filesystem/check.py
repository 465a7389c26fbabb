"""The check that `fs` and `inodes` share. Imports its probe and judge when they are first needed: start-up is quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from resilience.watch.checks._filesystem.reading import FileSystemReading
from resilience.watch.checks._filesystem.task import task_of
from resilience.watch.reading import Memory, Target, Timed

if TYPE_CHECKING:
    from resilience.finding import Finding
    from resilience.runs.context import Context


class FileSystemCheck:
    """A watchdog of bytes or of inodes. The plugin files name the kind and its settings."""

    kind: str
    Settings: type
    Reading = FileSystemReading
    memory = Memory(count=1)  # what was used before travels in the reading itself: reading.remembered
    argument = "paths"
    path_fields = ("paths", "checkpoints")  # typed ones count from the current directory
    offers_top = True  # --top: who filled it

    def targets(self, settings: Any, context: Context) -> Sequence[Target]:
        """Each file system that is needed, or each path that was named."""
        import resilience.watch.checks._filesystem.judge  # noqa: F401 - once, before a child is forked for each target
        from resilience.watch.checks._filesystem.probe import targets_of

        return targets_of(task_of(settings, self.kind), context)

    def probe(
        self, target: Target, settings: Any, context: Context, before: Mapping[str, Timed[FileSystemReading]]
    ) -> Mapping[str, FileSystemReading]:
        """Ask for the figures of one target."""
        from resilience.watch.checks._filesystem.probe import probe_target

        return probe_target(target, task_of(settings, self.kind), context, before)

    def judge(
        self, subject: str, readings: Sequence[Timed[FileSystemReading]], settings: Any, now: float
    ) -> Sequence[Finding]:
        """Say how full it is, how long it lasts, and what else is wrong with it."""
        from resilience.watch.checks._filesystem.judge import judge_reading

        return judge_reading(subject, readings, task_of(settings, self.kind), now)
