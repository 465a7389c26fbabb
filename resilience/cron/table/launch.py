"""Starts a program in a process group of its own, without inherited descriptors, and reports why it failed.

`subprocess` waits until the program is loaded, which never happens on a hung mount. Here the reason of a failure comes
through a pipe, read when it has data; meanwhile the timeout runs.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from resilience.cron.records import Ignored
from resilience.cron.table.ended import why_not_started
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
        problem: read end of the pipe with the reason of a failed start; closed without data: it started.
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
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for descriptor in (output, writes, problem, reports):
            os.close(descriptor)
        raise
    if pid == 0:
        _run_child(partial(_try, argv, environment, directory, refuse), umask, writes, reports, parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(writes)
    os.close(reports)
    for descriptor in (output, problem):
        os.set_blocking(descriptor, False)
    with suppress(OSError):  # parent and child both do it, in either order
        os.setpgid(pid, pid)
    return Launched(pid, output, problem)


def explain(raw: bytes, program: str) -> tuple[str, str]:
    """Return why the program did not start, given the data from `problem`, and what to try."""
    try:
        reason, hint = json.loads(raw)
        return str(reason), str(hint)
    except (ValueError, TypeError):
        return f"cannot run {program}", ""


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
            os.write(reports, json.dumps([word[:1500] for word in failure]).encode())
        os._exit(_CODE)


def _try(
    argv: Sequence[str], environment: Mapping[str, str], directory: Path, refuse: Callable[[], Ignored | None]
) -> tuple[str, str]:
    """Execute the program, or return why that failed, and what to try."""
    try:
        os.chdir(directory)
    except OSError as error:
        return why_not_started(argv[0], error.errno or 0, facts={}, directory=str(directory))
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
            return why_not_started(argv[0], error.errno or 0, facts=_facts(argv[0]))
        except ValueError as error:  # a NUL byte
            return f"cannot run {argv[0]!r}: {error}", ""


def _facts(program: str) -> dict[str, str]:
    facts: dict[str, str] = {}
    with suppress(OSError):
        if os.statvfs(program).f_flag & os.ST_NOEXEC:
            facts["noexec"] = "yes"
    with suppress(OSError), open(program, "rb", buffering=0) as file:
        first = file.read(256).partition(b"\n")[0]
        if first.startswith(b"#!"):
            words = first[2:].strip(b" \t").split(b" ")
            facts["interpreter"] = words[0].decode("utf-8", "replace")
    return facts
