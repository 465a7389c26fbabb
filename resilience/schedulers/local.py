"""The embedded scheduler: runs jobs on this host as SLURM would, without SLURM.

For laptops, workstations and experiments. The queue is a spool directory; a small daemon of the user runs the queue and
exits when it is empty. Differences from SLURM: docs/explanation/embedded-scheduler.md.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal as signals
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from resilience import __version__
from resilience.base.processes import cpu_seconds, descendants
from resilience.cluster import ClusterConfig, Node
from resilience.errors import NoSuchJob, NotSupported, ProbeError, ResilError, SchedulerError, UsageError
from resilience.job import Job, JobId, JobState, JobUpdate, Liveness, Presence
from resilience.schedulers._local import fault, rules
from resilience.schedulers._local.dependency import job_ids
from resilience.schedulers._local.processes import available_cpus, current_umask, user_name
from resilience.schedulers._local.queue import Queue
from resilience.schedulers._local.records import Entry, Task, job_of
from resilience.schedulers._local.spool import Spool, spool_path, write_shims
from resilience.submission import Submission, Submitted

if TYPE_CHECKING:
    from resilience.schedulers import Keep
    from resilience.schedulers._local.submit import Request
    from resilience.system.ports import Clock, Runner

_NO_ID = 2**62
"""The id of a submission that is only tested: larger than all others."""
_START_TIMEOUT_S = 15.0


class LocalScheduler:
    """The scheduler of one host. All state is in the spool; nothing is kept in memory between calls."""

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
        self._own = self._spool, self._queue

    @property
    def name(self) -> str:
        """Return `local`."""
        return "local"

    @property
    def spool(self) -> Path:
        """Return the spool directory."""
        return self._spool.root

    def commands(self) -> Path:
        """Return the directory of the replacements of SLURM's commands, written if necessary."""
        self._spool.create()
        write_shims(self._spool.root / "bin")
        return self._spool.root / "bin"

    @property
    def scontrol(self) -> str:
        """Return the path of its replacement of scontrol, quoted for a shell."""
        return shlex.quote(str(self.spool / "bin" / "scontrol"))

    def submit(self, submission: Submission) -> Submitted:
        """Queue exactly one job, and start the daemon that runs it."""
        self._suffer()
        if self._spool.exists() and (known := self._spool.find(submission.token)) is not None:
            self._keep_daemon()
            return Submitted(JobId(known.id), ("a job with the same token was already queued",), recovered=True)
        request = self._checked(submission)
        self._spool.create()
        with self._spool.locked(self._deadline_s):
            self._spool.claim()
            self._spool.cleanup()
            known = self._spool.find(submission.token)
            if known is None:
                entry = replace(request.entry, dependency=self._queue.resolve(request.entry.dependency))
                entry = self._spool.add(entry, request.script, request.environment)
        if known is not None:
            return Submitted(JobId(known.id), request.notes, recovered=True)
        error = self._keep_daemon()
        return Submitted(JobId(entry.id), (*request.notes, *([f"the job is queued, but {error}"] if error else [])))

    def test(self, submission: Submission) -> str:
        """Return whether the job would start now, without queueing it. Raise as `submit` if it would be rejected."""
        request = self._checked(submission)
        entry = replace(request.entry, id=_NO_ID, dependency=self._queue.resolve(request.entry.dependency))
        reason = self._queue.forecast(entry, self._clock.now()) if self._spool.exists() else ""
        return f"the job would wait: {reason}" if reason else f"the job would start now on {self._host}"

    def command_line(self, submission: Submission) -> tuple[str, ...]:
        """Return the equivalent sbatch command, for display."""
        options = [f"--{name}" if value is None else f"--{name}={value}" for name, value in submission.options.items()]
        if "comment" not in submission.options:
            options.append(f"--comment={submission.comment}")
        return ("resil-local", "sbatch", *options, *submission.extra_args, submission.script, *submission.script_args)

    def find(self, token: str, *, user: str = "") -> tuple[Job, ...]:
        """Return the jobs with this token, including ended jobs."""
        if not token:
            raise UsageError("the token is empty")
        if not self._spool.exists():
            return ()
        self._prepare()
        entry = self._spool.find(token)
        return () if entry is None else self._queue.records_of(entry, self._clock.now())

    def find_past(self, token: str, *, since: float, user: str = "") -> tuple[Job, ...]:
        """Return the jobs with this token: the spool has ended jobs for a week."""
        return self.find(token, user=user)

    def jobs(
        self,
        *,
        users: Collection[str] | None = None,
        names: Collection[str] = (),
        finished: bool = False,
        keep: Keep | None = None,
    ) -> tuple[Job, ...]:
        """Return the queue of the current user. A query for other users returns no jobs."""
        if (users and self._user not in users) or not self._spool.exists():
            return ()
        self._prepare()
        found = self._queue.records(*self._queue.load(finished=finished), self._clock.now(), finished=finished)
        return tuple(
            job
            for job in found
            if (not names or job.name in names) and (keep is None or keep(job.id.array, job.name, job.comment))
        )

    def job(self, job_id: JobId) -> Job:
        """Return a job; for a whole array the record of its pending tasks, else of a live task, else of the last."""
        self._prepare()
        entry, raws = self._queue.locate(job_id)
        if len(raws) == 1 and (job_id.task is not None or entry.indices is None or entry.id != job_id.array):
            return self._queue.records_of(entry, self._clock.now(), only=raws[0])[0]
        records = self._queue.records_of(entry, self._clock.now())
        return min(records, key=lambda job: (not job.is_array_record, not job.state.is_alive, -job.raw_id))

    def presence(self, job_id: JobId, *, mine: bool = False) -> Presence:
        """Return whether a job exists: UNKNOWN if the spool cannot be read or does not exist."""
        try:
            job = self.job(job_id)
        except NoSuchJob as error:
            return Presence(Liveness.GONE, error.message)
        except ResilError as error:
            return Presence(Liveness.UNKNOWN, error.message)
        except Exception as error:
            return Presence(Liveness.UNKNOWN, f"the check failed: {type(error).__name__}: {error}")
        if job.state.is_alive:
            return Presence(Liveness.ALIVE, f"the spool has the job: {job.state}", job)
        return Presence(Liveness.GONE, f"the job has ended: {job.state}", job)

    def history(self, job_ids: Collection[JobId]) -> tuple[Job, ...]:
        """Return the spool's records of jobs, one per task; ended jobs are kept for a week."""
        self._prepare()
        found: dict[int, Job] = {}
        for job_id in job_ids:
            with contextlib.suppress(NoSuchJob):
                entry, raws = self._queue.locate(job_id)
                for raw in raws:
                    found[raw] = job_of(entry, self._spool.task(entry, raw), self._host)
        return tuple(found.values())

    def cpu_seconds(self, job_id: JobId) -> float:
        """Return the CPU seconds of the job's processes and of their ended children; 0 if no task is running."""
        entry, raws = self._queue.locate(job_id)
        running = [task for raw in raws if (task := self._spool.task(entry, raw)).is_running]
        pids = [pid for task in running for pid in descendants(task.supervisor, spare=self._spool.daemon_pid())]
        return sum(map(cpu_seconds, pids))

    def cancel(self, job_ids: Collection[JobId], *, pending_only: bool = False) -> None:
        """Cancel jobs: pending jobs at once, running jobs by SIGTERM, then SIGKILL. Others are ignored."""
        now = self._clock.now()
        with self._changes():
            for job_id in job_ids:
                with contextlib.suppress(NoSuchJob):
                    entry, raws = self._queue.locate(job_id)
                    for task in (self._spool.task(entry, raw) for raw in raws):
                        if not pending_only or task.state is JobState.PENDING:
                            self._save(entry, task, rules.cancelled(task, now))

    def hold(self, job_id: JobId) -> None:
        """Hold the pending tasks of a job, also after a requeue."""
        with self._changes():
            self._change(job_id, lambda task: replace(task, held=True))

    def release(self, job_id: JobId) -> None:
        """Release a held job."""
        with self._changes():
            self._change(job_id, lambda task: replace(task, held=False, reason=""))

    def requeue(self, job_id: JobId, *, hold: bool = False) -> None:
        """Requeue a running or ended job at the end of the queue."""
        now = self._clock.now()
        with self._changes():
            entry, raws = self._queue.locate(job_id)
            if entry.indices is not None and (len(raws) != 1 or job_id == JobId(entry.id)):
                raise SchedulerError(
                    f"{job_id} is an array: requeueing an array restarts every task, including finished ones",
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
            elif task.ending in ("", JobState.REQUEUED, JobState.TIMEOUT):  # at its time limit as well, as in SLURM
                task = replace(rules.ending(task, JobState.REQUEUED, now), ending=JobState.REQUEUED.value)
            else:
                raise SchedulerError(f"job {job_id} is already being ended", transient=True)
            self._spool.save(entry, task)

    def update(self, job_id: JobId, change: JobUpdate) -> None:
        """Change a queued or running job. Unlike in SLURM, users may also extend a time limit.

        Raise NotSupported, without any change, for excluded nodes. An empty list of excluded nodes is accepted.
        """
        if change.exclude:
            raise NotSupported(
                f"job {job_id} cannot exclude {change.exclude}: the embedded scheduler has only this host",
                hint="hold the job to prevent its start on this host",
            )
        with self._changes():
            entry, _ = self._queue.locate(job_id)
            if change.array_throttle is not None:
                if entry.indices is None:
                    raise SchedulerError(f"job {job_id} is not an array: it has no throttle")
                if change.array_throttle < 0:
                    raise UsageError(f"{change.array_throttle} is not a throttle", hint="0 is no limit")
                self._spool.save_entry(replace(entry, throttle=change.array_throttle))
            change = replace(change, array_throttle=None, exclude=None)
            if change.dependency is not None:
                change = replace(change, dependency=self._new_dependency(change.dependency, entry))
            if change != JobUpdate():
                self._change(job_id, lambda task: rules.updated(task, change, job_id))

    def signal(self, job_id: JobId, signal_name: str, *, batch: bool = False, full: bool = False) -> None:
        """Send a signal to srun's tasks, to the batch shell (`batch`), or to all processes of the job (`full`).

        Jobs that do not run are ignored, as by scancel.
        """
        from resilience.schedulers._local.job import send_signal
        from resilience.schedulers._local.submit import signal_number

        number = signal_number(signal_name)
        if not number:
            raise UsageError(f"there is no signal {signal_name!r}", hint="for instance USR1, TERM, 10")
        self._suffer()
        if number == signals.SIGKILL and not batch and not full:
            return self.cancel([job_id])
        self._queue.require()
        entry, raws = self._queue.locate(job_id)
        running = [task for raw in raws if (task := self._spool.task(entry, raw)).is_running]
        for task in running:
            send_signal(self._spool, task, number, batch=batch, full=full)
        return None

    def begin_fault(self, mode: str, *, until: float, lag_s: float, name: str) -> None:
        """Answer badly from now on, as `resil inject scheduler` wants it: hang, down, garbage or lag."""
        fault.begin_fault(self._own[0].root, fault.SchedulerFault(mode, until, lag_s, name))

    def end_fault(self, name: str) -> None:
        """Answer well again, if the fault is that of the injection `name`."""
        fault.end_fault(self._own[0].root, name)

    def keep_answers(self) -> None:
        """Keep the present answers, for a lag."""
        fault.keep_answers(self._own[0].root)

    def watchers(self, job_id: JobId) -> tuple[tuple[int, int], ...]:
        """Return pid and start of the processes that watch the running tasks of a job: its slurmstepds."""
        entry, raws = self._queue.locate(job_id)
        running = [task for raw in raws if (task := self._spool.task(entry, raw)).is_running]
        return tuple((task.supervisor, task.supervisor_ticks) for task in running)

    def nodes(self) -> tuple[Node, ...]:
        """Return this host as the only node."""
        self._suffer(is_query=True)
        entries, tasks = self._queue.load() if self._spool.exists() else ({}, {})
        used = sum(entries[key].cpus for key, group in tasks.items() for task in group if task.is_running)
        state = "IDLE" if not used else "ALLOCATED" if used >= self._cpus else "MIXED"
        return (Node(self._host, state, partitions=("local",)),)

    def config(self) -> ClusterConfig:
        """Return the limits and features of this scheduler."""
        from resilience.schedulers._local.submit import MAX_ARRAY_SIZE, kill_wait_s

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

    def stop_daemon(self) -> None:
        """End the daemon; the next call of any client starts another if jobs are queued. Jobs that run stay."""
        if pid := self._spool.daemon_pid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signals.SIGTERM)

    def _checked(self, submission: Submission) -> Request:
        from resilience.schedulers._local.submit import check  # not needed for queries: keeps `resil status` fast

        try:
            script = Path(submission.directory, submission.script).read_bytes()
        except OSError as error:
            raise SchedulerError(f"Unable to open file {submission.script}", hint=error.strerror or "") from error
        return check(
            replace(submission, directory=str(Path(submission.directory).absolute())),
            script,
            submission.filtered_environment(self._environ),
            user=self._user,
            umask=current_umask(),
            now=self._clock.now(),
        )

    def _new_dependency(self, text: str, entry: Entry) -> str:
        if not text.strip():
            return ""
        from resilience.schedulers._local.submit import parse_dependency

        dependency = self._queue.resolve(parse_dependency(text))
        if entry.id in job_ids(dependency):
            raise SchedulerError("Job dependency problem (a job cannot wait for itself)")
        return dependency

    @contextlib.contextmanager
    def _changes(self) -> Iterator[None]:
        """Hold the lock of an existing spool, and wake the daemon after the changes."""
        self._suffer()
        self._queue.require()
        with self._spool.locked(self._deadline_s):
            yield
        self._keep_daemon()

    def _change(self, job_id: JobId, change: Callable[[Task], Task]) -> None:
        """Change all live jobs of this id. Raise SchedulerError if there are none."""
        entry, raws = self._queue.locate(job_id)
        live = [task for raw in raws if (task := self._spool.task(entry, raw)).state.is_alive]
        if not live:
            raise SchedulerError(f"Job has already finished for job {job_id}")
        for task in live:
            self._save(entry, task, change(task))

    def _save(self, entry: Entry, old: Task, new: Task) -> None:
        if new != old:
            self._spool.save(entry, new)

    def _prepare(self) -> None:
        """Before every query: require a spool, and a daemon that has recorded lost jobs."""
        if not self._suffer(is_query=True):
            self._queue.require()
            self._keep_daemon()

    def _suffer(self, *, is_query: bool = False) -> bool:
        """Answer as an injected fault wants it; return whether a query is answered from an old copy of the spool."""
        self._spool, self._queue = self._own
        found = fault.read_fault(self._spool.root)
        if found is None:
            return False
        fault.refuse(found, self._deadline_s)
        old = fault.snapshot(self._spool.root, found) if found.mode == "lag" and is_query else None
        if old is not None:
            self._spool = Spool(old)
            self._queue = Queue(self._spool, host=self._host, cpus=self._cpus)
        return old is not None

    def _keep_daemon(self) -> str:
        """Wake the daemon, or start one if there are active jobs. Return an error message, or an empty text."""
        if self._spool.has_daemon():
            self._spool.wake()
            return ""
        if not self._spool.active():
            return ""
        try:
            done = self._runner.run(
                self._spool.daemon_command(),
                timeout_s=min(_START_TIMEOUT_S, self._deadline_s),
                env=daemon_environment(self._environ),
            )
        except ProbeError as error:
            return f"the scheduler daemon did not start: {error.message}"
        return f"the scheduler daemon failed: {done.stderr.strip()[-500:]}" if done.returncode else ""


def daemon_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the daemon: with this package on the path, without variables of a calling job."""
    package = str(Path(__file__).parents[2])
    own = {name: value for name, value in environ.items() if not name.startswith(("SLURM", "RESIL_LOCAL_SPOOL"))}
    return {**own, "PYTHONPATH": f"{package}:{environ.get('PYTHONPATH', '')}".rstrip(":")}


SCHEDULER = LocalScheduler
