"""Finds out whether a submission without a known outcome queued a job: by its token in the queue, then in accounting.

`submit`, `status` and `watch job` all use this, so that they agree; the outcome is journalled by the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from resilience.errors import NotSupported, ResilError, SchedulerError, SchedulerUnavailable
from resilience.job import JobId
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import Intent, Outcome, record_result
from resilience.schedulers import Scheduler
from resilience.switch import describe_age
from resilience.system.ports import Clock, is_account

IN_FLIGHT_S = 120.0
"""A submission without any result, younger than this, may belong to another `resil submit` that is still running."""
UNCERTAIN_S = 30.0
"""How long after a failed sbatch its job may appear: three times MessageTimeout (10 s by default)."""
SECOND_QUERY_S = 3.0
"""A restarted controller processes an old request a moment after it answers a new query."""
_UNKNOWN = (Outcome.OPEN, Outcome.UNCERTAIN)


class AccountingUnavailable(SchedulerUnavailable):
    """The queue has no job of a submission, and accounting does not answer: its job may have run and ended."""


def unsettled(intents: Sequence[Intent], now: float) -> str:
    """Return a description of the newest submission if its outcome is unknown; otherwise empty. Pure."""
    if not intents or intents[-1].outcome not in _UNKNOWN:
        return ""
    newest = intents[-1]
    by = f" by {newest.by}" if newest.by else ""
    age_s = now - newest.time
    if newest.outcome is Outcome.OPEN and abs(age_s) < IN_FLIGHT_S:
        return f"a submission{by} began {max(0.0, age_s):.0f} s ago and is in progress"
    if not can_settle(newest, now):
        return f"the outcome of a submission{by} is not known yet"
    return (
        f"the outcome of a submission{by}{describe_age(age_s)} is not known: the queue or accounting did not answer;"
        " `resil submit` asks again, and queues a job unless one is alive"
    )


def can_settle(intent: Intent, now: float) -> bool:
    """Return whether the outcome of an intent is unknown, and old enough to be looked up. Pure."""
    least_s = IN_FLIGHT_S if intent.outcome is Outcome.OPEN else UNCERTAIN_S
    return intent.outcome in _UNKNOWN and abs(now - intent.time) >= least_s


def look_up(intent: Intent, scheduler: Scheduler, clock: Clock) -> JobId | None:
    """Return the job or array that a submission queued, or None if two queries of the queue, and accounting if there is
    any, do not have its token.

    Raise SchedulerUnavailable if the queue cannot be queried, AccountingUnavailable if it has no such job and
    accounting cannot be queried.
    """
    by = intent.by if is_account(intent.by) else ""
    found = scheduler.find(intent.token, user=by)
    if not found and (intent.outcome is Outcome.UNCERTAIN or can_settle(intent, clock.now())):
        clock.sleep(SECOND_QUERY_S)
        found = scheduler.find(intent.token, user=by)
        if not found:
            try:
                found = scheduler.find_past(intent.token, since=intent.time, user=by)
            except NotSupported:
                pass  # the queue has the jobs of the last minutes, and nothing else knows older ones
            except SchedulerError as error:
                raise AccountingUnavailable(error.message, hint=error.hint) from error
    return found[0].id.whole if found else None


def record(directory: RunDirectory, intent: Intent, job_id: JobId | None, now: float) -> None:
    """Journal the outcome of a look-up. Raise StateDirectoryError on failure."""
    if job_id is None:
        record_result(directory, intent.token, Outcome.REFUSED, now, why="not found in the queue by two queries")
    else:
        record_result(directory, intent.token, Outcome.SUBMITTED, now, job_id=job_id, why="found by its token")


def settle(directory: RunDirectory, intents: Sequence[Intent], scheduler: Scheduler, clock: Clock) -> bool:
    """Look up the newest submission if its outcome is unknown and old enough, and journal it.

    Return whether the journal has changed. A scheduler that does not answer, or a journal that cannot be written, leave
    it as it is.
    """
    now = clock.now()
    if not intents or not can_settle(intents[-1], now) or intents[-1].scheduler != scheduler.name:
        return False
    try:
        record(directory, intents[-1], look_up(intents[-1], scheduler, clock), now)
    except ResilError:
        return False
    return True
