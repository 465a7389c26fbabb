"""Which jobs of a run live, asked so that one empty answer never reads as dead."""

from __future__ import annotations

from collections.abc import Sequence

from resilience.errors import SchedulerError, SchedulerUnavailable
from resilience.job import Job, JobId, Liveness
from resilience.runs.jobs_of import newest
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_jobs import jobs_of_run, submitters
from resilience.runs.submissions import Intent, Outcome, read_intents
from resilience.schedulers import Scheduler
from resilience.submission import split_comment


def live_jobs(scheduler: Scheduler, directory: RunDirectory, me: str) -> tuple[Job, ...]:
    """The live jobs of a run, whoever submitted them; `me` is the login name of who asks.

    Raise SchedulerUnavailable if the scheduler does not say, or if it shows none and a second look cannot confirm it.
    """
    if not directory.exists():
        return ()  # never submitted from here
    intents = read_intents(directory)
    people = submitters(directory, intents, me)
    jobs = scheduler.jobs(users=None if people == (me,) else people)
    alive = tuple(job for job in jobs_of_run(jobs, directory.run, intents) if job.state.is_alive)
    return alive or confirm_gone(scheduler, directory, intents, me)


def confirm_gone(scheduler: Scheduler, directory: RunDirectory, intents: Sequence[Intent], me: str) -> tuple[Job, ...]:
    """Look again at the job submitted last, which the queue did not show; return it if it lives after all.

    Raise SchedulerUnavailable if that cannot be found out: an empty answer alone proves nothing.
    """
    known = [i for i in intents if i.outcome is Outcome.SUBMITTED and i.scheduler == scheduler.name and i.job_id]
    if not known or known[-1].job_id is None:
        return ()
    presence = scheduler.presence(known[-1].job_id, mine=known[-1].by in ("", me))
    if presence.liveness is Liveness.UNKNOWN:
        raise SchedulerUnavailable(
            f"the queue shows no job of run {directory.run}, and whether job {known[-1].job_id} lives cannot be "
            f"confirmed: {presence.reason}",
            hint="try again in a minute; if you know that it is over: --force",
        )
    job = presence.job
    if presence.liveness is Liveness.GONE or job is None:
        return ()
    mark = split_comment(job.comment)
    # SLURM gives an id away twice after a crash: a job with somebody else's token is not ours.
    if mark is None:  # the site overwrites comments, or it is a stranger's
        return (job,) if job.user in ("", *submitters(directory, intents, me)) else ()
    return (job,) if mark[1] in {intent.token for intent in intents} else ()


def resolve_after(project: Project, run: str, after: str) -> JobId:
    """Given what follows `--after`, return the job to queue behind.

    `auto` is the newest live job of the run. Raise SchedulerError if that job is not in the queue any more, and
    SchedulerUnavailable if the scheduler does not say.
    """
    scheduler = project.scheduler()
    if after != "auto":
        job_id = JobId.parse(after).whole  # a task that ended says nothing about those behind it
        presence = scheduler.presence(job_id)
        if presence.liveness is Liveness.UNKNOWN:
            raise SchedulerUnavailable(
                f"cannot tell whether job {job_id} is alive: {presence.reason}", hint="nothing was queued; try again"
            )
        if presence.liveness is Liveness.GONE:
            raise SchedulerError(
                f"job {job_id} is not in the queue: {presence.reason}",
                hint="submit without --after, or see: resil status",
            )
        return presence.job.id.whole if presence.job is not None else job_id
    directory = project.directory(run)
    alive = live_jobs(scheduler, directory, project.world.host.user)
    job = newest(alive)
    if job is None:
        raise SchedulerError(f"run {run} has no job in the queue to wait for", hint="submit without --after")
    return job.id.whole
