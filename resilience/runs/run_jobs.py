"""The jobs of a run, and which of them are live. A single empty answer of the queue never counts as dead."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from resilience.errors import (
    NoSuchJob,
    ResilError,
    RunAlive,
    SchedulerError,
    SchedulerUnavailable,
    StateDirectoryError,
    UsageError,
)
from resilience.job import Job, JobId, Liveness
from resilience.runs import queue_cache
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_logs import stdout_of
from resilience.runs.submissions import (
    Deed,
    Intent,
    Intervention,
    Outcome,
    adopted_ids,
    newest_intent,
    own_script_of,
    read_intents,
    record_intervention,
    submitted_ids,
)
from resilience.submission import ArrayExpression, split_comment
from resilience.system.ports import System, is_account

if TYPE_CHECKING:
    from resilience.runs.project import Project
    from resilience.schedulers import Scheduler


T = TypeVar("T")


def newest(jobs: Collection[Job], intents: Sequence[Intent] = ()) -> Job | None:
    """Return the job of a run that was submitted last, or None.

    By the order of the journal, as SLURM resets the submit time of a job that it requeues. A job that is not in the
    journal was submitted just now.
    """
    places = {one.job_id.array: place for place, one in enumerate(intents) if one.job_id is not None}

    def place(job: Job) -> tuple[int, float, int]:
        return places.get(job.id.array, len(intents)), job.submit_time or 0.0, job.id.array

    return max(jobs, key=place, default=None)


def refuse_if_live(run: str, live: Collection[Job], me: str) -> None:
    """Raise RunAlive, with the jobs, their owners if they are not all `me`, and a hint, if there are any."""
    if not live:
        return
    ids = ", ".join(sorted({str(job.id.whole) for job in live}))
    others = sorted({job.user for job in live} - {"", me})
    whose = " and ".join(others)
    stop = f"stop it: resil kill {run}" if others else f"cancel it: resil cancel {run}"
    raise RunAlive(
        f"run {run} is already live: job {ids}{f' of {whose}' if others else ''}",
        hint=f"queue behind it: --after auto; run both, at your own risk: --force; {stop}",
    )


class Owners:
    """Assigns jobs to runs, for many runs at once: a queue of 100,000 rows is read once for all runs.

    The run's name in the comment is not enough: two projects or users may give their runs the same name, and a
    `resil cancel` must not end the other's. The name counts only where the journal knows no intent at all. A job with
    another token is never ours, even under a known id: after a controller's crash SLURM may assign an id twice. A site
    may overwrite comments; the id is for that case.
    """

    def __init__(self, journals: Mapping[str, Sequence[Intent]]) -> None:
        """`journals`: the runs by name, each with its intents."""
        self._by_token = {intent.token: run for run, intents in journals.items() for intent in intents}
        self._by_name = {run for run, intents in journals.items() if not intents}
        self._by_id: dict[int, list[str]] = {}
        self._tasks: dict[tuple[str, int], set[int | None]] = {}
        for run, intents in journals.items():
            for job_id in submitted_ids(intents):
                if run not in (runs := self._by_id.setdefault(job_id.array, [])):
                    runs.append(run)
                self._tasks.setdefault((run, job_id.array), set()).add(job_id.task)

    def runs_of(self, array: int, comment: str) -> Sequence[str]:
        """Return the runs of a job with this id (of its array) and comment: one or none, except for shared ids."""
        mark = split_comment(comment)
        if mark is None:
            return self._by_id.get(array, ())
        run = self._by_token.get(mark[1])
        if run is None and mark[0] in self._by_name:
            run = mark[0]
        return () if run is None else (run,)

    def sort(self, jobs: Iterable[Job]) -> dict[str, list[Job]]:
        """Return the jobs of each run that has any. Of an array, a run may have adopted single tasks."""
        found: dict[str, list[Job]] = {}
        for job in jobs:
            for run in self.runs_of(job.id.array, job.comment):
                tasks = self._tasks.get((run, job.id.array), {None})
                own = [job] if None in tasks else [one for task in tasks if (one := of_task(job, task)) is not None]
                if own:
                    found.setdefault(run, []).extend(own)
        return found


def of_task(job: Job, task: int | None) -> Job | None:
    """Return the record of one task from its own record, or from that of the pending tasks of its array; None if this
    is a record of other tasks. Pure."""
    if job.id.task is not None or task is None:
        return job if job.id.task == task else None
    with suppress(UsageError):  # a list of tasks that SLURM has cut off
        if task not in ArrayExpression.parse(job.tasks).indices():
            return None
    return replace(job, id=JobId(job.id.array, task), tasks="", task_count=1)


def handle_of(job: Job, intents: Sequence[Intent]) -> JobId:
    """Return the id by which a job of a run is cancelled and waited for: that of its array, unless only tasks of the
    array were adopted. Pure."""
    known = {intent.job_id for intent in intents}
    return job.id if job.id in known and job.id.whole not in known else job.id.whole


def jobs_of_run(jobs: Iterable[Job], run: str, intents: Sequence[Intent]) -> tuple[Job, ...]:
    """Return the jobs of a run: those with one of the tokens in its journal. See Owners."""
    return tuple(Owners({run: intents}).sort(jobs).get(run, ()))


def submitters(
    directory: RunDirectory, intents: Sequence[Intent], me: str, is_known: Callable[[str], bool] = is_account
) -> tuple[str, ...]:
    """Return the users who may have jobs of a run: its owner, and all submitters with an account. Sorted."""
    users = {directory.owner(), *(intent.by for intent in intents if intent.by)}
    return tuple(sorted(name for name in users if name == me or is_known(name))) or (me,)


def scheduler_of(intents: Sequence[Intent]) -> str:
    """Return the scheduler of the newest intent that was not refused; empty if there is none."""
    newest = newest_intent(intents)
    return newest.scheduler if newest is not None else ""


def srun_command(job: str, hosts: Sequence[str]) -> list[str]:
    """Return the command that starts one task on each of these nodes, within the job and beside its steps. Pure.

    Without `--mem=0`, 22.05 says "Memory required by task is not available" to a job's own shell if a step has it all.
    """
    count = str(len(hosts))
    return ["srun", "--overlap", "--mem=0", "--cpu-bind=none", "--kill-on-bad-exit=0", "--ntasks-per-node=1",
            f"--jobid={job}", f"--nodes={count}", f"--ntasks={count}", f"--nodelist={','.join(hosts)}"]  # fmt: skip


def requeues_itself(directory: RunDirectory, intents: Sequence[Intent]) -> bool:
    """Return whether the jobs of a run requeue themselves, by the settings of its last submit; a user's own script
    does not. Raise StateDirectoryError if they cannot be read."""
    act = directory.settings().get("act")
    is_asked = isinstance(act, dict) and act.get("enabled") is True and act.get("requeue") is True
    return is_asked and not own_script_of(directory, intents)


class Queues:
    """The queues with the jobs of many runs: each is queried once, or not at all while its answer is recent.

    Args:
        client: returns the client of a scheduler, by name.
        default: the scheduler of runs without a job.
        patience_s: how long a query may take; None: as long as the client's deadline.
    """

    def __init__(
        self,
        system: System,
        client: Callable[[str], Scheduler],
        default: str,
        *,
        fresh: bool = False,
        patience_s: float | None = None,
    ) -> None:
        self._system, self._client, self._default = system, client, default
        self._fresh, self._patience_s = fresh, patience_s
        self._answers: dict[tuple[str, tuple[str, ...]], queue_cache.QueueAnswer] = {}

    def jobs_of(
        self, directory: RunDirectory, intents: Sequence[Intent]
    ) -> tuple[str, tuple[Job, ...], queue_cache.QueueAnswer]:
        """Return the scheduler of a run, the run's jobs, and the whole answer.

        Raise UsageError if the default scheduler is unknown, StateDirectoryError if the run cannot be read.
        """
        name = scheduler_of(intents) or self._default
        query = name, submitters(directory, intents, self._system.host.user)
        if query not in self._answers:
            self._answers[query] = self._query(*query)
        return name, jobs_of_run(self._answers[query].jobs, directory.run, intents), self._answers[query]

    def _query(self, scheduler: str, users: tuple[str, ...]) -> queue_cache.QueueAnswer:
        """Return the queue of the users who submitted a run."""
        is_own = users == (self._system.host.user,)

        def fetch() -> tuple[Job, ...]:
            return self._client(scheduler).jobs(users=None if is_own else users, finished=True)

        owner = "" if is_own else ",".join(users)
        try:
            return queue_cache.query_queue(
                self._system, scheduler, lambda: self._in_time(fetch), owner=owner, fresh=self._fresh
            )
        except UsageError as error:
            if scheduler == self._default:
                raise
            # one run's scheduler must not hide the others
            return queue_cache.QueueAnswer((), trouble=error.message, is_known=False)

    def stdout_of(self, scheduler: str, job: Job) -> Path | None:
        """Return the output file of a started job; None if there is none, or if the scheduler does not answer."""
        with suppress(ResilError):
            return self._in_time(lambda: stdout_of(self._client(scheduler), job))
        return None

    def _in_time(self, ask: Callable[[], T]) -> T:
        if self._patience_s is None:
            return ask()
        from resilience.base.background import BackgroundCall

        try:
            return BackgroundCall(ask, "queue").result(self._patience_s)
        except TimeoutError as error:
            raise SchedulerUnavailable(str(error)) from error


def live_jobs(scheduler: Scheduler, directory: RunDirectory, me: str) -> tuple[Job, ...]:
    """Return the live jobs of a run, of all submitters; `me` is the current user's login name.

    Raise SchedulerUnavailable if the scheduler does not answer, or if it shows none and a second query cannot confirm
    that.
    """
    if not directory.exists():
        return ()  # never submitted from here
    intents = read_intents(directory)
    users = submitters(directory, intents, me)
    jobs = scheduler.jobs(users=None if users == (me,) else users)
    live = tuple(job for job in jobs_of_run(jobs, directory.run, intents) if job.state.is_alive)
    return live or confirm_gone(scheduler, directory, intents, me)


def confirm_gone(scheduler: Scheduler, directory: RunDirectory, intents: Sequence[Intent], me: str) -> tuple[Job, ...]:
    """Query again for the last job, which the queue did not show. Return the job if it is live after all.

    Raise SchedulerUnavailable if its state stays unknown: an empty answer alone proves nothing.
    """
    known = [i for i in intents if i.outcome is Outcome.SUBMITTED and i.scheduler == scheduler.name and i.job_id]
    if not known or known[-1].job_id is None:
        return ()
    presence = scheduler.presence(known[-1].job_id, mine=known[-1].by in ("", me))
    if presence.liveness is Liveness.UNKNOWN:
        raise SchedulerUnavailable(
            f"the queue shows no job of run {directory.run}, and the end of job {known[-1].job_id} cannot be "
            f"confirmed: {presence.reason}",
            hint="try again in a minute; if you know that it is over: --force",
        )
    job = presence.job
    if job is not None and known[-1].job_id.task is not None:
        job = of_task(job, known[-1].job_id.task)
    if presence.liveness is Liveness.GONE or job is None:
        return ()
    mark = split_comment(job.comment)
    # SLURM may assign an id twice after a crash: a job with another token is not ours.
    if mark is None:  # the site overwrites comments, or the job is unknown
        return (job,) if job.user in ("", *submitters(directory, intents, me)) else ()
    return (job,) if mark[1] in {intent.token for intent in intents} else ()


def resolve_after(project: Project, run: str, after: str) -> JobId:
    """Return the job to queue behind, from the value of `--after`.

    `auto` is the newest live job of the run. Raise SchedulerError if that job is no longer in the queue, and
    SchedulerUnavailable if the scheduler does not answer.
    """
    scheduler = project.scheduler()
    if after != "auto":
        job_id = JobId.parse(after).whole  # the end of one task proves nothing about the others
        presence = scheduler.presence(job_id)
        if presence.liveness is Liveness.UNKNOWN:
            raise SchedulerUnavailable(
                f"the state of job {job_id} is unknown: {presence.reason}", hint="nothing was queued; try again"
            )
        if presence.liveness is Liveness.GONE:
            raise SchedulerError(
                f"job {job_id} is not in the queue: {presence.reason}",
                hint="submit without --after, or see: resil status",
            )
        return presence.job.id.whole if presence.job is not None else job_id
    directory = project.directory(run)
    intents = read_intents(directory)
    job = newest(live_jobs(scheduler, directory, project.system.host.user), intents)
    if job is None:
        raise SchedulerError(f"run {run} has no job in the queue to wait for", hint="submit without --after")
    return handle_of(job, intents)


def adopted_to_follow(project: Project, run: str) -> JobId | None:
    """Return the live job that the next submit of the run continues: its newest job, if that was adopted; else None.

    Raise SchedulerUnavailable if the scheduler does not answer.
    """
    directory, scheduler = project.directory(run), project.scheduler()
    intents = read_intents(directory) if directory.exists() else ()
    last = newest_intent(intents)
    if last is None or not last.adopted or last.scheduler != scheduler.name:
        return None
    job = newest(live_jobs(scheduler, directory, project.system.host.user), intents)
    return None if job is None else handle_of(job, intents)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The result of a cancel.

    Attributes:
        ids: the jobs and arrays that were cancelled.
        still_ending: those that a query afterwards still showed with processes: they have KillWait to end.
    """

    ids: tuple[JobId, ...]
    still_ending: tuple[JobId, ...]


