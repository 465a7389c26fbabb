"""`resil kill|save|clear|cancel`: steer a run, by switch files that a colleague may write, or by the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from resilience import layout
from resilience.errors import NoSuchJob, SchedulerError, SchedulerUnavailable, UsageError
from resilience.job import Job, JobId
from resilience.runs import queue_cache
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_jobs import confirm_gone, jobs_of_run, scheduler_of
from resilience.runs.submissions import read_intents
from resilience.runs.switches import clear_switch, policy_of_run, read_switch, write_switch
from resilience.switch import LABEL, Scope, Switch
from resilience.system.files import explain_os_error


@dataclass(frozen=True, slots=True)
class SetSwitch:
    """A switch that was set.

    Attributes:
        warning: why the run may reject it, or empty.
        is_empty: whether the disk was too full for who, why and scope.
    """

    path: Path
    warning: str
    is_empty: bool = False


def set_switch(
    project: Project, directory: RunDirectory, kind: str, *, why: str, scope: Scope, label: str = ""
) -> SetSwitch:
    """Write a switch in the user's own name, and read it back as the run will.

    Raise UsageError if the label cannot name a checkpoint, StateDirectoryError if the switch cannot be written.
    """
    if label and LABEL.fullmatch(label) is None:
        raise UsageError(
            f"{label!r} cannot be a checkpoint's label",
            hint="use letters, digits, dot, dash and underscore, at most 100, starting with a letter or digit",
        )
    switch = Switch(kind, project.world.host.user, project.world.clock.now(), why, scope, label)
    path = write_switch(directory, switch)
    queue_cache.invalidate(project.world, project.scheduler_name())
    seen = read_switch(directory, kind, policy_of_run(directory))
    warning = "" if seen is None or seen.honoured else f"the run will not accept it: {seen.refusal}"
    return SetSwitch(path, warning, _is_empty(path))


def _is_empty(path: Path) -> bool:
    try:
        return path.lstat().st_size == 0
    except OSError:
        return False


def own_script(directory: RunDirectory) -> str:
    """The person's own script that the run was last queued with; empty when a template was rendered for it.

    Only a rendered script looks at the switches by itself.
    """
    scripts = directory.path / layout.SCRIPTS
    intents = read_intents(directory)
    return intents[-1].script if intents and Path(intents[-1].script).parent != scripts else ""


def clear(directory: RunDirectory, *, finished: bool = False) -> tuple[str, ...]:
    """Take back what people asked for, and with `finished` the mark that the run is done; return what was removed.

    `stop.<jobid>` stays: no person wrote it, and the time of that job is still nearly over.
    """
    removed = [kind for kind in (layout.KILL_SWITCH, layout.SAVE_SWITCH) if clear_switch(directory, kind)]
    if finished and directory.is_finished():
        mark = directory.path / layout.FINISHED
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

    Raise NoSuchJob if a successful answer shows none, SchedulerUnavailable if there is no answer (the message says
    whether they were told to end before), SchedulerError if a job is not ours to end.
    """
    intents, me = read_intents(directory), project.world.host.user
    scheduler = project.scheduler(scheduler_of(intents))

    def alive() -> tuple[Job, ...]:
        jobs = jobs_of_run(scheduler.jobs(users=()), directory.run, intents)
        return tuple(job for job in jobs if job.state.is_alive and (job.state.is_waiting or not pending_only))

    before = alive() or (() if pending_only else confirm_gone(scheduler, directory, intents, me))
    if not before:
        raise NoSuchJob(f"run {directory.run} has no job in the queue", hint="see: resil status")
    wanted = tuple(sorted({job.id.whole for job in before}))
    names = ", ".join(map(str, wanted))
    try:
        scheduler.cancel(wanted, pending_only=pending_only)
    except SchedulerUnavailable:
        raise
    except SchedulerError as error:
        others = sorted({job.user for job in before} - {"", project.world.host.user})
        if others:
            whose = f"some of it belongs to {', '.join(others)}, and only they can end that"
            error.hint = f"{whose}; stop the run by its switch instead: resil kill {directory.run}"
        raise
    finally:
        queue_cache.invalidate(project.world, scheduler.name)
    try:
        after = alive()
    except SchedulerUnavailable as error:
        raise SchedulerUnavailable(
            f"job {names} was told to end; whether it does could not be seen: {error.message}",
            hint=f"look again: resil status {directory.run} --fresh",
        ) from error
    if any(job.state.is_waiting for job in after):
        left = ", ".join(str(job.id) for job in after if job.state.is_waiting)
        raise SchedulerError(
            f"job {left} is still in the queue",
            hint=f"see whose it is and why: resil status {directory.run} --fresh; or use: resil kill {directory.run}",
        )
    return Cancelled(wanted, tuple(sorted({job.id.whole for job in after})))
