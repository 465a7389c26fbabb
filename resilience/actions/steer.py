"""`resil kill|save|clear|cancel`: steer a run, by switch files that a colleague may write, or by the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from resilience.actions.project import Project
from resilience.actions.run_jobs import jobs_of_run
from resilience.errors import NoSuchJob, SchedulerError
from resilience.model import layout
from resilience.model.job import Job, JobId
from resilience.model.switch import Scope, Switch
from resilience.system.files import explain_os_error
from resilience.system.run_directory import RunDirectory
from resilience.system.submissions import read_intents, submitted_ids
from resilience.system.switches import clear_switch, policy_of, read_switch, throw_switch


@dataclass(frozen=True, slots=True)
class Thrown:
    """A switch that now lies there.

    Attributes:
        warning: why the run may not obey it, or empty.
    """

    path: Path
    warning: str


def throw(project: Project, directory: RunDirectory, kind: str, *, why: str, scope: Scope, label: str = "") -> Thrown:
    """Write a switch in one's own name, and read it back as the run will. Raise StateDirectoryError if it cannot be."""
    switch = Switch(kind, project.world.host.user, project.world.clock.now(), why, scope, label)
    path = throw_switch(directory, switch)
    seen = read_switch(directory, kind, policy_of(directory, project.loaded.settings.run.switch_owners))
    warning = "" if seen is None or seen.honoured else f"the run will not obey it: {seen.refusal}"
    return Thrown(path, warning)


def clear(directory: RunDirectory, *, finished: bool = False) -> tuple[str, ...]:
    """Remove every switch, and with `finished` the mark that the run is done; return the names of what was removed."""
    removed = [kind for kind in (layout.KILL_SWITCH, layout.SAVE_SWITCH) if clear_switch(directory, kind)]
    try:
        stops = sorted((directory.path / layout.SWITCHES).glob(f"{layout.STOP_PREFIX}*"))
    except OSError as error:
        raise explain_os_error(error, "read", directory.path) from error
    removed += [path.name for path in stops if clear_switch(directory, path.name)]
    mark = directory.path / layout.FINISHED
    if finished and mark.exists():
        try:
            mark.unlink()
        except OSError as error:
            raise explain_os_error(error, "remove", mark) from error
        removed.append(layout.FINISHED)
    return tuple(removed)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancel did.

    Attributes:
        ids: the jobs and arrays that were told to end.
        still_ending: those that a look afterwards still saw with processes: they have KillWait to end.
    """

    ids: tuple[JobId, ...]
    still_ending: tuple[JobId, ...]


def cancel(project: Project, directory: RunDirectory, *, pending_only: bool = False) -> Cancelled:
    """End the jobs of a run, and look afterwards whether they are going.

    Raise NoSuchJob if a successful answer shows none, SchedulerUnavailable if there is no answer, SchedulerError if a
    job is not ours to end.
    """
    intents = read_intents(directory)
    scheduler = project.scheduler(intents[-1].scheduler if intents else "")
    ids = submitted_ids(intents)

    def alive() -> tuple[Job, ...]:
        jobs = jobs_of_run(scheduler.jobs(users=()), directory.run, ids)
        return tuple(job for job in jobs if job.state.is_alive and (job.state.is_waiting or not pending_only))

    before = alive()
    if not before:
        raise NoSuchJob(f"run {directory.run} has no job in the queue", hint="see: resil status")
    wanted = tuple(sorted({job.id.whole for job in before}))
    scheduler.cancel(wanted, pending_only=pending_only)
    after = alive()
    if any(job.state.is_waiting for job in after):
        left = ", ".join(str(job.id) for job in after if job.state.is_waiting)
        raise SchedulerError(f"job {left} is still in the queue", hint="it may be another user's; see: resil status")
    return Cancelled(wanted, tuple(sorted({job.id.whole for job in after})))
