"""The embedded scheduler: runs jobs on this machine as SLURM would, where there is no SLURM.

For a laptop, a workstation, and for trying things. A spool directory holds the queue; a small process of one's own
runs it and goes away when it is empty. What differs from SLURM: docs/explanation/embedded-scheduler.md.
"""

from __future__ import annotations

import contextlib
import os
import signal as signals
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from resilience import __version__
from resilience.cluster import ClusterConfig, Node
from resilience.errors import NoSuchJob, NotSupported, ResilError, SchedulerError, UsageError
from resilience.job import Job, JobId, JobState, JobUpdate, Liveness, Presence
from resilience.schedulers._local import rules
from resilience.schedulers._local.broom import sweep
from resilience.schedulers._local.change import updated
from resilience.schedulers._local.dependency import job_ids
from resilience.schedulers._local.files import spool_path
from resilience.schedulers._local.keeper import keep_daemon
from resilience.schedulers._local.processes import available_cpus, current_umask, user_name
from resilience.schedulers._local.queue import Queue
from resilience.schedulers._local.records import Entry, Task, job_of
from resilience.schedulers._local.spool import Spool
from resilience.submission import Submission, Submitted

if TYPE_CHECKING:
    from resilience.schedulers import Keep
    from resilience.schedulers._local.submit import Wish
    from resilience.system.world import Clock, Runner

_NO_ID = 2**62
"""The id of a submission that is only being tried: later than all others."""


