"""The process that watches one job: it starts the batch shell, keeps its true exit, and leaves nobody behind.

One per job, forked from the daemon (so it costs little), and independent of it: when the daemon dies, this process
stays the parent of everything the job started, also of what detached itself, and the next daemon finds it.
SLURM's slurmstepd is the model.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from resilience.errors import ResilError
from resilience.schedulers._local.processes import (
    adopt_orphans,
    default_signals,
    descendants,
    name_process,
    send,
    start_ticks,
)
from resilience.schedulers._local.rules import Exit
from resilience.system.files import write_atomic
from resilience.system.world import SystemClock

EXIT_FILE = "exit.json"
BATCH_FILE = "batch"
BEGUN_FILE = "begun"
STEPS = "steps"
_POLL_S = 0.02
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start.

    Attributes:
        folder: `jobs/<raw>` in the spool.
        script: the kept copy of the batch script; `arguments` follow it.
        output: path of the standard output, relative ones to `directory`; empty for none. So `error` and `input`.
        append: whether the files are continued and not emptied.
        daemon: what to run if there is no daemon any more once the job has ended.
        kill_wait_s: how long steps may live on once the batch shell has ended.
    """

    folder: Path
    script: Path
    arguments: tuple[str, ...]
    environment: dict[str, str]
    directory: str
    output: str
    error: str
    input: str
    append: bool
    umask: int
    kill_wait_s: float
    wake: Path
    host: str
    daemon: tuple[str, ...] = ()


def spawn(launch: Launch, gate: int) -> int:
    """Fork the watcher and return its pid. It waits for one byte on `gate`; when the pipe closes it does nothing.

    So the record of the pid is on the disk before anything of the job runs, and a job is never started twice.
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
        name_process(f"resil-{launch.folder.name}")
        if os.read(gate, 1):
            os.close(gate)
            os.close(os.open(launch.folder / BEGUN_FILE, os.O_WRONLY | os.O_CREAT, 0o600))
            _watch(launch)
        code = 0
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(2, f"watcher of job {launch.folder.name}: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def daemon_pid(spool: Path) -> int:
    """The pid of the spool's daemon. When a job's script started it, it is below the job and yet not of the job."""
    try:
        pid, ticks = (int(word) for word in (spool / "daemon.lock").read_text().split())
    except (OSError, ValueError):
        return 0
    return pid if ticks and start_ticks(pid) == ticks else 0


def read_exit(folder: Path) -> Exit | None:
    """How the batch shell in this job's folder ended; None while it has not."""
    try:
        data = json.loads((folder / EXIT_FILE).read_text())
        return Exit(data["status"], data["signal"], data["at"], data.get("launch_failure", ""))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def batch_shell(folder: Path) -> int:
    """The pid of the job's batch shell, 0 when it has none (any more)."""
    try:
        pid, ticks = (int(word) for word in (folder / BATCH_FILE).read_text().split())
    except (OSError, ValueError):
        return 0
    return pid if ticks and start_ticks(pid) == ticks else 0


def step_tasks(folder: Path) -> tuple[list[int], list[int]]:
    """The pids of the tasks that srun started in the job, and those of the sruns themselves."""
    tasks: list[int] = []
    shims: list[int] = []
    try:
        files = list((folder / STEPS).iterdir())
    except OSError:
        return tasks, shims
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            for line in file.read_text().splitlines():
                kind, pid, ticks = line.split()
                if int(ticks) and start_ticks(int(pid)) == int(ticks):
                    (tasks if kind == "task" else shims).append(int(pid))
    return tasks, shims


def _watch(launch: Launch) -> None:
    failure, streams = _open_streams(launch)
    if failure:
        _keep_exit(launch, 0, 0, failure)
        return
    batch = os.fork()
    if not batch:
        _become_batch_shell(launch, streams)
    write_atomic(launch.folder / BATCH_FILE, f"{batch} {start_ticks(batch)}\n")
    for descriptor in streams:
        os.close(descriptor)
    while True:
        pid, status = os.wait()
        if pid == batch:
            break
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    _keep_exit(launch, os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0, number, "")
    _wake(launch.wake)
    _clear(launch)
    if not _wake(launch.wake) and launch.daemon and launch.folder.is_dir():
        # The daemon was killed. The queue must go on though nobody may call for days.
        os.execv(launch.daemon[0], launch.daemon)


def _open_streams(launch: Launch) -> tuple[str, list[int]]:
    """Open standard input, output and error; say why it failed, as SLURM's JobLaunchFailure."""
    os.umask(launch.umask)
    how = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if launch.append else os.O_TRUNC | os.O_APPEND)
    try:
        base = launch.directory if os.path.isdir(launch.directory) else "/tmp"  # noqa: PTH112 - as slurmd does
        streams = [os.open(os.path.join(base, launch.input) if launch.input else "/dev/null", os.O_RDONLY)]  # noqa: PTH118
        streams.append(os.open(os.path.join(base, launch.output or "/dev/null"), how, 0o666))  # noqa: PTH118
        same = launch.error in ("", launch.output)
        streams.append(
            os.dup(streams[1]) if same else os.open(os.path.join(base, launch.error), how, 0o666)  # noqa: PTH118
        )
    except OSError as error:
        return f"{error.filename}: {error.strerror}", []
    return "", streams


def _become_batch_shell(launch: Launch, streams: list[int]) -> None:
    """Never returns."""
    try:
        os.setsid()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for target, descriptor in enumerate(streams):
            os.dup2(descriptor, target)
        os.closerange(3, 65536)
        try:
            os.chdir(launch.directory)
        except OSError as error:
            os.chdir("/tmp")
            _complain(launch, f"couldn't chdir to `{launch.directory}': {error.strerror}: going to /tmp instead")
        # The interpreter is named here rather than left to the kernel: the spool's file system may be mounted noexec.
        with open(launch.script, "rb") as file:
            words = os.fsdecode(file.readline()).removeprefix("#!").strip().split(None, 1)
        argv = [*words, str(launch.script), *launch.arguments]
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


def _keep_exit(launch: Launch, status: int, number: int, failure: str) -> None:
    record = {"status": status, "signal": number, "at": SystemClock().now(), "launch_failure": failure}
    while True:
        try:
            write_atomic(launch.folder / EXIT_FILE, json.dumps(record))
            return
        except ResilError:
            # A full disk: wait until there is room, or until the spool is gone. An exit is never forgotten.
            if not launch.folder.is_dir():
                return
            time.sleep(_RETRY_S)


def _clear(launch: Launch) -> None:
    """End what the batch shell left behind: steps are asked first, everything else is killed at once."""
    deadline = time.monotonic() + launch.kill_wait_s
    asked: set[int] = set()
    while left := descendants(os.getpid(), spare=daemon_pid(launch.folder.parent.parent)):
        tasks, shims = step_tasks(launch.folder)
        spared = set()
        if time.monotonic() < deadline:
            spared = set(tasks) | set(shims)
            spared |= {below for task in tasks for below in descendants(task)}
        new = [task for task in tasks if task not in asked]
        if spared and new:
            send(new, signal.SIGCONT)
            send(new, signal.SIGTERM)
            asked.update(new)
        send([pid for pid in left if pid not in spared], signal.SIGKILL)
        _reap()
        time.sleep(_POLL_S)
    _reap()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _wake(fifo: Path) -> bool:
    """Tell the daemon; False when nobody listens."""
    try:
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        return error.errno != errno.ENXIO
    with contextlib.suppress(OSError):
        os.write(descriptor, b"x")
    os.close(descriptor)
    return True
