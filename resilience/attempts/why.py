"""Gathers the evidence of an attempt, or of a log alone, and classifies it: `resil why`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.attempts.breaker import looked_at, with_decisions
from resilience.attempts.classify import Evidence, classify
from resilience.attempts.failure import Failure, FailureClass
from resilience.attempts.ledger import TAIL_BYTES, ended_attempts, evidence_of, kept_end, read_end, read_ledger
from resilience.attempts.reconcile import records_of, with_state
from resilience.errors import SchedulerError, UsageError
from resilience.job import Job, JobId
from resilience.runs.attempts import Attempt
from resilience.runs.breaker_file import closings
from resilience.runs.run_files import attempt_numbers
from resilience.runs.run_jobs import scheduler_of
from resilience.runs.run_logs import logs_of, start_of_attempt
from resilience.runs.submissions import read_intents

if TYPE_CHECKING:
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory


RECENT_S = 120.0
"""A log that was written since may be of a program that runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why an attempt ended.

    Attributes:
        run: its run; empty for a log alone.
        attempt: number of the attempt; None for a log alone.
        job: displayed id of its job; may be empty.
        logs: files that were read.
        failure: the classification.
        decided: what was decided then; empty for a log alone.
        is_whole: whether the numbers of quoted lines are those of the file: there is one log, and it was read whole.
        notes: evidence that could not be read, one sentence each.
    """

    run: str = ""
    attempt: int | None = None
    job: str = ""
    logs: tuple[str, ...] = ()
    failure: Failure
    decided: str = ""
    is_whole: bool = True
    notes: tuple[str, ...] = ()


def why_of_log(path: Path, now: float) -> Why:
    """Classify the end of any log, read at `now` seconds since the epoch.

    Raise StateDirectoryError if it cannot be read.
    """
    failure = classify(Evidence(log=read_end(path)))
    notes = []
    with suppress(OSError):
        if failure.failure is FailureClass.UNKNOWN and 0 <= (silent_s := now - path.stat().st_mtime) <= RECENT_S:
            notes.append(f"{path} was written {silent_s:.0f} s ago: the program may still run")
    return Why(logs=(str(path),), failure=failure, is_whole=_is_whole([str(path)]), notes=tuple(notes))


def _is_whole(logs: Sequence[str]) -> bool:
    with suppress(OSError):
        return len(logs) < 2 and all(Path(log).stat().st_size <= TAIL_BYTES for log in logs)
    return False


def why_of_run(project: Project, directory: RunDirectory, job: JobId | None = None) -> Why:
    """Classify the last attempt of a run that ended, or that of a job: anew where its log is left, else as it is kept.

    Raise UsageError if there is no such attempt.
    """
    attempt, last = _attempts(directory, job)
    notes: list[str] = []
    intents = read_intents(directory)
    records: Mapping[int, Job] = {}
    try:
        records = records_of(project.scheduler(scheduler_of(intents)), directory, [attempt, last])
    except SchedulerError as error:
        notes.append(f"the scheduler was not asked: {error.message}")
    attempt = last if last.number in records else attempt
    logs = logs_of(directory, start_of_attempt(attempt), intents)
    evidence = evidence_of(directory, attempt, notes)
    kept = kept_end(directory, attempt)
    if kept is not None and kept.state is not None:
        evidence = replace(evidence, state=kept.state)
    if attempt.number in records:
        evidence = with_state(evidence, records[attempt.number])
    failure = classify(evidence) if kept is None or evidence.log else kept.failure
    if attempt.end is None and evidence.state is None:
        notes.append(f"attempt {attempt.number} has recorded no end: it may still run")
    policy = project.loaded.settings.act
    later = sum(number > attempt.number for number in attempt_numbers(directory))
    rows = read_ledger(directory, newest=later + looked_at(policy))
    rows = with_decisions(rows, policy, project.system.clock.now(), closings=closings(directory))
    own = next((row for row in rows if row.attempt == attempt.number), None)
    notes += [f"a fault was injected on purpose: {one}" for one in (own.injected if own is not None else ())]
    decided = own.decided if own is not None else ""
    return Why(
        run=directory.run, attempt=attempt.number, job=attempt.label, logs=logs, failure=failure, decided=decided,
        is_whole=_is_whole(logs), notes=tuple(notes),
    )  # fmt: skip


def _attempts(directory: RunDirectory, job: JobId | None) -> tuple[Attempt, Attempt]:
    """Return the last attempt that is known to have ended, and the last; if none is known, the last twice."""
    attempts = ended_attempts(directory)
    if job is not None:
        attempts = [one for one in attempts if str(job) in (one.label, str(one.job_id))]
    if not attempts:
        of_job = f" of job {job}" if job is not None else ""
        raise UsageError(
            f"run {directory.run} has no attempt{of_job}",
            hint=f"find its log with resil logs {directory.run} --path, then: resil why LOG",
        )
    return next((one for one in reversed(attempts) if one.end is not None), attempts[-1]), attempts[-1]
