"""Result of a run: outcome and summary. Pure."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from resilience.cron.records import EntryOptions, Outcome
from resilience.messages import plural, quoted
from resilience.quantities import format_duration


class Cause(StrEnum):
    """Why a supervisor ended a run."""

    NONE = ""
    """It ended by itself."""
    TIMEOUT = "timeout"
    STOPPED = "stopped"
    """The scheduler was stopped."""
    REPLACED = "replaced"
    """A newer slot of the same entry was due."""


class End(NamedTuple):
    """Result of a run.

    Attributes:
        outcome: the outcome.
        exit_code: 128 + signal if a signal ended it; None: it did not end.
        summary: one line for the user.
    """

    outcome: Outcome
    exit_code: int | None
    summary: str


def judge_end(status: int | None, cause: Cause, options: EntryOptions, *, left: int = 0, stuck: int = 0) -> End:
    """Return the result of a run.

    Args:
        status: as of os.waitstatus_to_exitcode: negative signal number; None: it has not ended.
        cause: why its supervisor ended it.
        left: number of leftover processes that were killed.
        stuck: number of processes that could not be killed.
    """
    code = None if status is None else 128 - status if status < 0 else status
    if cause is Cause.TIMEOUT:
        outcome, said = Outcome.TIMEOUT, f"ended after its timeout of {format_duration(options.timeout_s)}"
    elif cause is Cause.STOPPED:
        outcome, said = Outcome.CUT_SHORT, "ended because its scheduler was stopped"
    elif cause is Cause.REPLACED:
        outcome, said = Outcome.CUT_SHORT, "ended because its next slot was due (overlap=replace)"
    elif status is None:
        outcome, said = Outcome.FAILED, "exit status unknown"
    elif status < 0:
        outcome, said = Outcome.FAILED, f"killed by {_signal(-status)}"
    else:
        outcome, said = Outcome.FAILED, f"exit code {status}"
    if cause is Cause.NONE and code is not None and code in options.ok:
        outcome, said = Outcome.DONE, "" if code == 0 else said
    words = [said] if said else []
    if stuck:
        words.append(f"{plural(stuck, 'process', 'processes')} could not be killed")
    if left:
        words.append(f"killed {plural(left, 'leftover process', 'leftover processes')}")
    return End(outcome, code, "; ".join(words))


def why_not_started(program: str, number: int, *, facts: Mapping[str, str], directory: str = "") -> tuple[str, str]:
    """Return why a program could not be started, given errno, and what to try.

    `facts`: found by launch.py: `interpreter` of the first line; `noexec` mount. `directory`: the working directory
    that failed. Sources: execve(2), fork(2).
    """
    interpreter, words = facts.get("interpreter", ""), os.strerror(number)
    if directory:
        return f"cannot enter {directory}: {words}", "the working directory of a drop-in is the project's directory"
    if number == errno.ENOENT and interpreter.endswith("\r"):
        why = f"it has Windows line endings, so its interpreter would be {interpreter!r}"
        hint = f"sed -i 's/\\r$//' {quoted(program)}"
    elif number == errno.ENOENT and interpreter:
        why = f"its interpreter {interpreter} does not exist"
        hint = "correct its first line; `#!/usr/bin/env NAME` searches PATH, which is short here"
    elif number == errno.ENOENT:
        why, unknown = "no such file", "it is not on the PATH of entries; write its absolute path"
        hint = "was it removed?" if "/" in program else unknown
    elif number in (errno.EACCES, errno.EPERM) and "noexec" in facts:
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


def _signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (out of memory?)" if number == signal.SIGKILL else name
