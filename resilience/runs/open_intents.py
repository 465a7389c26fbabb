"""Submissions whose fate is not known: looked up by their token before anything else is queued."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from resilience.errors import SchedulerUnavailable
from resilience.job import JobId
from resilience.quantities import format_duration
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import Outcome, read_intents, record_result
from resilience.schedulers import Scheduler
from resilience.system.world import is_account

IN_FLIGHT_S = 120.0
"""An open intent younger than this may be another `resil submit` that is at it right now."""

SECOND_LOOK_S = 3.0
"""A controller that has just come back takes up an old request a moment after it answers a new question."""


def refuse_if_another_was_first(directory: RunDirectory, token: str, known: Collection[str], now: float) -> None:
    """Give way to another submit of the run that journalled its intent before ours and that we did not know of.

    Two people press return at once: each looks, sees no job, and journals. Lines of a journal have an order, so that
    exactly one of them was first. Raise SchedulerUnavailable, having journalled that ours was not sent.
    """
    for intent in read_intents(directory):
        if intent.token == token:
            return
        is_at_it = intent.outcome is Outcome.OPEN and now - intent.time < IN_FLIGHT_S
        if intent.token not in known and (is_at_it or intent.outcome is Outcome.SUBMITTED):
            record_result(directory, token, Outcome.REFUSED, now, why=f"gave way to {intent.token}")
            raise SchedulerUnavailable(
                f"another submit of run {directory.run}{f' by {intent.by}' if intent.by else ''} was first",
                hint=f"see what it queued: resil status {directory.run} --fresh; queue behind it: --after auto",
            )


def settle_open_intents(
    project: Project, directory: RunDirectory, scheduler: Scheduler, progress: Callable[[str], None]
) -> Iterator[JobId]:
    """Look up every submission whose fate is not known, journal what became of it, and yield the jobs found.

    Raise SchedulerUnavailable if one cannot be looked up, or is so young that another submit may be at it.
    """
    now = project.world.clock.now()
    for intent in read_intents(directory):
        if intent.outcome not in (Outcome.OPEN, Outcome.UNCERTAIN) or intent.scheduler != scheduler.name:
            continue
        by = intent.by if is_account(intent.by) else ""
        found = scheduler.find(intent.token, user=by)
        age_s = now - intent.time
        in_flight = intent.outcome is Outcome.OPEN
        if not found and not (in_flight and abs(age_s) < IN_FLIGHT_S):
            project.world.clock.sleep(SECOND_LOOK_S)
            found = scheduler.find(intent.token, user=by)
        if found:
            job_id = found[0].id.whole
            record_result(directory, intent.token, Outcome.SUBMITTED, now, job_id=job_id, why="found by its token")
            progress(f"a submit whose end was not journalled did queue job {job_id}")
            yield job_id
        elif in_flight and age_s < -IN_FLIGHT_S:
            raise SchedulerUnavailable(
                f"another submit of run {directory.run} is dated {format_duration(-age_s)} in the future",
                hint="compare `date` on your login nodes; it may be at it right now",
            )
        elif in_flight and age_s < IN_FLIGHT_S:
            raise SchedulerUnavailable(
                f"another submit of run {directory.run} began {max(0.0, age_s):.0f} s ago and has not ended",
                hint=f"wait for it; if it was cut off, try again in {IN_FLIGHT_S - age_s:.0f} s",
            )
        else:
            record_result(directory, intent.token, Outcome.REFUSED, now, why="not found in the queue, by two looks")
