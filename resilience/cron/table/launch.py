"""Starts a program as the kernel knows how: a process group of its own, nothing inherited, and the reason if not.

Not `subprocess`: its start waits until the program is loaded, and a program on a hung mount never is. Here the reason
comes through a pipe, which is read when there is something in it; until then the timeout runs.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from resilience.cron.records import Ignored
from resilience.cron.table.ended import why_not_started
from resilience.system.child import fork

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""linux/prctl.h."""

BUSY_S = 2.0
"""A program that somebody is just writing (ETXTBSY) is tried for so long."""

_CODE = 127
"""As a shell ends that finds no program."""


class Launched(NamedTuple):
    """A program that is being started.

    Attributes:
        pid: its process, which leads a process group.
        output: what it writes comes out here.
        trouble: why it did not start comes out here, as JSON; closed without a word: it did.
    """

    pid: int
    output: int
    trouble: int


def launch(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    directory: Path,
    umask: int,
    refuse: Callable[[], Ignored | None],
) -> Launched:
    """Start a program; both descriptors do not block. Raise OSError if no process could be started.

    `refuse` is asked in the new process, right before it becomes the program. Between the two, the file could still be
    exchanged by who may write in its directory: by nobody but whom the policy trusts.
    """
    output, writes = os.pipe2(os.O_CLOEXEC)
    trouble, tells = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # a handler of ours would swallow it
    try:
        pid = fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for descriptor in (output, writes, trouble, tells):
            os.close(descriptor)
        raise
    if pid == 0:
        _become(argv, environment, directory, umask, refuse, writes, tells, parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(writes)
    os.close(tells)
    for descriptor in (output, trouble):
        os.set_blocking(descriptor, False)
    with suppress(OSError):  # both sides do it: whoever is first
        os.setpgid(pid, pid)
    return Launched(pid, output, trouble)


def explain(raw: bytes, program: str) -> tuple[str, str]:
    """Given what came out of `trouble`, return why the program did not start, and what to try."""
    try:
        told: dict[str, Any] = json.loads(raw)
        if "reason" in told:
            return str(told["reason"]), str(told["hint"])
        return why_not_started(program, int(told["errno"]), facts=told["facts"], directory=told["directory"])
    except (ValueError, KeyError, TypeError):
        return f"cannot run {program}", ""


def prctl(option: int, value: int) -> None:
    """prctl(2). What the kernel does not know is done without."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def close_all(keep: Iterable[int]) -> None:
    """Let go of every descriptor beyond standard error but these."""
    kept = set(keep)
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 - names only
    except OSError:
        names = [str(number) for number in range(4096)]
    for number in map(int, names):
        if number > 2 and number not in kept:
            with suppress(OSError):
                os.close(number)


def reset_signals() -> None:
    """A process starts with the signals as a login shell's programs have them, whatever we handle or ignore."""
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        with suppress(OSError, ValueError):
            if signal.getsignal(number) is not signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)


def _become(
    argv: Sequence[str],
    environment: Mapping[str, str],
    directory: Path,
    umask: int,
    refuse: Callable[[], Ignored | None],
    writes: int,
    tells: int,
    parent: int,
) -> NoReturn:
    try:
        os.setpgid(0, 0)
        reset_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody would end it any more, or tell its end
        if os.getppid() != parent:
            os._exit(_CODE)
        os.umask(umask)
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 0)
        os.dup2(writes, 1)
        os.dup2(writes, 2)
        told = _try(argv, environment, directory, refuse)
        os.write(tells, json.dumps(told).encode()[:4096])
    except BaseException as error:  # nothing may run on here: this is a copy of the scheduler
        with suppress(BaseException):
            os.write(tells, json.dumps({"reason": f"{type(error).__name__}: {error}"[:500], "hint": ""}).encode())
    finally:
        os._exit(_CODE)


def _try(
    argv: Sequence[str], environment: Mapping[str, str], directory: Path, refuse: Callable[[], Ignored | None]
) -> dict[str, Any]:
    """Become the program, or return why not."""
    try:
        os.chdir(directory)
    except OSError as error:
        return {"errno": error.errno, "facts": {}, "directory": str(directory)}
    refusal = refuse()
    if refusal is not None:
        return {"reason": refusal.reason[:1500], "hint": refusal.hint[:1500]}
    end = time.monotonic() + BUSY_S
    while True:
        try:
            os.execvpe(argv[0], list(argv), dict(environment))
        except OSError as error:
            if error.errno == errno.ETXTBSY and time.monotonic() < end:
                time.sleep(0.05)
                continue
            return {"errno": error.errno, "facts": _facts(argv[0]), "directory": ""}
        except ValueError as error:  # a NUL byte
            return {"reason": f"cannot run {argv[0]!r}: {error}", "hint": ""}


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
