"""Stacks of a process, written even if the rest of the process hangs.

A separate process writes the file: a thread in uninterruptible sleep (a hung FUSE server, some network file systems)
cannot be killed, and would keep its process from ending.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time

SIGNAL = signal.SIGRTMIN + 9
"""A realtime signal (signal(7)); the C library, some MPIs and debuggers use the first ones."""

MOST_BYTES = 2**20
"""Of one rank's stacks."""

PTRACE_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
PR_SET_PTRACER = 0x59616D61
"""linux/prctl.h."""

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
    """Return the descriptor of the real stderr, even if a notebook or a logger has replaced `sys.stderr`."""
    for stream in (sys.__stderr__, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if stream is not None:
                return stream.fileno()
    return 2


def read_stacks() -> bytes:
    """Return all stacks of this process as text. Raise OSError."""
    memory = os.memfd_create("resil-stacks", os.MFD_CLOEXEC)
    try:
        faulthandler.dump_traceback(memory, all_threads=True)
        return os.pread(memory, MOST_BYTES, 0)
    finally:
        os.close(memory)


def allow_reader(pid: int) -> None:
    """Let a process and its descendants read the stacks of this one, where Yama restricts that (PR_SET_PTRACER in
    prctl(2); Documentation/admin-guide/LSM/Yama.rst, ptrace_scope 1). Elsewhere nothing is imported."""
    with contextlib.suppress(OSError, ImportError, AttributeError):
        with open(PTRACE_SCOPE, encoding="ascii") as file:
            if file.read().strip() != "1":
                return
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


def show_stacks() -> None:
    """Write all stacks to stderr, unless stderr is closed."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        faulthandler.dump_traceback(stderr_descriptor(), all_threads=True)


class StacksOnDemand:
    """Makes this process write the stack of its main thread on a signal: in C, also while a library holds the GIL.

    Only of the thread that handles the signal, which is the main one unless that blocks signals: those of others change
    while they are read, and one of some thousand times that ends the process by SIGSEGV (faulthandler with
    `all_threads=True`, measured with CPython 3.11). py-spy reads all of them from outside, where it is installed.
    Disabled if another handler is installed for the signal.

    Attributes:
        signal: number of the signal; 0 if disabled.
        descriptor: of the memory file for the stacks, which another process reads; -1 if they go to stderr.
    """

    def __init__(self) -> None:
        self.signal = 0
        self.descriptor = -1

    def keep(self) -> None:
        """Write stacks into a memory file, which the node's heartbeat process reads."""
        with contextlib.suppress(OSError, AttributeError):
            self.descriptor = os.memfd_create("resil-stacks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self._register(self.descriptor)

    def show(self) -> None:
        """Write stacks to stderr."""
        self._register(stderr_descriptor())

    def close(self) -> None:
        """Release the signal and the memory file; also in a forked child, whose stacks are never requested."""
        number, self.signal = self.signal, 0
        if number:
            faulthandler.unregister(number)
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _register(self, descriptor: int) -> None:
        from resilience.guard.signal_actions import is_caught

        if signal.getsignal(SIGNAL) is signal.SIG_DFL and not is_caught(SIGNAL):
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                faulthandler.register(SIGNAL, file=descriptor, all_threads=False, chain=False)
                self.signal = SIGNAL


def write_stacks(path: str, head: str, wait_s: float) -> bool:
    """Append the line `head` and all stacks to a file; return False unless that has succeeded within `wait_s`.

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
        except ChildProcessError:  # other code has reaped the child
            return False
        if ended:
            return status == 0
        time.sleep(0.01)
    return False
