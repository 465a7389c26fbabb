"""`resil adopt JOBID`: records a job that was queued without resil as a job of a run. The job itself is not changed."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from resilience import layout
from resilience.errors import NoSuchJob, ResilError, RunAlive, SchedulerError, StateDirectoryError, UsageError
from resilience.job import Job, JobId
from resilience.messages import plural
from resilience.runs import queue_cache
from resilience.runs.project import Project, run_name_from
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_jobs import Owners, live_jobs, of_task
from resilience.runs.submissions import (
    Intent,
    Outcome,
    adopted_ids,
    new_token,
    newest_intent,
    read_intents,
    record_adoption,
)
from resilience.runs.submit import rollback, take_snapshot
from resilience.runs.switches import policy_of_run, read_switch
from resilience.schedulers import Scheduler
from resilience.settings.show import to_toml
from resilience.submission import check_run_name, split_comment


@dataclass(frozen=True, slots=True)
class Adoption:
    """A job that belongs to a run now, or did so before.

    Attributes:
        run: the run's name.
        directory: of the run.
        scheduler: the scheduler of the job.
        job: the job, one task of an array, or a record of the whole array.
        job_id: the id that was adopted: of the job, the task or the array.
        is_new: False if the job belonged to the run before; then nothing was written.
        is_followed: whether the next submit of the run queues behind it by itself.
        by_resil: whether resil queued it, so that the switches reach it.
        notes: restrictions, for the user.
        tasks: of a whole array: the number of its tasks by state, `RUNNING`.
    """

    run: str
    directory: Path
    scheduler: str
    job: Job
    job_id: JobId
    is_new: bool
    notes: tuple[str, ...]
    is_followed: bool = True
    by_resil: bool = False
    tasks: Mapping[str, int] = field(default_factory=dict)


def adopt(project: Project, job_id: JobId, *, run: str = "", dry_run: bool = False) -> Adoption:
    """Record a live job, an array or one task of it, as a job of a run. Only the run directory is written.

    `run`: name of the run; empty: the job's name made valid, with the number of the task.
    `dry_run`: check everything and write nothing.

    Raise SchedulerError if the job has ended or is unknown, SchedulerUnavailable if the scheduler does not answer,
    UsageError if resil queued the job for a run that is not in this state directory, or if the run is finished or
    killed, RunAlive if the job's own name is that of a live run, StateDirectoryError if the run cannot be written.
    """
    scheduler, me = project.scheduler(), project.system.host.user
    job = _find_live(scheduler, job_id)
    # The raw id of a running task, which squeue shows nowhere but users copy from $SLURM_JOB_ID, means this task.
    task = job.id.task if job_id.task is not None or job_id.array != job.id.array else None
    job_id = JobId(job.id.array, task)
    notes = _notes(job, me)
    owner = _run_of(project, scheduler, job, job_id)
    if owner is not None:
        intents = read_intents(owner)
        last, by_resil = newest_intent(intents), job.id.array not in adopted_ids(intents)
        followed = last is not None and last.adopted
        return Adoption(owner.run, owner.path, scheduler.name, job, job_id, False, notes, followed, by_resil)
    tasks = _tasks_of(scheduler, job) if task is None and job.is_array_record else {}
    name = check_run_name(run) if run else _default_name(job, job_id)
    directory = project.directory(name)
    _check_directory(scheduler, directory, job, me, is_named=bool(run))
    if not dry_run:
        _record(project, directory, scheduler, job, job_id)
    return Adoption(name, directory.path, scheduler.name, job, job_id, True, notes, tasks=tasks)


def _tasks_of(scheduler: Scheduler, job: Job) -> dict[str, int]:
    """Return how many tasks of an array are in each state: `job` is the record of those that wait."""
    rows = scheduler.jobs(users={job.user} if job.user else None, keep=lambda array, *_: array == job.id.array)
    tasks: Counter[str] = Counter()
    for row in rows:
        tasks[row.state.value] += row.task_count
    return dict(tasks)


def _default_name(job: Job, job_id: JobId) -> str:
    name = run_name_from(job.name)
    return name if job_id.task is None else f"{name[:80]}-{job_id.task}"


def _find_live(scheduler: Scheduler, job_id: JobId) -> Job:
    """Return the record of a job that waits or runs."""
    try:
        job = scheduler.job(job_id)
    except NoSuchJob as error:
        past: tuple[Job, ...] = ()
        with suppress(ResilError):  # without accounting the end of a job is forgotten after some minutes
            past = scheduler.history([job_id])
        if past and past[-1].state.is_final:
            raise _ended(past[-1]) from None
        hint = "see your jobs: squeue --me; another user's job may be hidden from you (PrivateData)"
        if scheduler.name == "local":
            hint = "a job of SLURM? name the scheduler: --scheduler slurm"
        raise NoSuchJob(error.message, hint=hint) from None
    own = job if job_id.task is None else of_task(job, job_id.task)
    if own is None:
        raise NoSuchJob(
            f"there is no task {job_id} in the queue", hint=f"see its tasks: squeue --me -r -j {job_id.array}"
        )
    if own.state.is_final:
        raise _ended(own)
    return own


def _ended(job: Job) -> SchedulerError:
    script = split_command(job.command)[0] or "SCRIPT"
    return SchedulerError(
        f"job {job.id} has ended: {job.state}; only a job that runs or waits can be adopted",
        hint=f"queue the next one as a run: resil adopt {shlex.quote(script)}",
    )


def _run_of(project: Project, scheduler: Scheduler, job: Job, job_id: JobId) -> RunDirectory | None:
    """Return the run of this state directory that has the job or the array; None if no run has it as a whole.

    Raise UsageError if a run of another state directory has it.
    """
    directories = {directory.run: directory for directory in project.runs()}
    journals = {}
    for name, directory in directories.items():
        with suppress(StateDirectoryError):  # a damaged run must not hide the others
            if own := [one for one in read_intents(directory) if one.scheduler == scheduler.name]:
                journals[name] = own
    for name in Owners(journals).runs_of(job.id.array, job.comment):
        known = {one.job_id for one in journals[name]}
        if split_comment(job.comment) is not None or known & {job_id, job_id.whole}:
            return directories[name]
    mark = split_comment(job.comment)
    if mark is None:
        return None
    script = Path(split_command(job.command)[0])
    path = script.parents[1] if script.parent.name == layout.SCRIPTS else None
    where = f": {path}" if path is not None else ""
    raise UsageError(
        f"job {job.id.whole} is already a job of the run {mark[0]}, in another state directory{where}",
        hint=f"resil status {shlex.quote(str(path))}" if path is not None else "run resil in the project of that run",
    )


def _check_directory(scheduler: Scheduler, directory: RunDirectory, job: Job, me: str, *, is_named: bool) -> None:
    """Raise if the job would be watched wrongly in this directory."""
    if not directory.exists():
        return
    name, other = directory.run, f"resil adopt {job.id} --run NAME"
    if directory.is_finished():
        raise UsageError(
            f"run {name} is finished, so its jobs are not watched",
            hint=f"adopt it as another run: {other}; or continue the run: resil clear {name} --finished",
        )
    switch = read_switch(directory, layout.KILL_SWITCH, policy_of_run(directory))
    if switch is not None and switch.honoured:
        raise UsageError(
            f"run {name} has a kill switch, set by {switch.who}, so its jobs are not watched",
            hint=f"adopt it as another run: {other}; or clear the switch: resil clear {name}",
        )
    if is_named:
        return  # the user says that the job belongs to this run
    live = live_jobs(scheduler, directory, me)
    if live:
        ids = ", ".join(sorted({str(one.id.whole) for one in live}))
        raise RunAlive(
            f"there is a live run {name} already: job {ids}",
            hint=f"another run: {other}; one more job of it: resil adopt {job.id} --run {name}",
        )


def _record(project: Project, directory: RunDirectory, scheduler: Scheduler, job: Job, job_id: JobId) -> None:
    script, arguments = split_command(job.command)
    intent = Intent(
        new_token(),
        scheduler.name,
        script,
        (script, *arguments) if script else (),
        # A log from after this time is of this job (run_logs.py).
        job.submit_time or project.system.clock.now(),
        job_id=job_id,
        by=job.user,
        adopted=True,
        output=_output(job, job_id),
        outcome=Outcome.SUBMITTED,
    )
    snapshot = take_snapshot(directory)
    try:
        directory.create(to_toml(project.loaded, directory.run))
        record_adoption(directory, intent, project.system.host.user)
    except ResilError:
        rollback(directory, snapshot, {intent.token})
        raise
    finally:
        queue_cache.invalidate(project.system, scheduler.name)


def _output(job: Job, job_id: JobId) -> str:
    """Return where the output goes: of an array, with %a for the task."""
    if job_id.task is not None:
        return job.stdout.replace("%a", str(job_id.task))
    return job.stdout if job.id.task is None else job.stdout.replace(str(job.id), f"{job.id.array}_%a")


def _notes(job: Job, me: str) -> tuple[str, ...]:
    """Return what is restricted about the job. Pure, except for a look at its output file."""
    notes = []
    if job.is_array_record and job.task_count > 1:
        notes.append(f"all tasks of the array are watched; {plural(job.task_count, 'task')} still wait")
    if job.user not in ("", me):
        notes.append(f"the job belongs to {job.user}: resil watches it, but only {job.user} can cancel it")
    if not job.stdout:
        notes.append("its output file is not known, so resil watch log cannot judge it; resil watch job does")
    elif job.stdout == "/dev/null":
        notes.append("its output goes to /dev/null, so resil watch log cannot judge it; resil watch job does")
    return tuple(notes)


def split_command(
    command: str, is_file: Callable[[str], bool] = lambda path: Path(path).is_file()
) -> tuple[str, tuple[str, ...]]:
    """Return the script and its arguments from a job's command; an empty script if there is none.

    SLURM joins them with blanks and does not quote (`scontrol show job`, Command). The longest beginning that is a file
    is the script; without one, the first word.
    """
    words = command.split(" ")
    for count in range(len(words), 0, -1):
        path = " ".join(words[:count])
        if path.startswith("/") and is_file(path):
            return path, tuple(word for word in words[count:] if word)
    return words[0], tuple(word for word in words[1:] if word)
