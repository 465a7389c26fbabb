"""The process that runs the jobs of one spool: `python -m resilience.schedulers._local_daemon SPOOL`.

Started by whoever submits, single by a lock, gone by itself when nothing is left to do. It may be killed at any
moment: each job has its own watcher (see _local_job), and the next daemon, started by the next call, goes on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

from resilience.errors import ResilError, SchedulerUnavailable
from resilience.model.job_state import JobState
from resilience.schedulers import _local_job as job
from resilience.schedulers import _local_processes as processes
from resilience.schedulers import _local_rules as rules
from resilience.schedulers._local_dependency import job_ids
from resilience.schedulers._local_grammar import default_output, expand_pattern
from resilience.schedulers._local_records import Entry, Task
from resilience.schedulers._local_rules import Due
from resilience.schedulers._local_shims import write_shims
from resilience.schedulers._local_spool import Spool
from resilience.schedulers._local_variables import job_variables
from resilience.system.clock import SystemClock

CPUS_VARIABLE = "RESIL_LOCAL_CPUS"
IDLE_VARIABLE = "RESIL_LOCAL_IDLE_S"
_IDLE_S = 30.0
_BUSY_POLL_S = 0.1
_QUIET_POLL_S = 0.5
_CANCEL_POLL_S = 0.4
_RESCAN_S = 5.0
_LOCK_S = 10.0
_START_LOCK_S = 0.6
_PRUNE_S = 3600.0
_FINISHED_WORD = b"r"


def available_cpus(environ: dict[str, str]) -> int:
    """How many CPUs the jobs may share: $RESIL_LOCAL_CPUS, else those this process may use."""
    chosen = environ.get(CPUS_VARIABLE, "")
    return int(chosen) if chosen.isdigit() and int(chosen) else len(os.sched_getaffinity(0))


class Daemon:
    """Runs the queue of one spool."""

    def __init__(self, spool: Spool, *, cpus: int, idle_s: float, now: Callable[[], float]) -> None:
        self._spool = spool
        self._cpus = cpus
        self._idle_s = idle_s
        self._now = now
        self._host = socket.gethostname().partition(".")[0]
        self._entries: dict[int, Entry] = {}
        self._tasks: dict[int, list[Task]] = {}
        self._watchers: set[int] = set()
        self._serial = -1
        self._look_at = 0.0
        self._cancel_at = 0.0
        self._rescan_at = 0.0
        self._prune_at = 0.0
        self._idle_since = time.monotonic()

    def recover(self) -> None:
        """Look at what an earlier daemon left: sweep, tell bash again, adopt the jobs that still run."""
        with self._spool.locked(_LOCK_S, announce=False):
            self._spool.sweep()
            self._load()
            for key, tasks in self._tasks.items():
                self._spool.retell(self._entries[key], tasks)
            self._settle()

    def step(self) -> bool:
        """One look at everything. False when there is nothing left to do and it is time to go."""
        monotonic = time.monotonic()
        changed = self._spool.serial() != self._serial or monotonic >= self._rescan_at
        with self._spool.locked(_LOCK_S, announce=False):
            if changed:
                self._load()
            if monotonic >= self._cancel_at:
                self._cancel_at = monotonic + _CANCEL_POLL_S
                self._obey_cancel_files()
            changed = self._settle() or changed
            if changed or self._now() >= self._look_at:
                self._start_what_may()
            if monotonic >= self._prune_at:
                self._prune_at = monotonic + _PRUNE_S
                self._spool.prune(self._now(), self._needed())
            self._serial = self._spool.serial()
            if self._tasks:
                self._idle_since = monotonic
            return bool(self._tasks) or monotonic < self._idle_since + self._idle_s

    def patience_s(self) -> float:
        """How long to wait for news before the next step."""
        running = [
            (self._entries[key], task) for key, tasks in self._tasks.items() for task in tasks if task.is_running
        ]
        now = self._now()
        times = [time for entry, task in running if (time := rules.next_due(entry, task)) is not None]
        wait = _BUSY_POLL_S if running else _QUIET_POLL_S
        return max(0.0, min([wait, self._look_at - now, *(time - now for time in times)]))

    def _load(self) -> None:
        self._rescan_at = time.monotonic() + _RESCAN_S
        self._entries, self._tasks = {}, {}
        for key in self._spool.active():
            try:
                entry = self._spool.entry(key)
            except SchedulerUnavailable as error:
                _say(str(error))
                self._spool.close(key)
                continue
            if entry is None:
                self._spool.close(key)
                continue
            self._entries[key] = entry
            self._tasks[key] = self._spool.tasks(entry)
        for key in [key for key, tasks in self._tasks.items() if all(task.state.is_final for task in tasks)]:
            self._close(key)

    def _needed(self) -> set[int]:
        """Ids of the submissions that live ones depend on."""
        return {
            key
            for tasks in self._tasks.values()
            for task in tasks
            if task.dependency
            for key in job_ids(task.dependency)
        }

    def _keep(self, entry: Entry, task: Task) -> None:
        tasks = self._tasks[entry.id]
        tasks[next(place for place, one in enumerate(tasks) if one.raw == task.raw)] = task
        self._spool.save(entry, task)

    def _close(self, key: int) -> None:
        self._spool.close(key)
        del self._entries[key], self._tasks[key]

    def _each(self) -> list[tuple[Entry, Task]]:
        return [(self._entries[key], task) for key, tasks in self._tasks.items() for task in tasks]

    def _obey_cancel_files(self) -> None:
        now = self._now()
        for key, entry in self._entries.items():
            whole = self._spool.folder(key) / "cancel"
            asked = entry.indices is not None and whole.exists()
            for task in list(self._tasks[key]):
                file = self._spool.folder(task.raw) / "cancel"
                if task.state.is_alive and (file.exists() or (asked and task.state is JobState.PENDING)):
                    self._keep(entry, rules.cancelled(task, now))
                    self._look_at = 0.0
                    file.unlink(missing_ok=True)
            if asked:
                whole.unlink(missing_ok=True)

    def _settle(self) -> bool:
        """Look at the running jobs: who ended, who is due a signal. True if something changed."""
        changed = False
        now = self._now()
        self._reap()
        for entry, task in self._each():
            if not task.is_running:
                continue
            new = self._look_at_job(entry, task, now)
            if new is not task:
                self._keep(entry, new)
                changed = True
        for key in [key for key, tasks in self._tasks.items() if all(task.state.is_final for task in tasks)]:
            self._close(key)
            changed = True
        return changed

    def _look_at_job(self, entry: Entry, task: Task, now: float) -> Task:
        folder = self._spool.folder(task.raw)
        watched = processes.is_alive(task.supervisor, task.supervisor_ticks, task.boot)
        exit_ = job.read_exit(folder)
        if not watched:
            if exit_ is None:
                self._end_what_is_left(task)
                if not task.ending:
                    _say(f"job {task.raw} was lost: its watcher is gone and nobody saw it end")
            return rules.ended(entry, task, exit_, now)
        if exit_ is not None:
            task = task if task.state is JobState.COMPLETING else replace(task, state=JobState.COMPLETING)
        return self._do_what_is_due(entry, task, folder, now)

    def _do_what_is_due(self, entry: Entry, task: Task, folder: Path, now: float) -> Task:
        due = rules.due(entry, task, now)
        if due is Due.SIGNAL:
            steps, _ = job.step_tasks(folder)
            batch = job.batch_shell(folder)
            targets = [batch] if entry.signal_batch and batch else [] if entry.signal_batch else steps
            processes.send(targets, entry.signal)
            processes.send(targets, signal.SIGCONT)
            return replace(task, signalled=True)
        if due is Due.TIMEOUT:
            task = rules.ending(task, JobState.TIMEOUT, now)
            due = Due.TERM
        if due is Due.TERM:
            return self._terminate(task, folder, now)
        if due is Due.KILL:
            below = processes.descendants(task.supervisor, spare=os.getpid())
            processes.send(below, signal.SIGKILL)
            if not below:
                # It hangs before it started anything: the output lies on a file system that does not answer.
                processes.send([task.supervisor], signal.SIGKILL)
        return task

    def _terminate(self, task: Task, folder: Path, now: float) -> Task:
        """SIGCONT and SIGTERM to the batch shell and to srun's tasks: what reaches a job under proctrack/cgroup."""
        completing = replace(task, state=JobState.COMPLETING)
        batch = job.batch_shell(folder)
        if not batch and job.read_exit(folder) is None:
            return completing  # it is only just starting: try again
        why = {"TIMEOUT": " DUE TO TIME LIMIT", "REQUEUED": " DUE TO JOB REQUEUE"}.get(task.ending, "")
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
        line = f"slurmstepd-{self._host}: error: *** JOB {task.raw} ON {self._host} CANCELLED AT {when}{why} ***\n"
        _append(task.stderr, line)
        steps, _ = job.step_tasks(folder)
        targets = [*steps, *([batch] if batch else [])]
        processes.send(targets, signal.SIGCONT)
        processes.send(targets, signal.SIGTERM)
        return replace(completing, termed=True)

    def _end_what_is_left(self, task: Task) -> None:
        """Kill what a job left whose watcher is gone. Two copies of one job must never run."""
        mark = (f"SLURM_JOB_ID={task.raw}", f"RESIL_LOCAL_SPOOL={self._spool.root}")
        for _ in range(50):
            left = processes.carrying(mark)
            if not left:
                return
            processes.send(left, signal.SIGKILL)
            time.sleep(0.02)
            self._reap()

    def _start_what_may(self) -> None:
        now = self._now()
        known = dict(self._tasks)
        for key in self._needed() - set(known):
            with contextlib.suppress(SchedulerUnavailable):
                entry = self._spool.entry(key)
                if entry is not None:
                    known[key] = self._spool.tasks(entry)
        plan = rules.plan(self._entries, known, now, self._cpus)
        self._look_at = plan.look_again if plan.look_again is not None else now + 3600
        by_raw = {task.raw: (entry, task) for entry, task in self._each()}
        for raw in plan.cancel:
            entry, task = by_raw[raw]
            self._keep(entry, replace(rules.cancelled(task, now), reason="DependencyNeverSatisfied"))
            self._look_at = 0.0
        for raw in plan.start:
            self._start(*by_raw[raw], now)

    def _start(self, entry: Entry, task: Task, now: float) -> None:
        folder = self._spool.folder(task.raw)
        for name in (job.EXIT_FILE, job.BATCH_FILE):
            (folder / name).unlink(missing_ok=True)
        for file in (folder / job.STEPS).glob("*") if (folder / job.STEPS).is_dir() else ():
            file.unlink(missing_ok=True)
        task = rules.started(task, now)
        try:
            launch = self._launch(entry, task)
        except ResilError as error:
            _say(f"job {task.raw} cannot be started: {error}")
            failure = rules.Exit(0, 0, now, str(error))
            self._keep(entry, rules.ended(entry, task, failure, now))
            return
        gate_out, gate_in = os.pipe()
        try:
            pid = job.spawn(launch, gate_out)
            self._watchers.add(pid)
            ticks = processes.start_ticks(pid)
            task = replace(
                task,
                supervisor=pid,
                supervisor_ticks=ticks,
                boot=processes.boot_id(),
                stdout=os.path.join(launch.directory, launch.output),  # noqa: PTH118 - the name as it was given
                stderr=os.path.join(launch.directory, launch.error or launch.output),  # noqa: PTH118
            )
            self._keep(entry, task)
            os.write(gate_in, _FINISHED_WORD)
        finally:
            os.close(gate_out)
            os.close(gate_in)

    def _launch(self, entry: Entry, task: Task) -> job.Launch:
        def path(pattern: str) -> str:
            return expand_pattern(
                pattern,
                raw=task.raw,
                array=entry.id,
                index=task.index,
                name=entry.name,
                user=entry.user,
                host=self._host,
            )

        submission = self._spool.folder(entry.id)
        return job.Launch(
            folder=self._spool.folder(task.raw),
            script=submission / "slurm_script",
            arguments=entry.script_args,
            environment=job_variables(
                entry,
                task,
                self._spool.environment(entry.id),
                spool=str(self._spool.root),
                host=self._host,
                cpus_on_node=self._cpus,
            ),
            directory=path(entry.directory),
            output=path(entry.output or default_output(entry.indices is not None)),
            error=path(entry.error),
            input=path(entry.input),
            append=entry.append,
            umask=entry.umask,
            kill_wait_s=entry.kill_wait_s,
            wake=self._spool.root / "wake",
            host=self._host,
        )

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                self._watchers.discard(pid)