def cancel(project: Project, directory: RunDirectory, *, pending_only: bool = False) -> Cancelled:
    """Cancel the jobs of a run, and query afterwards whether they are ending.

    Raise NoSuchJob if a successful answer shows none, SchedulerUnavailable if there is no answer (the message says
    whether they were cancelled before), SchedulerError if a job is not ours to end.
    """
    intents, me = read_intents(directory), project.system.host.user
    scheduler = project.scheduler(scheduler_of(intents))

    def live() -> tuple[Job, ...]:
        jobs = jobs_of_run(scheduler.jobs(users=()), directory.run, intents)
        return tuple(job for job in jobs if job.state.is_alive and (job.state.is_waiting or not pending_only))

    before = live() or (() if pending_only else confirm_gone(scheduler, directory, intents, me))
    if not before:
        raise NoSuchJob(f"run {directory.run} has no job in the queue", hint="see: resil status")
    requested = tuple(sorted({handle_of(job, intents) for job in before}))
    names = ", ".join(map(str, requested))
    deed = Deed.CANCELLED_PENDING if pending_only else Deed.CANCELLED
    done = Intervention(deed, me, project.system.clock.now(), tuple(job_id.array for job_id in requested))
    with suppress(StateDirectoryError):  # on a full disk as well
        record_intervention(directory, done)  # before, so that no watchdog sees the effect alone
    try:
        scheduler.cancel(requested, pending_only=pending_only)
    except SchedulerUnavailable:
        raise
    except SchedulerError as error:
        with suppress(StateDirectoryError):
            record_intervention(directory, replace(done, deed=Deed.NOT_CANCELLED))
        others = sorted({job.user for job in before} - {"", me})
        if others and {job.id.array for job in before if job.user in others} <= adopted_ids(intents):
            error.hint = f"only {' and '.join(others)} can end it: scancel {' '.join(map(str, requested))}"
        elif others:
            whose = f"some of its jobs belong to {', '.join(others)}, and only the owner can cancel them"
            error.hint = f"{whose}; stop the run by its switch instead: resil kill {directory.run}"
        raise
    finally:
        queue_cache.invalidate(project.system, scheduler.name)
    try:
        after = live()
    except SchedulerUnavailable as error:
        raise SchedulerUnavailable(
            f"job {names} was cancelled; its end could not be confirmed: {error.message}",
            hint=f"check again: resil status {directory.run} --fresh",
        ) from error
    if any(job.state.is_waiting for job in after):
        left = ", ".join(str(job.id) for job in after if job.state.is_waiting)
        raise SchedulerError(
            f"job {left} is still in the queue",
            hint=f"see its owner and reason: resil status {directory.run} --fresh; or use: resil kill {directory.run}",
        )
    return Cancelled(requested, tuple(sorted({handle_of(job, intents) for job in after})))
