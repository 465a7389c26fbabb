"""Starts a program in a process group of its own, without inherited descriptors, and reports why it failed.

`subprocess` waits until the program is loaded, which never happens on a hung mount. Here the reason of a failure comes
through a pipe, read when it has data; meanwhile the timeout runs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from resilience.cron.records import Ignored
from resilience.messages import quoted
from resilience.system.child import fork

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""linux/prctl.h."""

BUSY_S = 2.0
"""A program that is open for writing (ETXTBSY) is retried for this long."""

_CODE = 127
"""Exit code of a shell that cannot find a program."""


class Launched(NamedTuple):
    """A program being started.

    Attributes:
        pid: its process, leader of a process group.
        output: read end of the pipe with its output.
        problem: read end of the pipe with the reason of a failed start, a zero byte, and what to try; closed without
            data: it started.
    """

    pid: int
    output: int
    problem: int


def launch(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    directory: Path,
    umask: int,
    refuse: Callable[[], Ignored | None],
) -> Launched:
    """Start a program; both descriptors are non-blocking. Raise OSError if fork fails.

    `refuse` is called in the new process, right before exec. The file could still be replaced in between, but only by
    users whom the policy trusts.
    """
    output, writes = os.pipe2(os.O_CLOEXEC)
    problem, reports = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # our handlers would consume it
    try:
        pid = fork()
        if pid == 0:
            _run_child(partial(_try, argv, environment, directory, refuse), umask, writes, reports, parent)
    except OSError:
        os.close(output)
        os.close(problem)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writes)
        os.close(reports)
    for descriptor in (output, problem):
        os.set_blocking(descriptor, False)
    with suppress(OSError):  # parent and child both do it, in either order
        os.setpgid(pid, pid)
    return Launched(pid, output, problem)


def prctl(option: int, value: int) -> None:
    """Call prctl(2); ignore options that the kernel does not know."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def reset_signals() -> None:
    """Reset all signal handlers to the default."""
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        with suppress(OSError, ValueError):
            if signal.getsignal(number) is not signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)


def _run_child(attempt: Callable[[], tuple[str, str]], umask: int, writes: int, reports: int, parent: int) -> NoReturn:
    failure = ("", "")
    try:
        os.setpgid(0, 0)
        reset_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # without the supervisor, nothing would end it or record its end
        if os.getppid() != parent:
            os._exit(_CODE)
        os.umask(umask)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(writes, 1)
        os.dup2(writes, 2)
        failure = attempt()
    except BaseException as error:  # must not continue: this process is a copy of the scheduler
        failure = f"{type(error).__name__}: {error}"[:500], ""
    finally:
        with suppress(BaseException):
            os.write(reports, "\0".join(failure).encode("utf-8", "replace")[: select.PIPE_BUF])  # at once: pipe(7)
        os._exit(_CODE)


def _try(
    argv: Sequence[str], environment: Mapping[str, str], directory: Path, refuse: Callable[[], Ignored | None]
) -> tuple[str, str]:
    """Execute the program, or return why that failed, and what to try."""
    try:
        os.chdir(directory)
    except OSError as error:
        hint = "the working directory of a drop-in is the project's directory"
        return f"cannot enter {directory}: {error.strerror}", hint
    refusal = refuse()
    if refusal is not None:
        return refusal.reason, refusal.hint
    end = time.monotonic() + BUSY_S
    while True:
        try:
            os.execvpe(argv[0], list(argv), dict(environment))
        except OSError as error:
            if error.errno == errno.ETXTBSY and time.monotonic() < end:
                time.sleep(0.05)
                continue
            return _explain(argv[0], error.errno or 0)
        except ValueError as error:  # a NUL byte
            return f"cannot run {argv[0]!r}: {error}", ""


def _explain(program: str, number: int) -> tuple[str, str]:
    interpreter, is_noexec = "", False
    with suppress(OSError):
        is_noexec = bool(os.statvfs(program).f_flag & os.ST_NOEXEC)
    with suppress(OSError), open(program, "rb", buffering=0) as file:
        first = file.read(256).partition(b"\n")[0]
        if first.startswith(b"#!"):
            interpreter = first[2:].strip(b" \t").split(b" ")[0].decode("utf-8", "replace")
    return why_not_started(program, number, interpreter=interpreter, is_noexec=is_noexec)


def why_not_started(program: str, number: int, *, interpreter: str = "", is_noexec: bool = False) -> tuple[str, str]:
    """Return why a program could not be started, given errno, and what to try. Sources: execve(2), fork(2). Pure.

    `interpreter`: of its first line. `is_noexec`: whether its file system is mounted so.
    """
    words = os.strerror(number)
    if number == errno.ENOENT and interpreter.endswith("\r"):
        why = f"it has Windows line endings, so its interpreter would be {interpreter!r}"
        hint = f"sed -i 's/\\r$//' {quoted(program)}"
    elif number == errno.ENOENT and interpreter:
        why = f"its interpreter {interpreter} does not exist"
        hint = "correct its first line; `#!/usr/bin/env NAME` searches PATH, which is short here"
    elif number == errno.ENOENT:
        why, unknown = "no such file", "it is not on the PATH of entries; write its absolute path"
        hint = "was it removed?" if "/" in program else unknown
    elif number in (errno.EACCES, errno.EPERM) and is_noexec:
        why, hint = "its file system is mounted noexec", "call its interpreter in a crontab line, or move the project"
    elif number in (errno.EACCES, errno.EPERM):
        why, hint = words, f"chmod u+x {quoted(program)}; its interpreter must be executable too"
    elif number in (errno.EAGAIN, errno.ENOMEM):
        why, hint = f"no process could be started ({words})", "see `ulimit -u` and the memory of this machine"
    else:
        why, hint = _REASONS.get(number, (f"{words} ({errno.errorcode.get(number, number)})", ""))
    return f"cannot run {program}: {why}", hint


_REASONS = {
    errno.ENOEXEC: (
        "the kernel does not know its format",
        "a script must begin with `#!` and its interpreter, such as `#!/bin/sh`; a binary must match this machine",
    ),
    errno.E2BIG: ("arguments and environment are too large", "see `getconf ARG_MAX`"),
    errno.ETXTBSY: ("it is open for writing", "it runs again at its next slot"),
}
