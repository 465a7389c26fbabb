"""The `job` watchdog: is the run alive, and will it stay so?

It looks at the runs of the state directory, or at anybody's jobs by name, with one query of the queue for all of them.
What cannot be seen is UNKNOWN: an empty answer alone never means dead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resilience.finding import Finding
from resilience.runs.context import Context
from resilience.watch.checks._job.judging import judge
from resilience.watch.checks._job.look import deadline_of, look, place_of, queue_subject
from resilience.watch.checks._job.reading import JobReading
from resilience.watch.checks._job.settings import JobSettings, check_settings
from resilience.watch.checks._job.wanted import parse_wanted
from resilience.watch.reading import Memory, Target, Timed


class JobCheck:
    """See ports.Check."""

    summary = "Runs and jobs: queued or running, whether they will start, and what comes after them."
    Settings = JobSettings
    Reading = JobReading
    memory = Memory(count=1)
    argument = "names"
    example = "resil watch job gpt 'tr11-*' --users bob"

    def targets(self, settings: JobSettings, scene: Context) -> Sequence[Target]:
        """A queue, which is asked once for everybody. The run directories are only touched by the look itself."""
        check_settings(settings)
        for name in settings.names:
            parse_wanted(name)
        deadline_s = deadline_of(settings, scene)
        return tuple(Target(_target(scene, cluster), deadline_s=deadline_s) for cluster in settings.clusters or ("",))

    def probe(
        self, target: Target, settings: JobSettings, scene: Context, before: Mapping[str, Timed[JobReading]]
    ) -> Mapping[str, JobReading]:
        """Look at the runs' files and the queue, and make sure of what is not there."""
        asked = (one for one in settings.clusters if _target(scene, one) == target.name)
        return look(settings, scene, before, next(asked, ""))

    def judge(
        self, subject: str, readings: Sequence[Timed[JobReading]], settings: JobSettings, now: float
    ) -> Sequence[Finding]:
        """What the last reading amounts to; what lasts was carried into it from those before."""
        return judge(subject, readings[-1].reading, settings, now)


def _target(scene: Context, cluster: str) -> str:
    return queue_subject(place_of(scene.scheduler().name, cluster))


CHECK = JobCheck()
