"""What became of a run, in one word and one line. Pure."""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from resilience.cron.records import EntryOptions, Outcome
from resilience.quantities import format_duration


class Cause(StrEnum):
    """Why a supervisor ended a run."""

    NONE = ""
    """It did not."""
    TIMEOUT = "timeout"
    STOPPED = "stopped"
    """The scheduler was told to end."""
    REPLACED = "replaced"
    """A newer slot of the same entry came."""


class End(NamedTuple):
    """What became of a run.

    Attributes:
        outcome: in one word.
        exit_code: 128 + signal where a signal ended it; None: it did not end.
        summary: one line, for people.
    """

    outcome: Outcome
    exit_code: int | None
    summary: str


def judge_end(
    status: int | None, cause: Cause, options: EntryOptions, *, why: str = "", left: int = 0, stuck: int = 0
) -> End:
    """Given how the program ended, return what became of its run.

    Args:
        status: as os.waitstatus_to_exitcode gives it: minus the signal that ended it; None: it has not ended.
        cause: why it was ended by its supervisor.
        why: what the scheduler said when it stopped it.
        left: how many processes it had left behind, that were ended.
        stuck: how many processes could not be ended.
    """
    code = None if status is None else 128 - status if status < 0 else status
    if cause is Cause.TIMEOUT:
        outcome, said = Outcome.TIMEOUT, f"ended after its timeout of {format_duration(options.timeout_s)}"
    elif cause is Cause.STOPPED:
        outcome, said = Outcome.CUT_SHORT, f"ended because {why or 'its supervisor was told to end'}"
    elif cause is Cause.REPLACED:
        outcome, said = Outcome.CUT_SHORT, "ended because its next slot had come (overlap=replace)"
    elif status is None:
        outcome, said = Outcome.FAILED, "it could not be seen how it ended"
    elif status < 0:
        outcome, said = Outcome.FAILED, f"killed by {_signal(-status)}"
    else:
        outcome, said = Outcome.FAILED, f"exit code {status}"
    if cause is Cause.NONE and code is not None and code in options.ok:
        outcome, said = Outcome.DONE, "" if code == 0 else said
    words = [said] if said else []
    if stuck:
        words.append(f"{_processes(stuck)} of it could not be ended")
    if left:
        words.append(f"{_processes(left)} that it left behind {'was' if left == 1 else 'were'} ended")
    return End(outcome, code, "; ".join(words))


def why_not_started(program: str, number: int, *, facts: Mapping[str, str], directory: str = "") -> tuple[str, str]:
    """Given the kernel's error number, return why a program could not be started, and what to try.

    `facts` is what was found out about it (launch.py): `interpreter`, the first line's; `noexec`: the mount;
    `directory`. Sources: execve(2), fork(2).
    """
    reason = errno.errorcode.get(number, str(number))
    interpreter = facts.get("interpreter", "")
    if directory:
        return (
            f"cannot enter {directory}: {_words(number)}",
            "the working directory of a drop-in is the project's directory",
        )
    if number == errno.ENOENT and interpreter.endswith("\r"):
        return (
            f"cannot run {program}: its lines end as on Windows, so its interpreter would be {interpreter!r}",
            f"sed -i 's/\\r$//' {program}",
        )
    if number == errno.ENOENT and interpreter:
        return (
            f"cannot run {program}: its interpreter {interpreter} does not exist",
            "correct its first line; `#!/usr/bin/env NAME` looks on PATH, which is short here",
        )
    if number == errno.ENOENT:
        hint = "has it gone?" if "/" in program else "it is not on the PATH that entries get; write its absolute path"
        return f"cannot run {program}: there is no such file", hint
    if number == errno.ENOEXEC:
        return (
            f"cannot run {program}: the kernel does not know its format",
            "a script's first line must be `#!` and its interpreter, as `#!/bin/sh`; a program must be this machine's",
        )
    if number in (errno.EACCES, errno.EPERM) and "noexec" in facts:
        return (
            f"cannot run {program}: its file system is mounted noexec",
            "have its interpreter run it from a line of the crontab, or move the project",
        )
    if number in (errno.EACCES, errno.EPERM):
        return f"cannot run {program}: {_words(number)}", f"chmod u+x {program}; its interpreter must be executable too"
    if number == errno.E2BIG:
        return f"cannot run {program}: arguments and environment are too large", "see `getconf ARG_MAX`"
    if number == errno.ETXTBSY:
        return f"cannot run {program}: somebody is writing it", "it is tried again at its next slot"
    if number in (errno.EAGAIN, errno.ENOMEM):
        return (
            f"cannot run {program}: no process could be started ({_words(number)})",
            "see `ulimit -u` and the memory of this machine",
        )
    return f"cannot run {program}: {_words(number)} ({reason})", ""


def _words(number: int) -> str:
    import os

    return os.strerror(number)


def _signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (out of memory?)" if number == signal.SIGKILL else name


def _processes(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"
