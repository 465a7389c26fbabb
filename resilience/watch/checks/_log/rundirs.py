"""Reads run directories: the current attempt, its logs, heartbeat, journalled losses, and end."""

# pathlib takes three times as long, and there are ten thousand paths in a tick.
# ruff: noqa: PTH116

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from resilience import layout
from resilience.errors import ResilError
from resilience.job import Job, JobState
from resilience.runs.attempts import Attempt
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import last_beat, read_attempts, read_tail
from resilience.runs.run_jobs import Queues
from resilience.runs.run_logs import logs_by_age, logs_of, start_of_attempt, start_of_job
from resilience.runs.submissions import Intent, newest_intent, own_script_of, read_journal
from resilience.system.files import read_regular
from resilience.watch.checks._log.losses import (
    MOST_IN_A_ROW,
    MOST_JOURNALS,
    Event,
    Training,
    parse_events,
    trainings_of,
)

JOURNAL_BYTES = 32768
"""How much of the end of a journal is read: some 250 events, or the longest possible line."""
MOST_BESIDE = 64
"""The most jobs of one run whose logs are judged beside that of the newest job."""
MOST_LOGS = 4096
"""The most logs of one run: one per rank is common."""
RUN_IS_FINISHED = "the run is finished"
LOG_IT = "write it to a file (sbatch -o), or call the guard in the training"


@dataclass(frozen=True, slots=True)
class RunNow:
    """The current state of a run.

    Attributes:
        attempt: the newest one; None if none has started.
        job_id: as in the names of heartbeats and journals; empty if nothing has started.
        over: why no progress is expected; empty while it is.
        ended: when it ended, in seconds since the epoch; 0 if unknown.
        logs: the paths of the attempt's logs, or of the log written to last.
        notes: further information for the user.
        label: the displayed id of the job; `began` is when it started, in seconds since the epoch, 0 if unknown.
        unsure: why it is unknown whether the job runs; empty if it is known.
        beside: the other running jobs of a user's own script, such as tasks of an array without a limit.
    """

    attempt: Attempt | None
    job_id: str
    over: str
    ended: float
    logs: tuple[str, ...]
    notes: tuple[str, ...] = ()
    label: str = ""
    began: float = 0.0
    unsure: str = ""
    beside: tuple[RunNow, ...] = ()


def run_now(directory: RunDirectory, now: float, queues: Queues) -> RunNow:
    """Return the current state of a run. Raise StateDirectoryError if it cannot be read.

    The queue is queried only for runs with a user's own script, whose jobs record neither their start nor their end.
    """
    attempts = read_attempts(directory, newest=1)
    attempt = attempts[-1] if attempts else None
    journal = read_journal(directory)
    intents = journal.intents
    if journal.copied_from and newest_intent(intents) is None:
        return RunNow(None, "", f"it is a copy of {journal.copied_from}", now, ())
    own = _own_run(directory, intents, queues, now) if own_script_of(directory, intents) else None
    if own is not None:
        return own
    job_id = str(attempt.job_id) if attempt is not None else _newest_job(directory.path / layout.BEATS)
    over, ended = _over(directory, attempt, job_id)
    notes: list[str] = []
    if attempt is not None and not over:
        beat = last_beat(directory, attempt)
        if beat is not None and now - beat > 600:
            notes.append(f"no heartbeat of the batch shell of job {attempt.label} for {(now - beat) / 60:.0f} min")
    logs = logs_of(directory, start_of_attempt(attempt), intents) if attempt is not None else ()
    label, began = (attempt.label, attempt.start_time) if attempt is not None else (job_id, 0.0)
    newest = tuple(map(str, logs_by_age(directory)[-1:]))
    return RunNow(attempt, job_id, over, ended, logs[:MOST_LOGS] or newest, tuple(notes), label, began)


