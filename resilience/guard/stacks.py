"""Where all threads of a process are, written down although everything else may hang.

The file is written by a process of its own: a thread that waits in a dead file system cannot be killed where the kernel
waits uninterruptibly (a hung FUSE server, some network file systems), and its process would never end.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import time

_PROGRAM = """
import os, sys
flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
descriptor = os.open(sys.argv[1], flags, 0o600)
while True:
    data = os.read(0, 65536)
    if not data:
        break
    os.write(descriptor, data)
os.fsync(descriptor)
"""


def stderr_descriptor() -> int:
    """Where stacks go: the descriptor behind stderr, whatever a notebook or a logger has put in its place."""
    for stream in (sys.__stderr__, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if stream is not None:
                return stream.fileno()
    return 2


def show_stacks() -> None:
    """Write all stacks to stderr. A stderr that is closed costs only this."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        faulthandler.dump_traceback(stderr_descriptor(), all_threads=True)


def write_stacks(path: str, head: str, wait_s: float) -> bool:
    """Add all stacks to a file below a line `head`; False when that is not known to have succeeded in `wait_s`.

    Raise OSError if the writing process cannot be started.
    """
    memory = os.memfd_create("resil-stacks", os.MFD_CLOEXEC)
    try:
        os.write(memory, head.encode("utf-8", "replace") + b"\n")
        faulthandler.dump_traceback(memory, all_threads=True)
        os.lseek(memory, 0, os.SEEK_SET)
        writer = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", _PROGRAM, path],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, memory, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
        )
    finally:
        os.close(memory)
    return _is_done(writer, wait_s)


def _is_done(pid: int, wait_s: float) -> bool:
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # somebody else has waited for it
            return False
        if ended:
            return status == 0
        time.sleep(0.01)
    return False
