"""`resil watch job`: runs and jobs that are gone, stuck in the queue, or about to end without a successor.

Watches the runs of the state directory, or jobs of any user by name, with one query of the queue for all of them. A job
missing from one answer is UNKNOWN: an empty answer alone never means dead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resilience.finding import Finding
from resilience.runs.context import Context
from resilience.watch.checks._job.judge import judge
from resilience.watch.checks._job.probe import deadline_of, probe_queues, queue_name, queue_subject
from resilience.watch.checks._job.reading import JobReading
from resilience.watch.checks._job.settings import JobSettings, check_settings
from resilience.watch.checks._job.subjects import parse_requested
from resilience.watch.reading import Memory, Target, Timed


class JobCheck:
    """The watchdog of runs and jobs."""

    summary = "runs and jobs: gone, not starting, ending without a successor, requeued too often"
    Settings = JobSettings
    Reading = JobReading
    memory = Memory(count=1)
    argument = "names"
    example = "resil watch job gpt 'tr11-*' --users bob"

    def targets(self, settings: JobSettings, context: Context) -> Sequence[Target]:
        """Return a target for each queue, queried once for all subjects. Does not access the run directories."""
        check_settings(settings)
        for name in settings.names:
            parse_requested(name)
        deadline_s = deadline_of(settings, context)
        return tuple(Target(_target(context, cluster), deadline_s=deadline_s) for cluster in settings.clusters or ("",))

    def probe(
        self, target: Target, settings: JobSettings, context: Context, before: Mapping[str, Timed[JobReading]]
    ) -> Mapping[str, JobReading]:
        """Read the run directories, query the queue, and confirm that missing jobs are gone."""
        asked = (one for one in settings.clusters if _target(context, one) == target.name)
        return probe_queues(settings, context, before, next(asked, ""))

    def judge(
        self, subject: str, readings: Sequence[Timed[JobReading]], settings: JobSettings, now: float
    ) -> Sequence[Finding]:
        """Return the findings of the last reading, which includes the start of each ongoing condition."""
        return judge(subject, readings[-1].reading, settings, now)


def _target(context: Context, cluster: str) -> str:
    return queue_subject(queue_name(context.scheduler().name, cluster))


CHECK = JobCheck()
