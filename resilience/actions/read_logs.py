"""`resil logs`: the newest output of a run, and what is added to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from resilience.actions.last_step import newest_log
from resilience.actions.project import Project
from resilience.actions.run_jobs import jobs_of_run, newest
from resilience.errors import ResilError, UsageError
from resilience.system.files import explain_os_error
from resilience.system.run_directory import RunDirectory
from resilience.system.submissions import read_intents, submitted_ids

POLL_S = 0.5
_BLOCK_BYTES = 65536


def find_log(project: Project, directory: RunDirectory) -> Path:
    """The log written to last: of the rendered scripts, else of what the scheduler says the newest job writes.

    Raise UsageError if there is none yet.
    """
    own = newest_log(directory)
    if own is not None:
        return own
    intents = read_intents(directory)
    try:
        scheduler = project.scheduler(intents[-1].scheduler if intents else "")
        jobs = jobs_of_run(scheduler.jobs(finished=True), directory.run, submitted_ids(intents))
        started = [job for job in jobs if not job.state.is_waiting]
        job = newest(started or jobs)
        if job is not None:
            path = scheduler.job(job.id).stdout
            if path and Path(path).exists():
                return Path(path)
    except ResilError as error:
        raise UsageError(f"run {directory.run} has no log in {directory.path}; {error.message}") from error
    raise UsageError(f"run {directory.run} has written no log yet", hint="see what it waits for: resil status")


def last_lines(path: Path, count: int) -> bytes:
    """The last lines of a file, as they are; the rest is not read. Raise StateDirectoryError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            position = os.fstat(file.fileno()).st_size
            tail = b""
            while position > 0 and tail.count(b"\n") <= count:
                size = min(_BLOCK_BYTES, position)
                position -= size
                file.seek(position)
                tail = file.read(size) + tail
            lines = tail.splitlines(keepends=True)
            return b"".join(lines[-count:] if count else [])
    except OSError as error:
        raise explain_os_error(error, "read", path) from error


def follow(project: Project, directory: RunDirectory) -> Iterator[tuple[Path, bytes]]:
    """Yield (file, new bytes) for ever; a newer attempt's log is taken up when it appears, from its beginning."""
    path = find_log(project, directory)
    position = path.stat().st_size
    while True:
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < position:
                    position = 0  # truncated by a requeue without --open-mode=append
                file.seek(position)
                chunk = file.read()
        except OSError as error:
            raise explain_os_error(error, "read", path) from error
        if chunk:
            position += len(chunk)
            yield path, chunk
            continue
        newer = newest_log(directory)
        if newer is not None and newer != path:
            path, position = newer, 0
            continue
        project.world.clock.sleep(POLL_S)
