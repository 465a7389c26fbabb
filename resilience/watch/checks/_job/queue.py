"""Asks a queue once for everybody who is watched, and knows which jobs are the watchdog's own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from resilience.errors import ResilError
from resilience.job import Job
from resilience.schedulers import Keep, Scheduler
from resilience.system.world import Clock

EMBEDDED = "local"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one query said.

    Attributes:
        jobs: the jobs that were wanted, ended ones included while they are remembered.
        asked: when, in seconds since the epoch.
        trouble: why there was no answer, with what to try; then nothing follows from `jobs` being empty.
    """

    scheduler: str
    jobs: tuple[Job, ...] = ()
    asked: float = 0.0
    took_s: float = 0.0
    trouble: str = ""
    advice: str = ""


def ask(client: Scheduler, clock: Clock, users: Collection[str] | None, keep: Keep, place: str = "") -> Answer:
    """One query. Never raises for a scheduler that gives no answer. `place` is how the queue is called."""
    place = place or client.name
    asked, began = clock.now(), clock.monotonic()
    try:
        jobs = client.jobs(users=users, finished=True, keep=keep)
    except ResilError as error:
        took_s = clock.monotonic() - began
        return Answer(place, asked=asked, took_s=took_s, trouble=error.message, advice=error.hint)
    return Answer(place, jobs, asked, clock.monotonic() - began)


@dataclass(frozen=True, slots=True)
class OwnJob:
    """The job that the watchdog itself runs in: it must never take itself for the training.

    Attributes:
        ids: the numbers that SLURM knows it by: its own, its array's, its heterogeneous leader's.
        name: its name, empty outside of a job.
    """

    ids: frozenset[int] = frozenset()
    name: str = ""

    def is_it(self, job: Job) -> bool:
        """Whether this is the watchdog's own job, or a task of the array that it is one of."""
        return job.raw_id in self.ids or job.id.array in self.ids

    def siblings(self, jobs: Iterable[Job]) -> frozenset[int]:
        """The raw ids of this job and of all that run its very script for the same person, under the same name.

        A watchdog that queues its own successor would otherwise take that for the training.
        """
        jobs = tuple(jobs)
        own = [job for job in jobs if self.is_it(job)]
        scripts = {(job.user, job.command) for job in own if job.command}
        return frozenset(
            {job.raw_id for job in own}
            | {job.raw_id for job in jobs if (job.user, job.command) in scripts and job.name == self.name}
        )


def own_job(environ: Mapping[str, str], scheduler: str, cluster: str = "") -> OwnJob:
    """The watchdog's own job at this scheduler, as its environment tells; sbatch(1), OUTPUT ENVIRONMENT VARIABLES.

    Jobs of the embedded scheduler have the same variables, but numbers of their own.
    """
    inside = EMBEDDED if environ.get("RESIL_SCHEDULER") == EMBEDDED else ""
    if (scheduler == EMBEDDED) != (inside == EMBEDDED):
        return OwnJob()
    if cluster and environ.get("SLURM_CLUSTER_NAME", cluster) != cluster:
        return OwnJob()  # each cluster counts for itself
    names = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID", "SLURM_HET_JOB_ID")
    ids = (environ.get(name, "") for name in names)
    found = frozenset(int(value) for value in ids if value.isascii() and value.isdecimal() and len(value) < 19)
    return OwnJob(found - {0}, environ.get("SLURM_JOB_NAME", "") if found - {0} else "")
