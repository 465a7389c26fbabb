"""`resil logs`: the newest output of a run, and output that is appended."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from resilience.errors import ResilError, SchedulerUnavailable
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_jobs import jobs_of_run, newest, scheduler_of
from resilience.runs.run_logs import logs_by_age, newest_log, stdout_of
from resilience.runs.submissions import read_intents
from resilience.system.files import explain_os_error, open_without_waiting

POLL_S = 0.5
QUERY_S = 30.0
"""Interval for looking up newer submissions, and for querying the scheduler if only the scheduler knows the log."""
TAIL_LIMIT_BYTES = 2**20
"""Limit of the output shown: a progress bar may write one line of gigabytes."""
_BLOCK_BYTES = 65536


def find_log(project: Project, directory: RunDirectory) -> Path:
    """Return the newest log that is known from the run's own files, else the newest job's according to the scheduler.

    Raise ResilError if there is none yet, SchedulerUnavailable if only the scheduler knows the log, and does not
    answer.
    """
    intents = read_intents(directory)
    own = newest_log(directory, intents)
    if own is not None:
        return own
    try:
        scheduler = project.scheduler(scheduler_of(intents))
        jobs = jobs_of_run(scheduler.jobs(finished=True), directory.run, intents)
        job = newest([job for job in jobs if not job.state.is_waiting])
        path = stdout_of(scheduler, job) if job is not None else None
        if path is not None:
            return path
    except SchedulerUnavailable as error:
        raise SchedulerUnavailable(
            f"run {directory.run} has no log in {directory.path}, and the scheduler did not answer: {error.message}",
            hint=error.hint,
        ) from error
    except ResilError as error:
        raise ResilError(
            f"run {directory.run} has no log in {directory.path}; {error.message}", hint=error.hint
        ) from error
    outputs = [one.output for one in intents if job is not None and one.job_id == job.id.whole]
    if job is not None and "/dev/null" in (*outputs, job.stdout):
        raise ResilError(
            f"the output of job {job.id} goes to /dev/null, so run {directory.run} has no log",
            hint="for the next jobs, name a file in the script: #SBATCH -o slurm-%j.out",
        )
    raise ResilError(
        f"run {directory.run} has written no log yet", hint=f"see why it waits: resil status {directory.run}"
    )


def last_lines(path: Path, count: int) -> tuple[bytes, int]:
    """Return the last lines of a file, unchanged, and the position of their end.

    Only TAIL_LIMIT_BYTES are read: very long lines are cut at the beginning. Raise StateDirectoryError if the file
    cannot be read.
    """
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            end = os.fstat(file.fileno()).st_size
            if end > TAIL_LIMIT_BYTES:  # a FIFO has size 0 and no position
                file.seek(end - TAIL_LIMIT_BYTES)
            tail = file.read(min(end, TAIL_LIMIT_BYTES))
    except OSError as error:
        raise explain_os_error(error, "read", path) from error
    lines = re.findall(rb"[^\n]*\n|[^\n]+", tail)
    return b"".join(lines[len(lines) - min(count, len(lines)) :]), end


def follow(project: Project, directory: RunDirectory, path: Path, position: int) -> Iterator[tuple[Path, bytes]]:
    """Yield (file, new bytes) forever, from a position on. Switch to the log of a newer attempt when it appears.

    Two attempts may write for a while; each log continues at its last position. A truncated or replaced log starts
    again. Raise StateDirectoryError if a log cannot be read.
    """
    clock = project.system.clock
    intents = read_intents(directory)
    positions = {log: _size(log) for log in logs_by_age(directory, intents)} | {path: position}
    queried_at = clock.monotonic()
    while True:
        chunk, positions[path] = _read_on(path, positions[path])
        if chunk:
            yield path, chunk
            continue
        newer = newest_log(directory, intents)
        if clock.monotonic() - queried_at >= QUERY_S:
            queried_at = clock.monotonic()
            with suppress(ResilError):  # without an answer, keep following the known log
                intents = read_intents(directory)
                newer = find_log(project, directory)
        if newer is not None and newer != path:
            path = newer
            if positions.setdefault(path, 0) != _size(path):
                continue
        clock.sleep(POLL_S)


def _read_on(path: Path, position: int) -> tuple[bytes, int]:
    """Return the next bytes and their end. A missing log has none: its writer may be replacing it."""
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            if os.fstat(file.fileno()).st_size < position:
                position = 0  # truncated by a requeue without --open-mode=append
            file.seek(position)
            chunk = file.read(_BLOCK_BYTES)
            return chunk, position + len(chunk)
    except FileNotFoundError:
        return b"", 0
    except OSError as error:
        raise explain_os_error(error, "read", path) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
