"""The embedded scheduler: runs jobs on this machine as SLURM would, where there is no SLURM.

For a laptop, a workstation, and for trying things. A spool directory holds the queue; a small process of one's own
runs it and goes away when it is empty. What differs from SLURM: docs/explanation/embedded-scheduler.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal as signals
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from resilience import __version__
from resilience.errors import NoSuchJob, ProbeError, ResilError, SchedulerError, SchedulerUnavailable, UsageError
from resilience.model.cluster_config import ClusterConfig
from resilience.model.job import Job, JobId, JobUpdate
from resilience.model.job_state import JobState
from resilience.model.node import Node
from resilience.model.presence import Liveness, Presence
from resilience.model.submission import Submission, Submitted
from resilience.schedulers import _local_grammar as grammar
from resilience.schedulers import _local_rules as rules
from resilience.schedulers._local_dependency import job_ids, with_array_ids
from resilience.schedulers._local_records import Entry, Task, job_of, jobs_of
from resilience.schedulers._local_spool import SPOOL_VARIABLE, Spool, spool_path
from resilience.schedulers._local_submit import DEFAULT_KILL_WAIT_S, KILL_WAIT_VARIABLE, Wish, understand

if TYPE_CHECKING:
    from resilience.system.ports import Clock, Runner

_DAEMON = "resilience.schedulers._local_daemon"
_START_TIMEOUT_S = 15.0


class LocalScheduler:
    """The Scheduler port on one machine. Nothing is kept in memory between calls: the spool is the truth."""

    def __init__(self, *, clock: Clock, runner: Runner, environ: Mapping[str, str], deadline_s: float = 60.0) -> None:
        self._clock = clock
        self._runner = runner
        self._environ = environ
        self._deadline_s = deadline_s
        self._spool = Spool(spool_path(environ))
        self._host = socket.gethostname().partition(".")[0]
        self._user = _user_name(environ)

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
        if (known := self._spool.find(submission.token)) is not None:
            return Submitted(JobId(known.id), ("it was queued before, with the same token",), recovered=True)
        wish = self._understand(submission)
        self._spool.create()
        with self._spool.locked(self._deadline_s):
            self._spool.sweep()
            known = self._spool.find(submission.token)
            if known is not None:
                return Submitted(JobId(known.id), wish.notes, recovered=True)
            entry = replace(wish.entry, dependency=self._resolve(wish.entry.dependency))
            entry = self._spool.add(entry, wish.script, wish.environment)
        trouble = self._see_to_daemon()
        return Submitted(JobId(entry.id), (*wish.notes, *trouble))

    def test(self, submission: Submission) -> str:
        """Say whether it would start now, without queueing it."""
        wish = self._understand(submission)
        entry = replace(wish.entry, id=2**62, dependency=self._resolve(wish.entry.dependency))
        entries, tasks = self._load()
        entries[entry.id] = entry
        tasks[entry.id] = [entry.fresh(raw) for raw in entry.raw_ids]
        plan = rules.plan(entries, tasks, self._clock.now(), self._cpus())
        first = entry.raw_ids[0]
        if first in plan.start:
            return f"it would start now on {self._host}"
        return f"it would wait: {plan.reasons.get(first, 'DependencyNeverSatisfied')}"

    def command_line(self, submission: Submission) -> tuple[str, ...]:
        """What sbatch would be called with, were there one, for people to read."""
        options = [f"--{name}" if value is None else f"--{name}={value}" for name, value in submission.options.items()]
        if "comment" not in submission.options:
            options.append(f"--comment={submission.comment}")
        return ("resil-local", "sbatch", *options, *submission.extra_args, submission.script, *submission.script_args)

    def find(self, token: str) -> tuple[Job, ...]:
        """The jobs that carry this token, ended ones included."""
        if not self._spool.exists():
            return ()
        self._see_to_daemon()
        entry = self._spool.find(token)
        return () if entry is None else self._told(entry)

    def jobs(
        self, *, users: Collection[str] | None = None, names: Collection[str] = (), finished: bool = False
    ) -> tuple[Job, ...]:
        """The queue. There is one person in it: who asks for somebody else's jobs gets none."""
        if users and self._user not in users:
            return ()
        if not self._spool.exists():
            return ()
        self._see_to_daemon()
        entries, tasks = self._load(finished=finished)
        result: list[Job] = []
        reasons = self._reasons(entries, tasks)
        for key, entry in entries.items():
            told = [self._with_reason(task, reasons) for task in tasks[key]]
            result.extend(jobs_of(entry, [task for task in told if finished or task.state.is_alive], self._host))
        return tuple(job for job in result if not names or job.name in names)

    def job(self, job_id: JobId) -> Job:
        """One job. An array as a whole is told by its pending record, or by its last task when none waits."""
        self._require_spool()
        self._see_to_daemon()
        entry, wanted = self._locate(job_id)
        told = self._told(entry)
        if entry.indices is not None and job_id.task is None and len(wanted) > 1:
            alive = [job for job in told if job.state.is_alive]
            return next((job for job in told if job.is_array_record), (alive or list(told))[-1])
        for job in told:
            if job.raw_id == wanted[0] and not job.is_array_record:
                return job
        entries, tasks = self._load()
        reasons = self._reasons(entries, tasks)
        return job_of(entry, self._with_reason(self._spool.task(entry, wanted[0]), reasons), self._host)

    def presence(self, job_id: JobId) -> Presence:
        """Whether it exists. A spool that cannot be read, or is not there, says nothing."""
        try:
            job = self.job(job_id)
            if job.state.is_final and job_id.task is None:
                entry, raws = self._locate(job_id)
                alive = next((t for raw in raws if (t := self._spool.task(entry, raw)).state.is_alive), None)
                job = job_of(entry, alive, self._host) if alive is not None else job
        except NoSuchJob as error:
            return Presence(Liveness.GONE, error.message)
        except ResilError as error:
            return Presence(Liveness.UNKNOWN, error.message)
        if job.state.is_alive:
            return Presence(Liveness.ALIVE, f"the spool has it, {job.state}", job)
        return Presence(Liveness.GONE, f"it has ended, {job.state}", job)

    def history(self, job_ids: Collection[JobId]) -> tuple[Job, ...]:
        """What the spool remembers of these jobs, a record per task; ended ones are kept for a week."""
        self._require_spool()
        self._see_to_daemon()
        found: dict[int, Job] = {}
        for job_id in job_ids:
            with contextlib.suppress(NoSuchJob):
                entry, raws = self._locate(job_id)
                for raw in raws:
                    found[raw] = job_of(entry, self._spool.task(entry, raw), self._host)
        return tuple(found.values())

    def lost(self) -> tuple[tuple[JobId, tuple[float, ...]], ...]:
        """The jobs that were once found without processes though they should have run, and when that was seen."""
        if not self._spool.exists():
            return ()
        entries, tasks = self._load(finished=True)
        return tuple((JobId(key, task.index), task.lost) for key in entries for task in tasks[key] if task.lost)

    def cancel(self, job_ids: Collection[JobId], *, pending_only: bool = False) -> None:
        """End them: at once what waits, with SIGTERM and then SIGKILL what runs. Unknown or ended ones are no error."""
        self._require_spool()
        now = self._clock.now()
        with self._spool.locked(self._deadline_s):
            for job_id in job_ids:
                try:
                    entry, raws = self._locate(job_id)
                except NoSuchJob:
                    continue
                for raw in raws:
                    task = self._spool.task(entry, raw)
                    if pending_only and task.state is not JobState.PENDING:
                        continue
                    self._save_if_new(entry, task, rules.cancelled(task, now))
        self._see_to_daemon()

    def hold(self, job_id: JobId) -> None:
        """Keep what waits of it from starting, also after a requeue."""
        self._change(job_id, lambda task: replace(task, held=True))

    def release(self, job_id: JobId) -> None:
        """Undo `hold`."""
        self._change(job_id, lambda task: replace(task, held=False, reason=""))

    def requeue(self, job_id: JobId, *, hold: bool = False) -> None:
        """Put a running or ended job back into the queue, behind the others."""
        self._require_spool()
        now = self._clock.now()
        with self._spool.locked(self._deadline_s):
            entry, raws = self._locate(job_id)
            if (entry.indices is not None and len(raws) != 1) or (
                entry.indices is not None and job_id == JobId(entry.id)
            ):
                raise UsageError(
                    f"{job_id} is an array: requeueing it would start every task again",
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
        self._see_to_daemon()

    def update(self, job_id: JobId, change: JobUpdate) -> None:
        """Change a queued or running job. It is your own machine: you may lengthen a time limit as well."""
        self._require_spool()
        with self._spool.locked(self._deadline_s):
            entry, raws = self._locate(job_id)
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
                    self._save_if_new(entry, task, _updated(task, replace(change, dependency=dependency), job_id))
        self._see_to_daemon()

    def signal(self, job_id: JobId, signal_name: str, *, batch: bool = False, full: bool = False) -> None:
        """Send a signal to srun's tasks; to the batch shell (`batch`); to it and all below (`full`)."""
        from resilience.schedulers import _local_signal as sending

        number = grammar.signal_number(signal_name)
        if not number:
            raise UsageError(f"there is no signal {signal_name!r}", hint="for instance USR1, TERM, 10")
        if number == signals.SIGKILL and not batch and not full:
            return self.cancel([job_id])
        self._require_spool()
        entry, raws = self._locate(job_id)
        running = [task for raw in raws if (task := self._spool.task(entry, raw)).is_running]
        if not running:
            raise SchedulerError(f"job {job_id} is not running: nobody to signal")
        for task in running:
            sending.send_signal(self._spool.folder(task.raw), task, number, batch=batch, full=full)
        return None

    def nodes(self) -> tuple[Node, ...]:
        """This machine."""
        entries, tasks = self._load() if self._spool.exists() else ({}, {})
        used = sum(entries[key].cpus for key, group in tasks.items() for task in group if task.is_running)
        state = "IDLE" if not used else "ALLOCATED" if used >= self._cpus() else "MIXED"
        return (Node(self._host, state, partitions=("local",)),)

    def config(self) -> ClusterConfig:
        """What a job can expect here."""
        return ClusterConfig(
            scheduler="local",
            version=__version__,
            cluster="local",
            accounting=True,
            scrontab=False,
            job_requeue=True,
            kill_wait_s=int(float(self._environ.get(KILL_WAIT_VARIABLE) or DEFAULT_KILL_WAIT_S)),
            message_timeout_s=int(self._deadline_s),
            over_time_limit_min=0,
            proctrack="subreaper",
            max_array_size=grammar.MAX_ARRAY_SIZE,
            preempt_type="none",
            preempt_mode="OFF",
            send_user_signal=False,
            partitions={"local": "UP"},
            default_partition="local",
        )

    # Below: how the above is done.

    def _understand(self, submission: Submission) -> Wish:
        try:
            script = Path(submission.directory, submission.script).read_bytes()
        except OSError as error:
            raise SchedulerError(f"Unable to open file {submission.script}", hint=error.strerror or "") from error
        absolute = replace(submission, directory=str(Path(submission.directory).absolute()))
        return understand(absolute, script, self._environ, user=self._user, umask=_umask(), now=self._clock.now())

    def _resolve(self, dependency: str) -> str:
        """Check that every job it names exists, and name tasks of arrays as such. Raise SchedulerError otherwise."""
        names: dict[int, tuple[int, int]] = {}
        for key in job_ids(dependency):
            entry = self._spool.owner_of(key) if self._spool.exists() else None
            if entry is None:
                raise SchedulerError(
                    f"Batch job submission failed: Job dependency problem (there is no job {key})",
                    hint="`resil status` shows the jobs that are known; ended ones are kept for a week",
                )
            if entry.id != key:
                index = entry.index_of(key)
                names[key] = (entry.id, index if index is not None else 0)
        return with_array_ids(dependency, names) if names else dependency

    def _new_dependency(self, text: str, entry: Entry) -> str:
        if not text.strip():
            return ""
        dependency = self._resolve(grammar.parse_dependency(text))
        if entry.id in job_ids(dependency):
            raise SchedulerError("Job dependency problem (a job cannot wait for itself)")
        return dependency

    def _locate(self, job_id: JobId) -> tuple[Entry, list[int]]:
        """The submission, and the raw ids of those of its jobs that are meant. Raise NoSuchJob."""
        entry = self._spool.owner_of(job_id.array)
        if entry is None:
            raise NoSuchJob(f"Invalid job id specified: there is no job {job_id}")
        if job_id.task is None:
            return entry, list(entry.raw_ids) if entry.id == job_id.array else [job_id.array]
        raws = [raw for raw in entry.raw_ids if entry.index_of(raw) == job_id.task]
        if not raws or entry.id != job_id.array:
            raise NoSuchJob(f"Invalid job id specified: there is no job {job_id}")
        return entry, raws

    def _load(self, *, finished: bool = False) -> tuple[dict[int, Entry], dict[int, Sequence[Task]]]:
        entries: dict[int, Entry] = {}
        tasks: dict[int, Sequence[Task]] = {}
        for key in self._spool.everything() if finished else self._spool.active():
            with contextlib.suppress(_Damaged):
                entry = self._entry(key)
                if entry is not None:
                    entries[key] = entry
                    tasks[key] = self._spool.tasks(entry)
        return entries, tasks

    def _entry(self, key: int) -> Entry | None:
        try:
            return self._spool.entry(key)
        except SchedulerUnavailable as error:
            if error.transient:
                raise
            raise _Damaged from error

    def _reasons(self, entries: Mapping[int, Entry], tasks: Mapping[int, Sequence[Task]]) -> Mapping[int, str]:
        known = dict(tasks)
        for group in tasks.values():
            for task in group:
                for key in job_ids(task.dependency) if task.dependency else ():
                    if key not in known and (entry := self._spool.entry(key)) is not None:
                        known[key] = self._spool.tasks(entry)
        plan = rules.plan(entries, known, self._clock.now(), self._cpus())
        return {**dict.fromkeys(plan.start, "None"), **plan.reasons}

    def _with_reason(self, task: Task, reasons: Mapping[int, str]) -> Task:
        return replace(task, reason=reasons.get(task.raw, "")) if task.state is JobState.PENDING else task

    def _told(self, entry: Entry) -> tuple[Job, ...]:
        entries, tasks = self._load()
        entries[entry.id] = entry
        tasks[entry.id] = self._spool.tasks(entry)
        reasons = self._reasons(entries, tasks)
        return jobs_of(entry, [self._with_reason(task, reasons) for task in tasks[entry.id]], self._host)

    def _change(self, job_id: JobId, change: Callable[[Task], Task]) -> None:
        self._require_spool()
        with self._spool.locked(self._deadline_s):
            entry, raws = self._locate(job_id)
            live = [task for raw in raws if (task := self._spool.task(entry, raw)).state.is_alive]
            if not live:
                raise SchedulerError(f"Job has already finished for job {job_id}")
            for task in live:
                self._save_if_new(entry, task, change(task))
        self._see_to_daemon()

    def _save_if_new(self, entry: Entry, old: Task, new: Task) -> None:
        if new != old:
            self._spool.save(entry, new)

    def _require_spool(self) -> None:
        if not self._spool.exists():
            raise SchedulerUnavailable(
                f"there is no spool of the embedded scheduler at {self._spool.root}",
                hint=f"nothing was submitted yet, or ${SPOOL_VARIABLE} or the file system is another one now",
            )

    def _see_to_daemon(self) -> tuple[str, ...]:
        """Start the daemon where there is work and none runs, else wake it. Return what went wrong, for people."""
        if self._daemon_lives():
            self._spool.wake()
            return ()
        if not self._spool.active():
            return ()
        package = str(Path(__file__).parent.parent.parent)
        # Not the variables of a job that may be calling: the daemon is nobody's.
        own = {
            name: value for name, value in self._environ.items() if not name.startswith(("SLURM", "RESIL_LOCAL_SPOOL"))
        }
        environ = {**own, "PYTHONPATH": f"{package}:{self._environ.get('PYTHONPATH', '')}".rstrip(":")}
        try:
            done = self._runner.run(
                [sys.executable, "-P", "-m", _DAEMON, str(self._spool.root)],
                timeout_s=min(_START_TIMEOUT_S, self._deadline_s),
                env=environ,
            )
        except ProbeError as error:
            return (f"the job is queued, but the process that runs the queue did not start: {error.message}",)
        if done.returncode:
            return (f"the job is queued, but the process that runs the queue failed: {done.stderr.strip()[-500:]}",)
        return ()

    def _daemon_lives(self) -> bool:
        try:
            descriptor = os.open(self._spool.root / "daemon.lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _cpus(self) -> int:
        chosen = self._environ.get("RESIL_LOCAL_CPUS", "")
        return int(chosen) if chosen.isdigit() and int(chosen) else len(os.sched_getaffinity(0))


class _Damaged(Exception):
    """Internal: one submission's record was set aside; the others are told all the same."""


def _updated(task: Task, change: JobUpdate, job_id: JobId) -> Task:
    if task.state is not JobState.PENDING and (change.dependency is not None or change.begin_time is not None):
        raise SchedulerError(f"Job is no longer pending execution for job {job_id}")
    if change.dependency is not None:
        task = replace(task, dependency=change.dependency)
    if change.begin_time is not None:
        task = replace(task, begin=change.begin_time)
    if change.time_limit_s is not None:
        task = replace(task, time_limit_s=change.time_limit_s or None)
    if change.end_time is not None:
        if task.start is None:
            raise SchedulerError(
                f"Job is pending execution for job {job_id}", hint="it has no end yet: change its time"
            )
        task = replace(task, time_limit_s=max(1, round(change.end_time - task.start)))
    return task


def _umask() -> int:
    """This process's umask, read without changing it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def _user_name(environ: Mapping[str, str]) -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return environ.get("USER") or str(os.getuid())


SCHEDULER = LocalScheduler
