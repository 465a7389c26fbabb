"""Sends a signal to the processes of a running job, to those that SLURM would send it to (scancel(1))."""

from __future__ import annotations

from pathlib import Path

from resilience.errors import SchedulerError
from resilience.schedulers._local.job import batch_shell, daemon_pid, step_tasks
from resilience.schedulers._local.processes import descendants, is_alive, send
from resilience.schedulers._local.records import Task


def send_signal(folder: Path, task: Task, number: int, *, batch: bool, full: bool) -> None:
    """To srun's tasks; with `batch` to the batch shell alone; with `full` to it and everything below.

    A full signal reaches an srun's task but not what that started, nor the srun itself (it would pass it on).
    Raise SchedulerError if the job's processes are not there.
    """
    if not is_alive(task.supervisor, task.supervisor_ticks, task.boot):
        raise SchedulerError(f"job {task.raw} has no processes", transient=True)
    shell = batch_shell(folder)
    steps, shims = step_tasks(folder)
    if full:
        daemon = daemon_pid(folder.parent.parent)
        below_steps = {pid for step in steps for pid in descendants(step)}
        targets = [
            pid for pid in descendants(task.supervisor, spare=daemon) if pid not in below_steps and pid not in shims
        ]
    elif batch:
        targets = [shell] if shell else []
    else:
        targets = steps
    send(targets, number)
