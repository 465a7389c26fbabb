"""Adds what the scheduler says to the ended attempts of a run, while it remembers them: at a submit and at each tick.

Without accounting SLURM forgets a job minutes after its end (slurm.conf, MinJobAge). The answer is kept beside the
attempt; an attempt is queried for until it was answered, for an hour at the most, and all of them with one query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from resilience.attempts.classify import classify
from resilience.attempts.ledger import KeptEnd, end_of, ended_attempts, evidence_of, keep_end
from resilience.errors import NotSupported
from resilience.job import Job, JobId
from resilience.runs.run_files import read_attempts
from resilience.runs.run_jobs import scheduler_of
from resilience.runs.submissions import read_intents

if TYPE_CHECKING:
    from resilience.attempts.classify import Evidence
    from resilience.runs.attempts import Attempt
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory
    from resilience.schedulers import Scheduler

NEWEST = 20
LATE_S = 3600.0
"""How long accounting may take to record an end."""
SAME_START_S = 900.0
"""The batch shell starts soon after its job: a prolog takes minutes."""
CLOCKS_S = 5.0
"""How far the clocks of nodes may differ. The next run of a requeued job starts at least this long after the shell."""


def reconcile(project: Project, directory: RunDirectory) -> int:
    """Add the scheduler's records to the newest ended attempts that have none, and return how many.

    Raise StateDirectoryError if the run cannot be read, SchedulerError if the scheduler does not answer; nothing is
    lost then.
    """
    now = project.system.clock.now()
    ends = [(one, end_of(directory, one)) for one in ended_attempts(directory, NEWEST) if one.end is not None]
    open_ends = [(attempt, kept) for attempt, kept in ends if not kept.is_reconciled]
    if not open_ends:
        return 0
    scheduler = project.scheduler(scheduler_of(read_intents(directory)))
    records = records_of(scheduler, directory, [attempt for attempt, _ in open_ends])
    count = 0
    for attempt, kept in open_ends:
        job = records.get(attempt.number)
        if job is not None:
            count += 1
            keep_end(directory, attempt, with_record(directory, attempt, kept, job))
        elif now - (attempt.end_time or attempt.start_time) > LATE_S:
            keep_end(directory, attempt, replace(kept, is_reconciled=True))
    return count


def with_record(directory: RunDirectory, attempt: Attempt, kept: KeptEnd, job: Job) -> KeptEnd:
    """Return an end with what the scheduler says, classified again."""
    evidence = with_state(evidence_of(directory, attempt), job)
    return replace(
        kept,
        failure=classify(evidence),
        is_reconciled=True,
        state=job.state,
        end_time=job.end_time,
        exit_code=evidence.exit_code,
        nodes=job.nodes,
    )


def with_state(evidence: Evidence, job: Job) -> Evidence:
    """Return evidence with the final state of its job."""
    by = f"CANCELLED by {job.cancelled_by}" if job.cancelled_by else ""
    code = evidence.exit_code
    if code is None and job.exit_code is not None:
        code = job.exit_code.status or (128 + job.exit_code.signal if job.exit_code.signal else 0)
    return replace(evidence, state=job.state, state_text=by, exit_code=code)


def records_of(scheduler: Scheduler, directory: RunDirectory, attempts: Sequence[Attempt]) -> Mapping[int, Job]:
    """Return the final records of attempts by their numbers: of the accounting, else of the queue.

    A requeued job, and a job id that was used again, have several records: that of an attempt started with it. Of the
    attempts that a job with spares began one after the other, only the last has its record. Raise SchedulerError.
    """
    newest = {(one.job_id, one.restart): one.number for one in read_attempts(directory, NEWEST)}
    attempts = [one for one in attempts if newest.get((one.job_id, one.restart), one.number) == one.number]
    ids = {JobId.parse(one.label) for one in attempts if one.job_id and one.label[:1].isdecimal()}
    arrays = {one.array for one in ids}
    records: tuple[Job, ...] = ()
    with suppress(NotSupported):
        records = scheduler.history(ids)
    if not records:
        records = scheduler.jobs(finished=True, keep=lambda number, *_: number in arrays)
    found = {}
    for attempt in attempts:
        for job in records:
            is_same = job.start_time is None or -CLOCKS_S <= attempt.start_time - job.start_time <= SAME_START_S
            if job.raw_id == attempt.job_id and job.state.is_final and is_same:
                found[attempt.number] = job
    return found
