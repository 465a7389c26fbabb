"""A job of the embedded scheduler: its environment, its watcher process, and its signals.

Each job has a watcher, forked cheaply from the daemon and independent of it: after the death of the daemon, the watcher
remains the parent of all processes of the job, including detached ones, and the next daemon finds the watcher. The
model is SLURM's slurmstepd.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from resilience.errors import ResilError, SchedulerError
from resilience.schedulers._local.processes import (
    adopt_orphans,
    default_signals,
    descendants,
    is_alive,
    name_process,
    reap,
    send,
    slurm_variables,
    start_ticks,
)
from resilience.schedulers._local.records import Entry, Task, default_output
from resilience.schedulers._local.rules import Exit
from resilience.schedulers._local.spool import Spool, read_pid
from resilience.schedulers._local.submit import expand_pattern
from resilience.system.files import write_atomic
from resilience.system.ports import SystemClock

EXIT_FILE = "exit.json"
BATCH_FILE = "batch"
BEGUN_FILE = "begun"
STEPS = "steps"
CLUSTER = "local"
_POLL_S = 0.02
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Launch:
    """A job that is about to start.

    Attributes:
        directory: `jobs/<raw>` in the spool.
        output: path of the standard output, relative to the job's working directory. Likewise `error` and `input`,
            which may be empty.
    """

    spool: Spool
    directory: Path
    entry: Entry
    host: str
    environment: dict[str, str]
    output: str
    error: str
    input: str


def plan_launch(spool: Spool, entry: Entry, task: Task, *, host: str, cpus: int) -> Launch:
    """Return the data for the watcher of a job that is about to start on a host with `cpus` CPUs.

    Raise SchedulerUnavailable if the environment saved for it cannot be read.
    """

    def path(pattern: str) -> str:
        return expand_pattern(
            pattern, raw=task.raw, array=entry.id, index=task.index, name=entry.name, user=entry.user, host=host
        )

    return Launch(
        spool=spool,
        directory=spool.directory(task.raw),
        entry=entry,
        host=host,
        environment=job_variables(
            entry, task, spool.environment(entry.id), spool=str(spool.root), host=host, cpus_on_node=cpus
        ),
        output=path(entry.output or default_output(entry.indices is not None)),
        error=path(entry.error),
        input=path(entry.input),
    )


def job_variables(
    entry: Entry, task: Task, environment: Mapping[str, str], *, spool: str, host: str, cpus_on_node: int
) -> dict[str, str]:
    """Return the environment of a job: that of its submission, and the scheduler's variables. Pure.

    SLURM_RESTART_COUNT is unset in the first run, SLURM_JOB_END_TIME without a time limit. Source: sbatch(1),
    OUTPUT ENVIRONMENT VARIABLES.
    """
    variables: list[tuple[str, object]] = [
        ("JOB_ID JOBID", task.raw),
        ("JOB_NAME", entry.name),
        ("JOB_USER", entry.user),
        ("JOB_PARTITION CLUSTER_NAME", CLUSTER),
        ("SUBMIT_DIR", entry.submit_dir),
        ("SUBMIT_HOST JOB_NODELIST NODELIST", host),
        ("JOB_NUM_NODES NNODES", 1),
        ("NTASKS NPROCS TASKS_PER_NODE", entry.ntasks),
        ("CPUS_ON_NODE JOB_CPUS_PER_NODE", min(entry.cpus, cpus_on_node)),
        ("CPUS_PER_TASK", entry.cpus_per_task),
        ("NODEID PROCID LOCALID GTIDS", 0),
        ("JOB_START_TIME", int(task.start or 0)),
        ("JOB_END_TIME", None if task.deadline is None else int(task.deadline)),
        ("RESTART_COUNT", task.restarts or None),
    ]
    if entry.indices is not None:
        variables += [
            ("ARRAY_JOB_ID", entry.id),
            ("ARRAY_TASK_ID", task.index),
            ("ARRAY_TASK_COUNT", len(entry.indices)),
            ("ARRAY_TASK_MIN", entry.indices[0]),
            ("ARRAY_TASK_MAX", entry.indices[-1]),
            ("ARRAY_TASK_STEP", entry.step),
        ]
    return {
        **environment,
        **slurm_variables(variables),
        "SLURMD_NODENAME": host,
        "RESIL_SCHEDULER": CLUSTER,
        "RESIL_LOCAL_SPOOL": spool,
        "PATH": f"{spool}/bin:{environment.get('PATH', '/usr/local/bin:/usr/bin:/bin')}",
    }


def spawn(launch: Launch, gate: int) -> int:
    """Fork the watcher and return its pid. The watcher waits for a byte on `gate`, and exits if the pipe is closed.

    So the pid is recorded on disk before the job runs, and a job is never started twice.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        default_signals()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        adopt_orphans()
        os.closerange(3, gate)
        os.closerange(gate + 1, 65536)
        name_process(f"resil-{launch.directory.name}")
        if os.read(gate, 1):
            os.close(gate)
            os.close(os.open(launch.directory / BEGUN_FILE, os.O_WRONLY | os.O_CREAT, 0o600))
            _watch(launch)
        code = 0
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(2, f"watcher of job {launch.directory.name}: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def read_exit(directory: Path) -> Exit | None:
    """Return the exit of the batch shell of the job in this directory; None before its end."""
    try:
        data = json.loads((directory / EXIT_FILE).read_text())
        return Exit(data["status"], data["signal"], data["at"], data.get("launch_failure", ""))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def terminate(pids: Iterable[int]) -> None:
    """Send SIGTERM, also to stopped processes."""
    for pid in pids:
        send([pid], signal.SIGCONT)
        send([pid], signal.SIGTERM)


def batch_shell(directory: Path) -> list[int]:
    """Return the pid of the job's batch shell, if alive."""
    pid = read_pid(directory / BATCH_FILE)
    return [pid] if pid else []


def step_tasks(directory: Path) -> tuple[list[int], list[int]]:
    """Return the pids of the tasks that srun started in the job, and the pids of the srun processes."""
    pids: dict[str, list[int]] = {"task": [], "srun": []}
    with contextlib.suppress(OSError):
        for file in list((directory / STEPS).iterdir()):
            with contextlib.suppress(OSError, ValueError):
                for line in file.read_text().splitlines():
                    kind, pid, ticks = line.split()
                    if int(ticks) and start_ticks(int(pid)) == int(ticks):
                        pids[kind].append(int(pid))
    return pids["task"], pids["srun"]


def send_signal(spool: Spool, task: Task, number: int, *, batch: bool, full: bool) -> None:
    """Signal srun's tasks; with `batch` the batch shell only; with `full` the batch shell and its descendants.

    A full signal reaches a task of srun, but neither the children of the task nor srun itself, which would forward the
    signal. Source: scancel(1). Raise SchedulerError if the job has no processes.
    """
    if not is_alive(task.supervisor, task.supervisor_ticks, task.boot):
        raise SchedulerError(f"job {task.raw} has no processes", transient=True)
    directory = spool.directory(task.raw)
    targets, sruns = step_tasks(directory)
    if full:
        spared = {*sruns, *(pid for step in targets for pid in descendants(step))}
        targets = [pid for pid in descendants(task.supervisor, spare=spool.daemon_pid()) if pid not in spared]
    elif batch:
        targets = batch_shell(directory)
    send(targets, number)


def _watch(launch: Launch) -> None:
    failure, streams = _open_streams(launch)
    if failure:
        _save_exit(launch, 0, 0, failure)
        return
    batch = os.fork()
    if not batch:
        _become_batch_shell(launch, streams)
    write_atomic(launch.directory / BATCH_FILE, f"{batch} {start_ticks(batch)}\n")
    for descriptor in streams:
        os.close(descriptor)
    while True:
        pid, status = os.wait()
        if pid == batch:
            break
    code = os.waitstatus_to_exitcode(status)
    _save_exit(launch, max(0, code), max(0, -code), "")
    launch.spool.wake()
    _clear(launch)
    if not launch.spool.wake() and launch.directory.is_dir():
        # The daemon was killed. Restart it, because no client may call for days.
        command = launch.spool.daemon_command()
        os.execv(command[0], command)


def _open_streams(launch: Launch) -> tuple[str, list[int]]:
    """Open standard input, output and error. Return an error message or an empty text, and the descriptors."""
    os.umask(launch.entry.umask)
    how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if launch.entry.append else os.O_TRUNC)
    base = Path(launch.entry.directory if os.path.isdir(launch.entry.directory) else "/tmp")  # noqa: PTH112 - as slurmd
    try:
        streams = [os.open(base / (launch.input or os.devnull), os.O_RDONLY)]
        streams.append(os.open(base / (launch.output or os.devnull), how, 0o666))
        same = launch.error in ("", launch.output)
        streams.append(os.dup(streams[1]) if same else os.open(base / launch.error, how, 0o666))
    except OSError as error:
        return f"{error.filename}: {error.strerror}", []
    return "", streams


