"""Tracks the jobs that slots have queued, with one query for all.

Each job that has not ended is an empty file, `jobs/<key>@<slot>@<job>@<scheduler>`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from resilience.cron.records import Entry, Outcome, RunRecord
from resilience.errors import ResilError
from resilience.job import Job, JobId, JobState, Liveness
from resilience.system.files import explain_os_error, make_directory

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.schedulers import Scheduler


class QueuedJob(NamedTuple):
    """A job queued by a slot and not known to have ended."""

    key: str
    slot: int
    job_id: JobId
    scheduler: str

    @property
    def file_name(self) -> str:
        """File name in `jobs/`."""
        return f"{self.key}@{self.slot}@{self.job_id}@{self.scheduler}"


def follow(cron: CronProject, entries: dict[str, Entry]) -> Iterator[tuple[QueuedJob, RunRecord | None]]:
    """Query the jobs queued earlier; yield each with its record, already in the history, or None if it has not ended.

    Raise SchedulerUnavailable if the queue does not answer. A job unknown to the scheduler counts as not ended until it
    is certainly gone.
    """
    queued = queued_jobs(cron)
    for name in dict.fromkeys(job.scheduler for job in queued):
        scheduler = cron.project.scheduler(name)
        ids = {job.job_id.array for job in queued if job.scheduler == name}
        rows = scheduler.jobs(finished=True, keep=lambda number, *_, ids=ids: number in ids)
        for job in (job for job in queued if job.scheduler == name):
            found = [row for row in rows if row.id.array == job.job_id.array]
            record = _ending(cron, job, found, scheduler, entries.get(job.key))
            if record is not None:
                cron.state.record(job.key, record)
                forget(cron, job)
            yield job, record


def queued_jobs(cron: CronProject) -> tuple[QueuedJob, ...]:
    """Return the jobs not known to have ended, oldest slot first. Raise StateDirectoryError if they are unreadable."""
    directory = cron.state.path / "jobs"
    try:
        names = os.listdir(directory)  # noqa: PTH208 - names only
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise explain_os_error(error, "read", directory) from error
    found = []
    for name in names:
        with suppress(ValueError, ResilError):
            rest, job_id, scheduler = name.rsplit("@", 2)
            key, _, slot = rest.rpartition("@")
            found.append(QueuedJob(key, int(slot), JobId.parse(job_id), scheduler))
    return tuple(sorted(found, key=lambda job: (job.slot, job.key)))


def forget(cron: CronProject, job: QueuedJob) -> None:
    """Delete the file of a job that has ended."""
    with suppress(OSError):
        (cron.state.path / "jobs" / job.file_name).unlink()


def remember(cron: CronProject, key: str, record: RunRecord) -> QueuedJob:
    """Create the file of a queued job. Raise StateDirectoryError if it cannot be written."""
    job = QueuedJob(key, record.slot, JobId.parse(record.job_id), cron.project.scheduler().name)
    directory = cron.state.path / "jobs"
    make_directory(directory, mode=cron.state.directory_mode)
    path = directory / job.file_name
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, cron.state.file_mode))
    except OSError as error:
        raise explain_os_error(error, "write", path) from error
    return job


def _ending(
    cron: CronProject, job: QueuedJob, rows: Sequence[Job], scheduler: Scheduler, entry: Entry | None
) -> RunRecord | None:
    if any(row.state.is_alive for row in rows):
        return None
    if not rows:  # ended before the queue's MinJobAge, or the controller lost its state
        presence = scheduler.presence(job.job_id, mine=True)
        if presence.liveness is not Liveness.GONE:
            return None
        rows = [presence.job] if presence.job is not None else []
    name = entry.name if entry is not None else job.key.replace("+", "/")
    if not rows:
        summary = f"job {job.job_id} has ended; the scheduler no longer knows its result"
        return replace(record_of(cron, name, job.slot, Outcome.SUBMITTED, summary=summary), job_id=str(job.job_id))
    ok = entry.options.ok if entry is not None else (0,)
    worst = max(rows, key=lambda row: (_outcome(row, ok).is_failure, row.id))
    return replace(
        record_of(cron, name, job.slot, _outcome(worst, ok), summary=_words(worst)),
        started=worst.start_time,
        exit_code=_exit_code(worst),
        job_id=str(job.job_id),
        host=worst.nodes,
        time=worst.end_time or cron.project.system.clock.now(),
        output=f"{job.job_id}.out" if _has_output(cron, job) else "",
    )


def _words(job: Job) -> str:
    code = job.exit_code
    how = "" if code is None or (code.status, code.signal) == (0, 0) else f", exit code {code.status}"
    how = f", signal {code.signal}" if code is not None and code.signal else how
    return f"job {job.id} ended: {job.state}{how}"


def _outcome(job: Job, ok: Collection[int]) -> Outcome:
    if job.state is JobState.COMPLETED or (job.state is JobState.FAILED and _exit_code(job) in ok):
        return Outcome.DONE
    return Outcome.TIMEOUT if job.state is JobState.TIMEOUT else Outcome.FAILED


def _exit_code(job: Job) -> int | None:
    if job.exit_code is None:
        return None
    return 128 + job.exit_code.signal if job.exit_code.signal else job.exit_code.status


def prune(cron: CronProject, key: str, alive: Collection[int]) -> None:
    """Delete the outputs of an entry except the newest ones and those of running jobs."""
    directory = cron.state.path / "output" / key
    with suppress(OSError):
        names = os.listdir(directory)  # noqa: PTH208 - names only
        numbers = sorted(int(n.removesuffix(".out")) for n in names if n.endswith(".out") and n[:-4].isdecimal())
        for number in numbers[: -cron.settings.keep_runs or None]:
            if number not in alive:
                with suppress(OSError):
                    (directory / f"{number}.out").unlink()


def _has_output(cron: CronProject, job: QueuedJob) -> bool:
    return (cron.state.path / "output" / job.key / f"{job.job_id}.out").is_file()


def record_of(cron: CronProject, name: str, slot: int, outcome: Outcome, *, summary: str) -> RunRecord:
    """Return a history record; the summary is one line without secrets."""
    from resilience.system.redaction import redact

    system = cron.project.system
    line = redact(" ".join(summary.split()))[:500]
    return RunRecord(
        name=name, slot=slot, outcome=outcome, time=system.clock.now(), host=system.host.name, summary=line
    )  # fmt: skip