def run(spool: Spool, ready: Callable[[], None]) -> None:
    """Hold the daemon's lock and run the queue until it is empty for a while. Return at once if another does."""
    lock = os.open(spool.root / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _lock(lock):
        return
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()} {processes.start_ticks(os.getpid())}\n".encode(), 0)
    processes.adopt_orphans()
    environ = dict(os.environ)
    daemon = Daemon(
        spool, cpus=available_cpus(environ), idle_s=float(environ.get(IDLE_VARIABLE) or _IDLE_S), now=SystemClock().now
    )
    write_shims(spool.root / "bin")
    news, wakeup = os.pipe()
    os.set_blocking(news, False)
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, _nothing)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    # Opened for both so that the last writer's closing is no end of file.
    fifo = os.open(spool.root / "wake", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    daemon.recover()
    ready()
    while spool.root.is_dir():
        try:
            if not daemon.step() and _leave(spool, lock):
                break
        except SchedulerUnavailable as error:
            _say(str(error))
            time.sleep(1.0)
            continue
        readable, _, _ = select.select([news, fifo], [], [], daemon.patience_s())
        for descriptor in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(descriptor, 4096)


def _leave(spool: Spool, lock: int) -> bool:
    """Give the daemon's lock back while nobody can submit; False when somebody has meanwhile."""
    with spool.locked(_LOCK_S, announce=False):
        if spool.active():
            return False
        os.close(lock)
        return True


def _lock(descriptor: int) -> bool:
    """Become the one daemon. A client that only looks whether there is one holds the lock for an instant."""
    deadline = time.monotonic() + _START_LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno != errno.EAGAIN or time.monotonic() >= deadline:
                return False
        time.sleep(0.01)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Let the signal be delivered; the wake-up descriptor does the rest."""


def _append(path: str, line: str) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def _say(text: str) -> None:
    """One line into daemon.log."""
    os.write(2, f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n".encode("utf-8", "replace"))


def main(arguments: list[str]) -> int:
    """Detach, and return in the foreground process once the queue is looked after."""
    spool = Spool(Path(arguments[0]))
    told, teller = os.pipe()
    if os.fork():
        os.close(teller)
        os.read(told, 1)
        return 0
    os.close(told)
    os.setsid()
    os.chdir("/")
    log = os.open(spool.root / "daemon.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDWR)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    processes.name_process("resil-local")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run(spool, lambda: os.close(teller))
    except ResilError as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
