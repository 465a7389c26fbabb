"""Runs the queue of one spool, step by step: does what `_local/rules.py` decides, to real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from resilience.errors import ResilError, SchedulerUnavailable
from resilience.job import JobState
from resilience.schedulers._local import job, processes, rules
from resilience.schedulers._local.broom import prune, sweep
from resilience.schedulers._local.dependency import job_ids
from resilience.schedulers._local.launch import append_line, plan_launch
from resilience.schedulers._local.records import Entry, Task
from resilience.schedulers._local.rules import Due
from resilience.schedulers._local.spool import Spool

LOCK_S = 10.0
_BUSY_POLL_S = 0.1
_QUIET_POLL_S = 0.5
_CANCEL_POLL_S = 0.6
_RESCAN_S = 5.0
_PRUNE_S = 3600.0


class Engine:
    """Runs the queue of one spool."""

    def __init__(self, spool: Spool, *, cpus: int, idle_s: float, now: Callable[[], float]) -> None:
        self._spool = spool
        self._cpus = cpus
        self._idle_s = idle_s
        self._now = now
        self._host = os.uname().nodename.partition(".")[0]
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
        with self._spool.locked(LOCK_S, announce=False):
            sweep(self._spool)
            self._load()
            for key, tasks in self._tasks.items():
                for task in tasks:
                    self._spool.tell(self._entries[key], task)
            self._settle()

    def step(self) -> bool:
        """One look at everything. False when there is nothing left to do and it is time to go."""
        monotonic = time.monotonic()
        changed = self._spool.serial() != self._serial or monotonic >= self._rescan_at
        with self._spool.locked(LOCK_S, announce=False):
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
                prune(self._spool, self._now(), self._needed())
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
                say(str(error))
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
        self._spool.save(entry, task)
        tasks = self._tasks[entry.id]
        tasks[next(place for place, one in enumerate(tasks) if one.raw == task.raw)] = task

    def _close(self, key: int) -> None:
        self._spool.close(key)
        del self._entries[key], self._tasks[key]

    def _each(self) -> list[tuple[Entry, Task]]:
        return [(self._entries[key], task) for key, tasks in self._tasks.items() for task in tasks]

    def _is_asked_to_end(self, entry: Entry, task: Task) -> bool:
        """Whether a cancel file asks for the end of a job that waits. Looked at before every start: two looks at the
        files of all jobs lie far enough apart for many short tasks to start in between."""
        folders = [self._spool.folder(task.raw), *([self._spool.folder(entry.id)] if entry.indices is not None else [])]
        return any((folder / "cancel").exists() for folder in folders)

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
        trouble: Exception | None = None
        now = self._now()
        self._reap()
        for entry, task in self._each():
            if not task.is_running:
                continue
            new = self._look_at_job(entry, task, now)
            if new is not task:
                try:
                    self._keep(entry, new)
                    changed = True
                except (OSError, ResilError) as error:  # a full disk: the others are due their signals all the same
                    trouble = error
        for key in [key for key, tasks in self._tasks.items() if all(task.state.is_final for task in tasks)]:
            self._close(key)
            changed = True
        if trouble is not None:
            raise trouble
        return changed

    def _look_at_job(self, entry: Entry, task: Task, now: float) -> Task:
        folder = self._spool.folder(task.raw)
        watched = processes.is_alive(task.supervisor, task.supervisor_ticks, task.boot)
        exit_ = job.read_exit(folder)
        if not watched:
            if exit_ is None and not task.ending and not self._has_begun(task, folder):
                return rules.not_started(task)
            if exit_ is None:
                self._end_what_is_left(task)
                if not task.ending:
                    say(f"job {task.raw} was lost: its watcher is gone and nobody saw it end")
            return rules.ended(entry, task, exit_, now)
        if exit_ is not None:
            task = task if task.state is JobState.COMPLETING else replace(task, state=JobState.COMPLETING)
        return self._do_what_is_due(entry, task, folder, now)

    def _has_begun(self, task: Task, folder: Path) -> bool:
        """Whether anything of it ran. Its mark is not forced to the disk, so after a reboot we had better think so."""
        return task.boot != processes.boot_id() or (folder / job.BEGUN_FILE).exists()

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
        append_line(task.stderr, line)
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
            entry, task = by_raw[raw]
            if self._is_asked_to_end(entry, task):
                self._obey_cancel_files()  # all at once: whoever asks for one end often asks for many
                self._look_at = 0.0
                return
            self._start(entry, task, now)

    def _start(self, entry: Entry, task: Task, now: float) -> None:
        folder = self._spool.folder(task.raw)
        for name in (job.EXIT_FILE, job.BATCH_FILE, job.BEGUN_FILE):
            (folder / name).unlink(missing_ok=True)
        for file in (folder / job.STEPS).glob("*") if (folder / job.STEPS).is_dir() else ():
            file.unlink(missing_ok=True)
        task = rules.started(task, now)
        try:
            launch = plan_launch(self._spool, entry, task, host=self._host, cpus=self._cpus)
        except ResilError as error:
            say(f"job {task.raw} cannot be started: {error}")
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
            os.write(gate_in, b"r")
        finally:
            os.close(gate_out)
            os.close(gate_in)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                self._watchers.discard(pid)


def say(text: str) -> None:
    """One line into daemon.log."""
    os.write(2, f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n".encode("utf-8", "replace"))
