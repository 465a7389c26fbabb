"""The process that runs the jobs of one spool: `python -m resilience.schedulers._local.daemon SPOOL`.

Every client starts the daemon if there is none; a lock ensures a single daemon, which exits when the queue is empty.
The daemon may be killed at any time: each job has its own watcher (see _local/job.py), and the next daemon takes over.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from resilience.errors import ResilError, SchedulerUnavailable
from resilience.job import JobState
from resilience.schedulers._local import job, processes, rules
from resilience.schedulers._local.dependency import job_ids
from resilience.schedulers._local.records import Entry, Task
from resilience.schedulers._local.rules import Due
from resilience.schedulers._local.spool import Spool, take_lock, write_shims
from resilience.system.ports import SystemClock

LOCK_S = 10.0
_BUSY_POLL_S = 0.1
_QUIET_POLL_S = 0.5
_CANCEL_POLL_S = 0.6
_RESCAN_S = 5.0
_PRUNE_S = 3600.0
_IDLE_S = 30.0
_START_LOCK_S = 0.6
IDLE_VARIABLE = "RESIL_LOCAL_IDLE_S"


class Engine:
    """Runs the queue of one spool, step by step: applies the decisions of `_local/rules.py` to real processes."""

    def __init__(self, spool: Spool, *, cpus: int, idle_s: float, now: Callable[[], float]) -> None:
        self._spool = spool
        self._cpus = cpus
        self._idle_s = idle_s
        self._now = now
        self._host = os.uname().nodename.partition(".")[0]
        self._entries: dict[int, Entry] = {}
        self._tasks: dict[int, list[Task]] = {}
        self._serial = -1
        self._plan_at = 0.0
        self._cancel_at = 0.0
        self._rescan_at = 0.0
        self._prune_at = 0.0
        self._idle_since = time.monotonic()

    def recover(self) -> None:
        """Take over from an earlier daemon: clean up, write bash's files again, adopt the jobs that still run."""
        with self._spool.locked(LOCK_S, announce=False):
            self._spool.cleanup()
            self._load()
            for entry, task in self._each():
                self._spool.publish(entry, task)
            self._settle()

    def step(self) -> bool:
        """Check every job once. False when there is nothing left to do and it is time to exit."""
        monotonic = time.monotonic()
        changed = self._spool.serial() != self._serial or monotonic >= self._rescan_at
        with self._spool.locked(LOCK_S, announce=False):
            if changed:
                self._load()
            if monotonic >= self._cancel_at:
                self._cancel_at = monotonic + _CANCEL_POLL_S
                self._apply_cancel_files()
            changed = self._settle() or changed
            if changed or self._now() >= self._plan_at:
                self._start_ready()
            if monotonic >= self._prune_at:
                self._prune_at = monotonic + _PRUNE_S
                self._spool.prune(self._now(), self._dependencies())
            self._serial = self._spool.serial()
            if self._tasks:
                self._idle_since = monotonic
            return bool(self._tasks) or monotonic < self._idle_since + self._idle_s

    def timeout_s(self) -> float:
        """How long to wait for an event before the next step."""
        running = [(entry, task) for entry, task in self._each() if task.is_running]
        now = self._now()
        times = [time for entry, task in running if (time := rules.next_due(entry, task)) is not None]
        wait = _BUSY_POLL_S if running else _QUIET_POLL_S
        return max(0.0, min([wait, self._plan_at - now, *(time - now for time in times)]))

    def _load(self) -> None:
        self._rescan_at = time.monotonic() + _RESCAN_S
        self._entries, self._tasks = {}, {}
        for key in self._spool.active():
            entry = None
            try:
                entry = self._spool.entry(key)
            except SchedulerUnavailable as error:
                say(str(error))
            if entry is None:
                self._spool.close(key)
            else:
                self._entries[key], self._tasks[key] = entry, self._spool.tasks(entry)
        self._close_finished()

    def _dependencies(self) -> set[int]:
        """Ids of the submissions that live ones depend on."""
        return {key for _, task in self._each() if task.dependency for key in job_ids(task.dependency)}

    def _save(self, entry: Entry, task: Task) -> None:
        self._spool.save(entry, task)
        tasks = self._tasks[entry.id]
        tasks[next(place for place, one in enumerate(tasks) if one.raw == task.raw)] = task

    def _close_finished(self) -> bool:
        finished = [key for key, tasks in self._tasks.items() if all(task.state.is_final for task in tasks)]
        for key in finished:
            self._spool.close(key)
            del self._entries[key], self._tasks[key]
        return bool(finished)

    def _each(self) -> list[tuple[Entry, Task]]:
        return [(self._entries[key], task) for key, tasks in self._tasks.items() for task in tasks]

    def _is_cancelled(self, entry: Entry, task: Task) -> bool:
        """True if a cancel file asks for the end of a waiting job. Checked before every start: many short tasks could
        start between two checks of all jobs' files."""
        raws = {task.raw, entry.id} if entry.indices is not None else {task.raw}
        return any((self._spool.directory(raw) / "cancel").exists() for raw in raws)

    def _apply_cancel_files(self) -> None:
        now = self._now()
        for key, entry in self._entries.items():
            whole = self._spool.directory(key) / "cancel"
            asked = entry.indices is not None and whole.exists()
            for task in list(self._tasks[key]):
                file = self._spool.directory(task.raw) / "cancel"
                if task.state.is_alive and (file.exists() or (asked and task.state is JobState.PENDING)):
                    self._save(entry, rules.cancelled(task, now))
                    self._plan_at = 0.0
                    file.unlink(missing_ok=True)
            if asked:
                whole.unlink(missing_ok=True)

    def _settle(self) -> bool:
        """Check running jobs for their end and for due signals. Return whether a record changed."""
        changed = False
        failure: Exception | None = None
        now = self._now()
        processes.reap()
        for entry, task in self._each():
            if not task.is_running:
                continue
            new = self._check(entry, task, now)
            if new is not task:
                try:
                    self._save(entry, new)
                    changed = True
                except (OSError, ResilError) as error:  # a full disk: continue with the signals of the other jobs
                    failure = error
        changed = self._close_finished() or changed
        if failure is not None:
            raise failure
        return changed

    def _check(self, entry: Entry, task: Task, now: float) -> Task:
        directory = self._spool.directory(task.raw)
        # In this order, because a watcher may save the exit just before its own end.
        watched = processes.is_alive(task.supervisor, task.supervisor_ticks, task.boot)
        exit_ = job.read_exit(directory)
        if watched:
            if exit_ is not None and task.state is not JobState.COMPLETING:
                task = replace(task, state=JobState.COMPLETING)
            return self._apply_due(entry, task, directory, now)
        if exit_ is None and not task.ending and not self._has_begun(task, directory):
            return rules.not_started(task)
        if exit_ is None:
            self._kill_leftovers(task)
            if not task.ending:
                say(f"job {task.raw} was lost: its watcher is gone, its exit code is unknown")
        return rules.ended(entry, task, exit_, now)

    def _has_begun(self, task: Task, directory: Path) -> bool:
        """Return whether the job has begun. The marker is not synced, so after a reboot assume that it has."""
        return task.boot != processes.boot_id() or (directory / job.BEGUN_FILE).exists()

    def _apply_due(self, entry: Entry, task: Task, directory: Path, now: float) -> Task:
        due = rules.due(entry, task, now)
        if due is Due.SIGNAL:
            targets = job.batch_shell(directory) if entry.signal_batch else job.step_tasks(directory)[0]
            processes.send(targets, entry.signal)
            processes.send(targets, signal.SIGCONT)
            return replace(task, signalled=True)
        if due is Due.TIMEOUT:
            task = rules.ending(task, JobState.TIMEOUT, now)
            due = Due.TERM
        if due is Due.TERM:
            return self._terminate(task, directory, now)
        if due is Due.KILL:
            below = processes.descendants(task.supervisor, spare=os.getpid())
            # A watcher without children hangs before its first process, because the file system of its output hangs.
            processes.send(below or [task.supervisor], signal.SIGKILL)
        return task

    def _terminate(self, task: Task, directory: Path, now: float) -> Task:
        """Send SIGCONT and SIGTERM to the batch shell and to srun's tasks, as under proctrack/cgroup."""
        completing = replace(task, state=JobState.COMPLETING)
        batch = job.batch_shell(directory)
        if not batch and job.read_exit(directory) is None:
            return completing  # still starting: retry
        why = {"TIMEOUT": " DUE TO TIME LIMIT", "REQUEUED": " DUE TO JOB REQUEUE"}.get(task.ending, "")
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
        line = f"slurmstepd-{self._host}: error: *** JOB {task.raw} ON {self._host} CANCELLED AT {when}{why} ***\n"
        job.append_line(task.stderr, line)
        job.terminate([*job.step_tasks(directory)[0], *batch])
        return replace(completing, termed=True)

    def _kill_leftovers(self, task: Task) -> None:
        """Kill the processes of a job whose watcher is gone. A job must never run twice."""
        for _ in range(50):
            left = processes.carrying(SLURM_JOB_ID=str(task.raw), RESIL_LOCAL_SPOOL=str(self._spool.root))
            if not left:
                return
            processes.send(left, signal.SIGKILL)
            time.sleep(0.02)
            processes.reap()

    def _start_ready(self) -> None:
        now = self._now()
        known: dict[int, Sequence[Task]] = dict(self._tasks)
        for key in self._dependencies() - known.keys():
            with contextlib.suppress(SchedulerUnavailable):
                if (entry := self._spool.entry(key)) is not None:
                    known[key] = self._spool.tasks(entry)
        plan = rules.plan(self._entries, known, now, self._cpus)
        self._plan_at = plan.again_at if plan.again_at is not None else now + 3600
        by_raw = {task.raw: (entry, task) for entry, task in self._each()}
        for raw in plan.cancel:
            entry, task = by_raw[raw]
            self._save(entry, replace(rules.cancelled(task, now), reason="DependencyNeverSatisfied"))
            self._plan_at = 0.0
        for raw in plan.start:
            entry, task = by_raw[raw]
            if self._is_cancelled(entry, task):
                self._apply_cancel_files()  # all files: cancellations often come in groups
                self._plan_at = 0.0
                return
            self._start(entry, task, now)

    def _start(self, entry: Entry, task: Task, now: float) -> None:
        directory = self._spool.directory(task.raw)
        earlier = [directory / name for name in (job.EXIT_FILE, job.BATCH_FILE, job.BEGUN_FILE)]
        for file in (*earlier, *(directory / job.STEPS).glob("*")):
            file.unlink(missing_ok=True)
        task = rules.started(task, now)
        try:
            launch = job.plan_launch(self._spool, entry, task, host=self._host, cpus=self._cpus)
        except ResilError as error:
            say(f"job {task.raw} cannot be started: {error}")
            failure = rules.Exit(0, 0, now, str(error))
            self._save(entry, rules.ended(entry, task, failure, now))
            return
        gate_out, gate_in = os.pipe()
        try:
            pid = job.spawn(launch, gate_out)
            task = replace(
                task,
                supervisor=pid,
                supervisor_ticks=processes.start_ticks(pid),
                boot=processes.boot_id(),
                stdout=os.path.join(entry.directory, launch.output),  # noqa: PTH118 - the name as it was given
                stderr=os.path.join(entry.directory, launch.error or launch.output),  # noqa: PTH118
            )
            self._save(entry, task)
            os.write(gate_in, b"r")
        finally:
            os.close(gate_out)
            os.close(gate_in)


