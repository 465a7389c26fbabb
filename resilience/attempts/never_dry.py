"""Keeps a run from running dry: queues its last script again while too few jobs wait behind the running one.

A job that starts does this (cli/keep_queued.py), and each tick of a watchdog. Exactly once per need: the submissions of
the run are read before the queue, so that a submit which was journalled meanwhile, or had no result then, is one that
has met the need, whoever made it (runs/submit.py yields to it).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from resilience import layout
from resilience.attempts.elsewhere import note_submitted
from resilience.attempts.without import without_bad_nodes
from resilience.errors import (
    HostlistError,
    SchedulerError,
    SchedulerUnavailable,
    StateDirectoryError,
    SubmissionUncertain,
)
from resilience.hostlist import expand, fold
from resilience.messages import plural
from resilience.runs.breaker_file import read_breaker
from resilience.runs.run_jobs import handle_of, jobs_of_run, newest, requeues_itself, scheduler_of
from resilience.runs.submissions import (
    Deed,
    Intent,
    Outcome,
    excluded_by_user,
    newest_intent,
    option_of,
    read_journal,
)
from resilience.runs.submit import perform, prepare
from resilience.runs.submit_plan import SubmitRequest
from resilience.runs.switches import policy_of_run, read_switch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resilience.job import Job
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory

PAUSE_S = 1800.0
"""After a refused submission: a limit of the site, which the next minute does not change."""


def keep_queued(project: Project, directory: RunDirectory) -> str:
    """Queue what is missing. Return a sentence about that, or an empty text.

    Raise SchedulerUnavailable if the scheduler does not answer, StateDirectoryError if the run cannot be read.
    """
    settings, now = project.loaded.settings.act, project.system.clock.now()
    journal = read_journal(directory)  # before the queue
    last = newest_intent(journal.intents)
    if not settings.keep_queued or last is None or not last.script or last.adopted:
        return ""
    if _is_paused(journal.intents, now) or requeues_itself(directory, journal.intents):
        return ""
    if journal.done is not None and journal.done.deed in (Deed.CANCELLED, Deed.CANCELLED_PENDING):
        return ""
    if directory.is_finished() or _is_killed(directory) or read_breaker(directory) is not None:
        return ""
    jobs = project.scheduler(scheduler_of(journal.intents)).jobs()
    live = [job for job in jobs_of_run(jobs, directory.run, journal.intents) if job.state.is_alive]
    missing = settings.keep_queued - sum(job.task_count for job in live if job.state.is_waiting)
    behind = newest(live, journal.intents)
    if behind is None or missing <= 0:
        return ""  # without a live job, somebody or something has ended the run
    if project.loaded.settings.nodes.spares:
        missing = 1  # SLURM starts the next task of an array when the running one loses a node
    what = f"{plural(missing, 'job')} behind {handle_of(behind, journal.intents)} of run {directory.run}"
    if not settings.enabled:
        return f"it would queue {what} if [act] were enabled"
    return _queue(project, directory, journal.intents, last, missing, behind) or f"queued {what}"


def _queue(
    project: Project, directory: RunDirectory, intents: Sequence[Intent], last: Intent, missing: int, behind: Job
) -> str:
    """Queue an array of the last script. Return an empty text, or why nothing was queued."""
    args = last.argv[last.argv.index(last.script) + 1 :] if last.script in last.argv else ()
    project = _with_scheduler(project, scheduler_of(intents))
    request = SubmitRequest(
        run=directory.run,
        script=Path(last.script),
        script_args=tuple(args),
        array=str(missing),
        after=handle_of(behind, intents),
        exclude=_still_there(project, excluded_by_user(last)),  # resil's own may be good again
        time=option_of(last, "time"),
    )
    request, avoided, _ = without_bad_nodes(project, request)
    # The queue may have been asked before the job of a submission without a result appeared there.
    settled = {intent.token for intent in intents if intent.outcome in (Outcome.SUBMITTED, Outcome.REFUSED)}
    try:
        result = perform(project, prepare(project, request), seen=settled)
        with suppress(StateDirectoryError):  # then it is not taken back
            note_submitted(directory, result.ids, avoided, project.system.clock.now())
    except (SubmissionUncertain, SchedulerUnavailable):  # or another submit was first
        raise
    except SchedulerError as error:
        return f"run {directory.run} may run dry, no job could be queued: {error.message}"
    return ""


def _still_there(project: Project, exclude: str) -> str:
    """Return the nodes of the list that there are, if that is known: sbatch refuses a job that names one that is gone,
    and the run would run dry."""
    with suppress(SchedulerError, HostlistError):
        known = {node.name for node in project.scheduler().nodes()} if exclude else set()
        if known:
            return fold(known.intersection(expand(exclude)))
    return exclude


def _with_scheduler(project: Project, name: str) -> Project:
    """Return the project with the scheduler of the run, which may not be that of its settings."""
    settings = project.loaded.settings
    settings = replace(settings, scheduler=replace(settings.scheduler, name=name))
    return replace(project, loaded=project.loaded._replace(settings=settings))


def _is_paused(intents: Sequence[Intent], now: float) -> bool:
    last = next((one for one in reversed(intents) if not one.gave_way), None)
    return last is not None and last.outcome is Outcome.REFUSED and now - last.time < PAUSE_S


def _is_killed(directory: RunDirectory) -> bool:
    switch = read_switch(directory, layout.KILL_SWITCH, policy_of_run(directory))
    return switch is not None and switch.honoured