class LocalScheduler:
    """The Scheduler port on one machine. Nothing is kept in memory between calls: the spool is the truth."""

    def __init__(self, *, clock: Clock, runner: Runner, environ: Mapping[str, str], deadline_s: float = 60.0) -> None:
        self._clock = clock
        self._runner = runner
        self._environ = environ
        self._deadline_s = deadline_s
        self._spool = Spool(spool_path(environ))
        self._host = os.uname().nodename.partition(".")[0]
        self._user = user_name(environ)
        self._cpus = available_cpus(environ)
        self._queue = Queue(self._spool, host=self._host, cpus=self._cpus)

    @property
    def name(self) -> str:
        """`local`."""
        return "local"

    @property
    def spool(self) -> Path:
        """The spool directory."""
        return self._spool.root

    def submit(self, submission: Submission) -> Submitted:
        """Queue exactly one job, and see to it that somebody runs it."""
        if self._spool.exists() and (known := self._spool.find(submission.token)) is not None:
            self._keep_daemon()
            return Submitted(JobId(known.id), ("it was queued before, with the same token",), recovered=True)
        wish = self._understand(submission)
        self._spool.create()
        with self._spool.locked(self._deadline_s):
            self._spool.claim()
            sweep(self._spool)
            known = self._spool.find(submission.token)
            if known is None:
                entry = replace(wish.entry, dependency=self._queue.resolve(wish.entry.dependency))
                entry = self._spool.add(entry, wish.script, wish.environment)
        if known is not None:
            return Submitted(JobId(known.id), wish.notes, recovered=True)
        trouble = [f"the job is queued, but {text}" for text in self._keep_daemon()]
        return Submitted(JobId(entry.id), (*wish.notes, *trouble))

    def test(self, submission: Submission) -> str:
        """Say whether it would start now, without queueing it. Raise as `submit` where it would be refused."""
        wish = self._understand(submission)
        entry = replace(wish.entry, id=_NO_ID, dependency=self._queue.resolve(wish.entry.dependency))
        reason = self._queue.forecast(entry, self._clock.now()) if self._spool.exists() else ""
        return f"it would wait: {reason}" if reason else f"it would start now on {self._host}"

    def command_line(self, submission: Submission) -> tuple[str, ...]:
        """What sbatch would be called with, were there one, for people to read."""
        options = [f"--{name}" if value is None else f"--{name}={value}" for name, value in submission.options.items()]
        if "comment" not in submission.options:
            options.append(f"--comment={submission.comment}")
        return ("resil-local", "sbatch", *options, *submission.extra_args, submission.script, *submission.script_args)

    def find(self, token: str, *, user: str = "") -> tuple[Job, ...]:
        """The jobs that carry this token, ended ones included."""
        if not token:
            raise UsageError("an empty token is carried by every job")
        if not self._spool.exists():
            return ()
        self._look()
        entry = self._spool.find(token)
        return () if entry is None else self._queue.records_of(entry, self._clock.now())

    def jobs(
        self,
        *,
        users: Collection[str] | None = None,
        names: Collection[str] = (),
        finished: bool = False,
        keep: Keep | None = None,
    ) -> tuple[Job, ...]:
        """The queue. There is one person in it: who asks for somebody else's jobs gets none."""
        if (users and self._user not in users) or not self._spool.exists():
            return ()
        self._look()
        found = self._queue.records(*self._queue.load(finished=finished), self._clock.now(), finished=finished)
        return tuple(
            job
            for job in found
            if (not names or job.name in names) and (keep is None or keep(job.id.array, job.name, job.comment))
        )

    def job(self, job_id: JobId) -> Job:
        """One job. Of an array as a whole: the record of its waiting tasks, else a living one, else the last."""
        self._look()
        entry, raws = self._queue.locate(job_id)
        if len(raws) == 1 and (job_id.task is not None or entry.indices is None or entry.id != job_id.array):
            return self._queue.record(entry, raws[0], self._clock.now())
        told = self._queue.records_of(entry, self._clock.now())
        return min(told, key=lambda job: (not job.is_array_record, not job.state.is_alive, -job.raw_id))

    def presence(self, job_id: JobId, *, mine: bool = False) -> Presence:
        """Whether it exists. A spool that cannot be read, or is not there, says nothing."""
        try:
            job = self.job(job_id)
        except NoSuchJob as error:
            return Presence(Liveness.GONE, error.message)
        except ResilError as error:
            return Presence(Liveness.UNKNOWN, error.message)
        except Exception as error:
            return Presence(Liveness.UNKNOWN, f"looking failed: {type(error).__name__}: {error}")
        if job.state.is_alive:
            return Presence(Liveness.ALIVE, f"the spool has it: {job.state}", job)
        return Presence(Liveness.GONE, f"it has ended: {job.state}", job)

    def history(self, job_ids: Collection[JobId]) -> tuple[Job, ...]:
        """What the spool remembers of these jobs, a record per task; ended ones are kept for a week."""
        self._look()
        found: dict[int, Job] = {}
        for job_id in job_ids:
            with contextlib.suppress(NoSuchJob):
                entry, raws = self._queue.locate(job_id)
                for raw in raws:
                    found[raw] = job_of(entry, self._spool.task(entry, raw), self._host)
        return tuple(found.values())

    def cancel(self, job_ids: Collection[JobId], *, pending_only: bool = False) -> None:
        """End them: at once what waits, with SIGTERM and then SIGKILL what runs. Unknown or ended ones are no error."""
        self._queue.require()
        now = self._clock.now()
        with self._spool.locked(self._deadline_s):
            for job_id in job_ids:
                try:
                    entry, raws = self._queue.locate(job_id)
                except NoSuchJob:
                    continue
                for raw in raws:
                    task = self._spool.task(entry, raw)
                    if pending_only and task.state is not JobState.PENDING:
                        continue
                    self._save_if_new(entry, task, rules.cancelled(task, now))
        self._keep_daemon()

    def hold(self, job_id: JobId) -> None:
        """Keep what waits of it from starting, also after a requeue."""
        self._change(job_id, lambda task: replace(task, held=True))

    def release(self, job_id: JobId) -> None:
        """Undo `hold`."""
        self._change(job_id, lambda task: replace(task, held=False, reason=""))

    def requeue(self, job_id: JobId, *, hold: bool = False) -> None:
        """Put a running or ended job back into the queue, behind the others."""
        self._queue.require()
        now = self._clock.now()
        with self._spool.locked(self._deadline_s):
            entry, raws = self._queue.locate(job_id)
            if (entry.indices is not None and len(raws) != 1) or (
                entry.indices is not None and job_id == JobId(entry.id)
            ):
                raise SchedulerError(
                    f"{job_id} is an array: requeueing it as a whole would start every task again, finished ones too",
                    hint=f"name one task, for instance {entry.id}_{(entry.indices or (1,))[0]}",
                )
            task = self._spool.task(entry, raws[0])
            if task.state is JobState.PENDING:
                raise SchedulerError(f"Job is pending execution for job {job_id}")
            if not entry.requeue:
                raise SchedulerError(
                    f"Requested operation is presently disabled for job {job_id}",
                    hint="it was submitted with --no-requeue",
                )
            task = replace(task, requeue_held=hold)
            if task.state.is_final:
                task = rules.requeued(task, now)
            elif task.ending in ("", JobState.REQUEUED):
                task = rules.ending(task, JobState.REQUEUED, now)
            else:
                raise SchedulerError(f"job {job_id} is already being ended", transient=True)
            self._spool.save(entry, task)
        self._keep_daemon()

    def update(self, job_id: JobId, change: JobUpdate) -> None:
        """Change a queued or running job. It is your own machine: you may lengthen a time limit as well.

        Raise NotSupported, changing nothing, for nodes to exclude. That none is excluded is always so.
        """
        if change.exclude:
            raise NotSupported(
                f"job {job_id} cannot avoid {change.exclude}: the embedded scheduler has this one machine",
                hint="hold the job to keep it from starting here",
            )
        self._queue.require()
        with self._spool.locked(self._deadline_s):
            entry, raws = self._queue.locate(job_id)
            if change.array_throttle is not None:
                if entry.indices is None:
                    raise SchedulerError(f"job {job_id} is not an array: it has no throttle")
                if change.array_throttle < 0:
                    raise UsageError(f"{change.array_throttle} is not a throttle", hint="0 is no limit")
                self._spool.save_entry(replace(entry, throttle=change.array_throttle))
            if replace(change, array_throttle=None, exclude=None) != JobUpdate():
                dependency = None if change.dependency is None else self._new_dependency(change.dependency, entry)
                live = [task for raw in raws if (task := self._spool.task(entry, raw)).state.is_alive]
                if not live:
                    raise SchedulerError(f"Job has already finished for job {job_id}")
                for task in live:
                    self._save_if_new(entry, task, updated(task, replace(change, dependency=dependency), job_id))
        self._keep_daemon()

    def signal(self, job_id: JobId, signal_name: str, *, batch: bool = False, full: bool = False) -> None:
        """Send a signal to srun's tasks; to the batch shell (`batch`); to it and all below (`full`).

        A job that does not run has nobody who could get it: that is no error, as with scancel.
        """
        from resilience.schedulers._local import signals as sending
        from resilience.schedulers._local.grammar import signal_number

        number = signal_number(signal_name)
        if not number:
            raise UsageError(f"there is no signal {signal_name!r}", hint="for instance USR1, TERM, 10")
        if number == signals.SIGKILL and not batch and not full:
            return self.cancel([job_id])
        self._queue.require()
        entry, raws = self._queue.locate(job_id)
        running = [task for raw in raws if (task := self._spool.task(entry, raw)).is_running]
        for task in running:
            sending.send_signal(self._spool.folder(task.raw), task, number, batch=batch, full=full)
        return None

    def nodes(self) -> tuple[Node, ...]:
        """This machine."""
        entries, tasks = self._queue.load() if self._spool.exists() else ({}, {})
        used = sum(entries[key].cpus for key, group in tasks.items() for task in group if task.is_running)
        state = "IDLE" if not used else "ALLOCATED" if used >= self._cpus else "MIXED"
        return (Node(self._host, state, partitions=("local",)),)

    def config(self) -> ClusterConfig:
        """What a job can expect here."""
        from resilience.schedulers._local.grammar import MAX_ARRAY_SIZE
        from resilience.schedulers._local.submit import kill_wait_s

        return ClusterConfig(
            scheduler="local",
            version=__version__,
            cluster="local",
            accounting=True,
            scrontab=False,
            job_requeue=True,
            kill_wait_s=round(kill_wait_s(self._environ)),
            message_timeout_s=int(self._deadline_s),
            over_time_limit_min=0,
            proctrack="subreaper",
            max_array_size=MAX_ARRAY_SIZE,
            preempt_type="none",
            preempt_mode="OFF",
            send_user_signal=False,
            partitions={"local": "UP"},
            default_partition="local",
        )

    # Below: how the above is done.

    def _understand(self, submission: Submission) -> Wish:
        from resilience.schedulers._local.submit import understand  # not needed to look: `resil status` starts faster

        try:
            script = Path(submission.directory, submission.script).read_bytes()
        except OSError as error:
            raise SchedulerError(f"Unable to open file {submission.script}", hint=error.strerror or "") from error
        absolute = replace(submission, directory=str(Path(submission.directory).absolute()))
        return understand(
            absolute,
            script,
            submission.counted(self._environ),
            user=self._user,
            umask=current_umask(),
            now=self._clock.now(),
        )

    def _new_dependency(self, text: str, entry: Entry) -> str:
        if not text.strip():
            return ""
        from resilience.schedulers._local.grammar import parse_dependency

        dependency = self._queue.resolve(parse_dependency(text))
        if entry.id in job_ids(dependency):
            raise SchedulerError("Job dependency problem (a job cannot wait for itself)")
        return dependency

    def _look(self) -> None:
        """Before every look: a spool that is there, and a daemon that has seen which jobs are lost."""
        self._queue.require()
        self._keep_daemon()

    def _keep_daemon(self) -> Sequence[str]:
        return keep_daemon(self._spool, self._runner, self._environ, timeout_s=self._deadline_s)

    def _change(self, job_id: JobId, change: Callable[[Task], Task]) -> None:
        self._queue.require()
        with self._spool.locked(self._deadline_s):
            entry, raws = self._queue.locate(job_id)
            live = [task for raw in raws if (task := self._spool.task(entry, raw)).state.is_alive]
            if not live:
                raise SchedulerError(f"Job has already finished for job {job_id}")
            for task in live:
                self._save_if_new(entry, task, change(task))
        self._keep_daemon()

    def _save_if_new(self, entry: Entry, old: Task, new: Task) -> None:
        if new != old:
            self._spool.save(entry, new)


SCHEDULER = LocalScheduler
