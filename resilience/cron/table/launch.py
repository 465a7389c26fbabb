"""Explains why a program could not be started."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from resilience.messages import quoted


def with_hint(why: str, hint: str) -> str:
    """Return a reason and what to try as one line. Pure."""
    return f"{why} ({hint})" if hint else why


def explain_start(program: str, number: int) -> str:
    """Return why a program could not be executed, given errno, and what to try."""
    interpreter, is_noexec = "", False
    with suppress(OSError):
        is_noexec = bool(os.statvfs(program).f_flag & os.ST_NOEXEC)
    with suppress(OSError), open(program, "rb", buffering=0) as file:
        first = file.read(256).partition(b"\n")[0]
        if first.startswith(b"#!"):
            interpreter = first[2:].strip(b" \t").split(b" ")[0].decode("utf-8", "replace")
    return why_not_started(program, number, interpreter=interpreter, is_noexec=is_noexec)


def why_not_started(program: str, number: int, *, interpreter: str = "", is_noexec: bool = False) -> str:
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
    return with_hint(f"cannot run {program}: {why}", hint)


_REASONS = {
    errno.ENOEXEC: (
        "the kernel does not know its format",
        "a script must begin with `#!` and its interpreter, such as `#!/bin/sh`; a binary must match this machine",
    ),
    errno.E2BIG: ("arguments and environment are too large", "see `getconf ARG_MAX`"),
    errno.ETXTBSY: ("it is open for writing", "it runs again at its next slot"),
}