def say(text: str) -> None:
    """Write a line to daemon.log."""
    os.write(2, f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n".encode("utf-8", "replace"))


def run(spool: Spool, ready: Callable[[], None]) -> None:
    """Hold the daemon's lock and run the queue until it is empty for a while. Return at once if another daemon runs."""
    lock = os.open(spool.root / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # A client that checks for a daemon holds the lock for an instant.
    if not take_lock(lock, _START_LOCK_S, 0.01):
        return
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()} {processes.start_ticks(os.getpid())}\n".encode(), 0)
    processes.adopt_orphans()
    environ = dict(os.environ)
    engine = Engine(
        spool,
        cpus=processes.available_cpus(environ),
        idle_s=float(environ.get(IDLE_VARIABLE) or _IDLE_S),
        now=SystemClock().now,
    )
    write_shims(spool.root / "bin")
    events, wakeup = os.pipe()
    os.set_blocking(events, False)
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, _nothing)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    # Opened for reading and writing, so that closing by the last writer is not an end of file.
    fifo = os.open(spool.root / "wake", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    engine.recover()
    ready()
    # After the removal of the spool, its directory may exist again, with a file that a client created meanwhile.
    while spool.root.is_dir() and os.fstat(lock).st_nlink:
        try:
            if not engine.step() and _leave(spool, lock):
                break
        except SchedulerUnavailable as error:
            say(str(error))
            time.sleep(1.0)
            continue
        readable, _, _ = select.select([events, fifo], [], [], engine.timeout_s())
        for descriptor in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(descriptor, 4096)


def _leave(spool: Spool, lock: int) -> bool:
    """Release the daemon's lock while no client can submit; return False if a client submitted meanwhile."""
    with spool.locked(LOCK_S, announce=False):
        if spool.active():
            return False
        os.close(lock)
        return True


def _nothing(number: int, frame: FrameType | None) -> None:
    """Handle SIGCHLD, so that the wake-up descriptor is written."""


def main(arguments: list[str]) -> int:
    """Detach, and return in the foreground process once the daemon is ready."""
    spool = Spool(Path(arguments[0]))
    ready, announce = os.pipe()
    if os.fork():
        os.close(announce)
        os.read(ready, 1)
        return 0
    os.close(ready)
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
        run(spool, lambda: os.close(announce))
    except ResilError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