def _become_batch_shell(launch: Launch, streams: list[int]) -> None:
    """Replace this process by the batch shell. Never returns."""
    try:
        os.setsid()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for target, descriptor in enumerate(streams):
            os.dup2(descriptor, target)
        os.closerange(3, 65536)
        try:
            os.chdir(launch.entry.directory)
        except OSError as error:
            os.chdir("/tmp")
            _complain(launch, f"couldn't chdir to `{launch.entry.directory}': {error.strerror}: going to /tmp instead")
        # The interpreter is called explicitly, because the spool's file system may be mounted noexec.
        script = launch.spool.directory(launch.entry.id) / "slurm_script"
        with open(script, "rb") as file:
            words = os.fsdecode(file.readline()).removeprefix("#!").strip().split(None, 1)
        argv = [*words, str(script), *launch.entry.script_args]
        try:
            os.execve(argv[0], argv, launch.environment)
        except OSError as error:
            _complain(launch, f"execve(): bad interpreter({shlex.quote(argv[0])}): {error.strerror}")
            os._exit(error.errno or 127)
    except BaseException as error:
        with contextlib.suppress(OSError):
            _complain(launch, f"{type(error).__name__}: {error}")
    finally:
        os._exit(127)


def _complain(launch: Launch, text: str) -> None:
    os.write(2, f"slurmstepd-{launch.host}: error: {text}\n".encode("utf-8", "surrogateescape"))


