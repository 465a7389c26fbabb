"""The process that runs the jobs of one spool: `python -m resilience.schedulers._local.daemon SPOOL`.

Started by whoever submits, single by a lock, gone by itself when nothing is left to do. It may be killed at any
moment: each job has its own watcher (see _local/job.py), and the next daemon, started by the next call, goes on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from resilience.errors import ResilError, SchedulerUnavailable
from resilience.schedulers._local import processes
from resilience.schedulers._local.engine import LOCK_S, Engine, say
from resilience.schedulers._local.shims import write_shims
from resilience.schedulers._local.spool import Spool
from resilience.system.world import SystemClock

IDLE_VARIABLE = "RESIL_LOCAL_IDLE_S"
_IDLE_S = 30.0
_START_LOCK_S = 0.6


def run(spool: Spool, ready: Callable[[], None]) -> None:
    """Hold the daemon's lock and run the queue until it is empty for a while. Return at once if another does."""
    lock = os.open(spool.root / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _lock(lock):
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
    news, wakeup = os.pipe()
    os.set_blocking(news, False)
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, _nothing)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    # Opened for both so that the last writer's closing is no end of file.
    fifo = os.open(spool.root / "wake", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    engine.recover()
    ready()
    # When ours is removed, a folder of that name may be left with a file that was made in it meanwhile.
    while spool.root.is_dir() and os.fstat(lock).st_nlink:
        try:
            if not engine.step() and _leave(spool, lock):
                break
        except SchedulerUnavailable as error:
            say(str(error))
            time.sleep(1.0)
            continue
        readable, _, _ = select.select([news, fifo], [], [], engine.patience_s())
        for descriptor in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(descriptor, 4096)


def _leave(spool: Spool, lock: int) -> bool:
    """Give the daemon's lock back while nobody can submit; False when somebody has meanwhile."""
    with spool.locked(LOCK_S, announce=False):
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
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
