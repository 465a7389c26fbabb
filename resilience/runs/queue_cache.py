"""Caches the last answer about the queue, so that ten commands in a few seconds query the controller once."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from resilience.errors import ResilError, SchedulerError
from resilience.job import Job
from resilience.records import from_record, to_record
from resilience.system.files import make_directory, read_regular, write_atomic
from resilience.system.ports import System

FLOOR_S = 10.0
"""No second query within this time unless the user insists. squeue(1) asks not to be called from loops."""

_VERSION = 2


class QueueAnswer(NamedTuple):
    """The queue, as far as known.

    Attributes:
        jobs: the user's jobs, including ended ones that the scheduler still knows.
        age_s: how old the answer is; 0 when just queried.
        trouble: why the scheduler did not answer; then the answer is an old one, or there is none.
        is_known: False when there is no answer at all, not even an old one.
    """

    jobs: tuple[Job, ...]
    age_s: float = 0.0
    trouble: str = ""
    is_known: bool = True


def query_queue(
    system: System,
    scheduler: str,
    fetch: Callable[[], tuple[Job, ...]],
    *,
    owner: str = "",
    fresh: bool = False,
    floor_s: float = FLOOR_S,
) -> QueueAnswer:
    """Return the queue: from the cache if younger than `floor_s`, else queried.

    `fetch` queries the scheduler; it is only called when needed. `owner` names the queue's users, empty for one's own.
    If the scheduler does not answer or refuses, return the last answer with its age and the error.
    """
    path = _path(system, scheduler, owner)
    cached = _read(path)
    now = system.clock.now()
    if cached is not None and not fresh and 0 <= now - cached[0] < floor_s:
        return QueueAnswer(cached[1], now - cached[0])
    try:
        jobs = fetch()
    except SchedulerError as error:
        trouble = f"the scheduler did not answer: {error.message}{f' ({error.hint})' if error.hint else ''}"
        now = system.clock.now()  # the query may have run for a minute before it failed
        if cached is None:
            return QueueAnswer((), trouble=trouble, is_known=False)
        return QueueAnswer(cached[1], max(0.0, now - cached[0]), trouble)
    save(system, scheduler, jobs, owner)
    return QueueAnswer(jobs)


def save(system: System, scheduler: str, jobs: tuple[Job, ...], owner: str = "") -> None:
    """Save an answer for the next command. Failures to write the cache are ignored."""
    path = _path(system, scheduler, owner)
    document = {"version": _VERSION, "time": system.clock.now(), "jobs": [to_record(job) for job in jobs]}
    try:
        make_directory(path.parent, mode=0o700)
        write_atomic(path, json.dumps(document))
    except ResilError:
        return


def invalidate(system: System, scheduler: str) -> None:
    """Delete the cached answers, after a change to the queue."""
    with suppress(OSError):  # of every owner: a run may have several submitters
        for path in _path(system, scheduler).parent.glob(f"queue-{scheduler}-*.json"):
            path.unlink(missing_ok=True)


def _path(system: System, scheduler: str, owner: str = "") -> Path:
    # One cache per cluster, identified by its configuration or spool.
    # And per machine: two clusters may share a home, with their configurations in the same place.
    names = ("SLURM_CONF", "SLURM_CLUSTERS", "RESIL_LOCAL_SPOOL")
    cluster = "|".join((system.host.name, owner, *(f"{name}={system.environ.get(name, '')}" for name in names)))
    return system.cache_home / "resil" / f"queue-{scheduler}-{zlib.crc32(os.fsencode(cluster)):08x}.json"


def _read(path: Path) -> tuple[float, tuple[Job, ...]] | None:
    try:
        found = read_regular(path, limit_bytes=64 * 2**20)
        if found is None:
            return None
        document = json.loads(found[0])
        if document["version"] != _VERSION:
            return None
        return float(document["time"]), tuple(from_record(Job, record) for record in document["jobs"])
    except (ResilError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None  # a damaged cache is ignored