def _save_exit(launch: Launch, status: int, number: int, failure: str) -> None:
    record = {"status": status, "signal": number, "at": SystemClock().now(), "launch_failure": failure}
    while True:
        try:
            write_atomic(launch.directory / EXIT_FILE, json.dumps(record))
            return
        except ResilError:
            # A full disk: retry until there is space, or until the spool is gone. An exit is never lost.
            if not launch.directory.is_dir():
                return
            time.sleep(_RETRY_S)


def _clear(launch: Launch) -> None:
    """End the remaining processes: terminate the steps first, and kill all others at once."""
    deadline = time.monotonic() + launch.entry.kill_wait_s
    terminated: set[int] = set()
    while left := descendants(os.getpid(), spare=launch.spool.daemon_pid()):
        spared: set[int] = set()
        if time.monotonic() < deadline:
            tasks, sruns = step_tasks(launch.directory)
            spared = {*tasks, *sruns, *(below for task in tasks for below in descendants(task))}
            terminate([task for task in tasks if task not in terminated])
            terminated.update(tasks)
        send([pid for pid in left if pid not in spared], signal.SIGKILL)
        reap()
        time.sleep(_POLL_S)
    reap()


def append_line(path: str, line: str) -> None:
    """Append a line to a job's error file, as slurmstepd does. Best effort: the file may be a pipe, or gone."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
