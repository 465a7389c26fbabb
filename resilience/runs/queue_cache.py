"""Remembers the last answer about the queue, so that ten commands in a minute ask the controller once."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from resilience.errors import ResilError, SchedulerError
from resilience.job import ExitCode, Job, JobId, JobState
from resilience.system.files import make_folder, read_regular, write_atomic
from resilience.system.world import World

FLOOR_S = 10.0
"""Not asked again within this time unless somebody insists. squeue(1) asks not to be called from loops."""

_VERSION = 1
_FIELDS = tuple(field.name for field in fields(Job))


class QueueAnswer(NamedTuple):
    """What is known about the queue.

    Attributes:
        jobs: my jobs, ended ones included as long as the scheduler remembers them.
        age_s: how old the answer is; 0 when just asked.
        trouble: why the scheduler could not be asked now; then the answer is an old one, or there is none.
        is_known: False when there is no answer at all, not even an old one.
    """

    jobs: tuple[Job, ...]
    age_s: float = 0.0
    trouble: str = ""
    is_known: bool = True


def ask_queue(
    world: World,
    scheduler: str,
    fetch: Callable[[], tuple[Job, ...]],
    *,
    owner: str = "",
    fresh: bool = False,
    floor_s: float = FLOOR_S,
) -> QueueAnswer:
    """The queue: remembered when it is younger than the floor, else asked for.

    `fetch` asks the scheduler; it is only called when needed. `owner` is whose queue it is, empty for one's own. When
    it does not answer, the last answer comes back with its age and the trouble. Never raises for a scheduler that does
    not answer, or refuses to.
    """
    path = _path(world, scheduler, owner)
    remembered = _read(path)
    now = world.clock.now()
    if remembered is not None and not fresh and 0 <= now - remembered[0] < floor_s:
        return QueueAnswer(remembered[1], now - remembered[0])
    try:
        jobs = fetch()
    except SchedulerError as error:
        trouble = f"the scheduler did not answer: {error.message}{f' ({error.hint})' if error.hint else ''}"
        now = world.clock.now()  # it may have taken a minute not to answer
        if remembered is None:
            return QueueAnswer((), trouble=trouble, is_known=False)
        return QueueAnswer(remembered[1], max(0.0, now - remembered[0]), trouble)
    remember(world, scheduler, jobs, owner)
    return QueueAnswer(jobs)


def remember(world: World, scheduler: str, jobs: tuple[Job, ...], owner: str = "") -> None:
    """Keep an answer for the next command. A cache that cannot be written is no error."""
    path = _path(world, scheduler, owner)
    document = {"version": _VERSION, "time": world.clock.now(), "jobs": [_to_json(job) for job in jobs]}
    try:
        make_folder(path.parent, mode=0o700)
        write_atomic(path, json.dumps(document))
    except ResilError:
        return


def forget(world: World, scheduler: str) -> None:
    """Drop what is remembered, because something was just changed."""
    with suppress(OSError):  # whoever's queue it was: a run may have several submitters
        for path in _path(world, scheduler).parent.glob(f"queue-{scheduler}-*.json"):
            path.unlink(missing_ok=True)


def _path(world: World, scheduler: str, owner: str = "") -> Path:
    # One memory per cluster: the configuration and the spool are what tells clusters apart from outside.
    # So is the machine: two clusters may share a home, and find their configurations in the same place.
    names = ("SLURM_CONF", "SLURM_CLUSTERS", "RESIL_LOCAL_SPOOL")
    cluster = "|".join((world.host.name, owner, *(f"{name}={world.environ.get(name, '')}" for name in names)))
    return world.cache_home / "resil" / f"queue-{scheduler}-{zlib.crc32(os.fsencode(cluster)):08x}.json"


def _read(path: Path) -> tuple[float, tuple[Job, ...]] | None:
    try:
        found = read_regular(path, limit_bytes=64 * 2**20)
        if found is None:
            return None
        document = json.loads(found[0])
        if document["version"] != _VERSION:
            return None
        return float(document["time"]), tuple(_from_json(record) for record in document["jobs"])
    except (ResilError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None  # a damaged memory is no memory


def _to_json(job: Job) -> dict[str, Any]:
    record = {name: getattr(job, name) for name in _FIELDS}  # dataclasses.asdict takes ten times as long
    record["id"] = [job.id.array, job.id.task]
    record["exit_code"] = None if job.exit_code is None else [job.exit_code.status, job.exit_code.signal]
    return record


def _from_json(record: dict[str, Any]) -> Job:
    exit_code = record.pop("exit_code")
    return Job(
        **{
            **record,
            "id": JobId(*record["id"]),
            "state": JobState(record["state"]),
            "exit_code": None if exit_code is None else ExitCode(*exit_code),
        }
    )
