"""What to start for a job: its files, its environment, its folder."""

from __future__ import annotations

import contextlib
import os

from resilience.schedulers._local.grammar import default_output, expand_pattern
from resilience.schedulers._local.job import Launch
from resilience.schedulers._local.keeper import daemon_command
from resilience.schedulers._local.records import Entry, Task
from resilience.schedulers._local.spool import Spool
from resilience.schedulers._local.variables import job_variables


def plan_launch(spool: Spool, entry: Entry, task: Task, *, host: str, cpus: int) -> Launch:
    """Given a job that is about to start on a machine with `cpus` CPUs, return what its watcher needs to know.

    Raise SchedulerUnavailable if the environment kept for it cannot be read.
    """

    def path(pattern: str) -> str:
        return expand_pattern(
            pattern, raw=task.raw, array=entry.id, index=task.index, name=entry.name, user=entry.user, host=host
        )

    environment = job_variables(
        entry, task, spool.environment(entry.id), spool=str(spool.root), host=host, cpus_on_node=cpus
    )
    return Launch(
        folder=spool.folder(task.raw),
        script=spool.folder(entry.id) / "slurm_script",
        arguments=entry.script_args,
        environment=environment,
        directory=entry.directory,  # not a pattern: sbatch takes it as it is
        output=path(entry.output or default_output(entry.indices is not None)),
        error=path(entry.error),
        input=path(entry.input),
        append=entry.append,
        umask=entry.umask,
        kill_wait_s=entry.kill_wait_s,
        wake=spool.root / "wake",
        host=host,
        daemon=tuple(daemon_command(spool.root)),
    )


def append_line(path: str, line: str) -> None:
    """Add a line to a job's error file, as slurmstepd does. Best effort: the file may be a pipe, or gone."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