def _own_run(directory: RunDirectory, intents: Sequence[Intent], queues: Queues, now: float) -> RunNow | None:
    """Return the state of a run with a user's own script: that of its newest job, according to the queue.

    None if that job runs a rendered script, with own ones queued behind it, or if no job was ever queued.
    """
    scheduler, jobs, answer = queues.jobs_of(directory, intents)
    started = [job for job in jobs if not job.state.is_waiting and job.start_time is not None]
    lead = max(started, key=lambda job: (job.state.is_alive, job.start_time, job.raw_id), default=None)
    known = {intent.job_id.array: intent for intent in intents if intent.job_id is not None}
    of_lead = known.get(lead.id.array) if lead is not None else None
    if not known or (of_lead is not None and not own_script_of(directory, (of_lead,))):
        return None
    unsure = answer.trouble if answer.trouble or answer.is_known else "the scheduler did not answer"
    paths = logs_by_age(directory, intents)[-1:]
    if lead is None:
        over, ended = _over(directory, None, "")
        if not over and not unsure and jobs:
            over, ended = "no job of it has started", now
        elif not over and not unsure:  # ended longer ago than the scheduler remembers
            over, ended = "the queue shows no job of it", max(map(_mtime, map(str, paths)), default=0.0)
        return RunNow(None, "", over, ended, tuple(map(str, paths)), unsure=unsure)

    def job_now(job: Job) -> RunNow:
        label = str(job.id)
        over, ended = _over(directory, None, str(job.raw_id))
        if not over and job.state.is_final:
            code = job.exit_code
            how = "" if code is None else f", signal {code.signal}" if code.signal else f", exit code {code.status}"
            over, ended = f"job {label} is over: {job.state}{how}", job.end_time or now
        intent = known.get(job.id.array)
        logs = logs_of(directory, start_of_job(job), intents)[:MOST_LOGS]
        notes = [f"the output of job {label} goes to {intent.output}"] if intent is not None and intent.output else []
        is_asked = not logs and not over and (job is lead or job.stdout)  # one query of the scheduler, not one per task
        if is_asked and (path := queues.stdout_of(scheduler, job)) is not None:
            logs = (str(path),)
        target = next((path for path in (intent.output if intent is not None else "", job.stdout) if path), "")
        if not (logs or over or beat_files(directory, str(job.raw_id))) and _is_device(target):
            over, ended = f"the output of job {label} goes to {target}, so there is no log to watch: {LOG_IT}", now
        began = job.start_time or 0.0
        return RunNow(None, str(job.raw_id), over, ended, logs, tuple(notes), label, began, unsure)

    others = sorted((job for job in started if job.state is JobState.RUNNING and job.id != lead.id), key=lambda j: j.id)
    own = [job for job in others if (one := known.get(job.id.array)) is None or own_script_of(directory, (one,))]
    return replace(job_now(lead), beside=tuple(map(job_now, own[:MOST_BESIDE])))


def _over(directory: RunDirectory, attempt: Attempt | None, job_id: str) -> tuple[str, float]:
    with suppress(OSError):
        ended = (directory.path / layout.FINISHED).stat().st_mtime
        return RUN_IS_FINISHED, ended
    if attempt is not None and attempt.end is not None:
        code = "" if attempt.exit_code is None else f", exit code {attempt.exit_code}"
        return f"job {attempt.label} is over: {attempt.end.value}{code}", attempt.end_time or 0.0
    if attempt is None and job_id:
        return _journal_end(f"{directory.path}/{layout.JOURNAL}/{job_id}.0.jsonl")
    return "", 0.0


def _journal_end(path: str) -> tuple[str, float]:
    """Return the end from the last event of rank 0's journal, for jobs without the batch shell of a template."""
    with suppress(OSError):
        for event in parse_events(read_tail(path, JOURNAL_BYTES)[0])[-1:]:
            if event.name == "end":
                return f"the guard was closed at step {event.step}", event.time
    return "", 0.0


def read_trainings(directory: RunDirectory, job_id: str, *, earlier: bool) -> list[Training]:
    """Return the trainings in a job's readable journals, oldest first.

    With `earlier`, also those of previous attempts, back to the first one that its loss did not stop. Raise
    StateDirectoryError if the attempts cannot be read.
    """
    jobs = [job_id]
    if earlier:
        jobs += [str(attempt.job_id) for attempt in reversed(read_attempts(directory, newest=MOST_IN_A_ROW))]
    paths = _names(directory.path / layout.JOURNAL)
    found: list[Training] = []
    for job in dict.fromkeys(jobs):
        trainings = trainings_of(job, _events(job, paths, quick=not earlier))
        found += trainings
        if job != job_id and trainings and not trainings[-1].stops:
            break
    return sorted(found, key=lambda training: (training.attempt, training.began))


def _events(job: str, paths: Sequence[str], *, quick: bool) -> Iterator[Event]:
    """Yield the events of a job's journals; with `quick`, only of those that mention the loss."""
    journal = re.compile(rf".*/{re.escape(job)}\.([0-9]{{1,9}})\.jsonl")
    ranks = {int(match[1]): path for path in paths if (match := journal.fullmatch(path))}
    for rank in sorted(ranks)[:MOST_JOURNALS]:
        with suppress(OSError):
            raw, _ = read_tail(ranks[rank], JOURNAL_BYTES)
            yield from () if quick and not any(word in raw for word in (b'"loss', b'"grad_norm')) else parse_events(raw)


def _newest_job(directory: Path) -> str:
    """Return the job whose heartbeat was written last, for a training started without a template."""
    newest = max(((_mtime(path), path) for path in _names(directory)), default=(0.0, ""))[1]
    return Path(newest).name.split(".", 1)[0]


def _names(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if not entry.name.startswith(".")]
    except OSError:
        return []


def _is_device(path: str) -> bool:
    """Return whether output to a path is lost, as with /dev/null."""
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def _mtime(path: str) -> float:
    try:
        info = os.stat(path)
    except OSError:
        return 0.0
    return info.st_mtime if stat.S_ISREG(info.st_mode) else 0.0


def beat_files(directory: RunDirectory, job_id: str) -> list[tuple[str, bytes, float]]:
    """Return (name, content, mtime) of the job's heartbeats, one per node."""
    found = []
    for path in _names(directory.path / layout.BEATS):
        name = Path(path).name
        if job_id and name.startswith(f"{job_id}."):
            with suppress(ResilError, OSError):
                content = read_regular(Path(path), limit_bytes=2**20)
                if content is not None:
                    found.append((name, content[0], content[1].st_mtime))
    return found
