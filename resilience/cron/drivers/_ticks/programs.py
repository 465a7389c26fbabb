"""Reads and writes a user's table through its program (`crontab`, `scrontab`) without losing lines of others.

These programs have no lock: another process may write between our read and write, and its change would be lost. A lock
excludes other resil commands of the same user on this machine; the table is read as late as possible, and again
afterwards: if our change is missing, another process was faster, and we start over.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from resilience.cron.drivers import ProgramFailed, ProgramUnavailable
from resilience.cron.drivers._ticks.lines import tokens_of, with_ours, without_ours
from resilience.cron.records import Installation
from resilience.errors import ProbeError, ResilError
from resilience.runs.context import Context
from resilience.system.files import own_directory
from resilience.system.process import Completed

READ_S = 15.0
"""Time limit for listing or writing a table. (crontab asks PAM, which may ask a directory server.)"""

ATTEMPTS = 8
LOCK_S = 20.0
"""Time limit for the lock; afterwards we continue without it."""


class Program(Protocol):
    """The program of one kind of table."""

    @property
    def name(self) -> str:
        """Name of the program, and of its table."""
        ...

    def read(self, context: Context) -> str | None:
        """Return the user's table; None if there is none. Raise ProgramFailed if it cannot be read."""
        ...

    def write(self, table: str, context: Context) -> None:
        """Replace the table. Raise ResilError if that fails."""
        ...

    def remove(self, context: Context) -> None:
        """Delete the table. Raise ResilError if that fails."""
        ...


def run_program(
    context: Context,
    argv: Sequence[str],
    *,
    timeout_s: float = 0.0,
    stdin: str = "",
    env: Mapping[str, str] = MappingProxyType({}),
) -> Completed:
    """Run the program of a table, in the C locale, by default within READ_S.

    Raise ProgramFailed if it did not run or did not end in time.
    """
    whole = {**context.system.environ, "LC_ALL": "C", **env}
    try:
        return context.system.runner.run(argv, timeout_s=timeout_s or READ_S, env=whole, stdin=stdin)
    except ProbeError as error:
        kind = ProgramFailed if error.transient else ProgramUnavailable
        raise kind(error.message, hint=error.hint, transient=error.transient) from error


def error_of(done: Completed) -> str:
    """Return the error output of a program in one line."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return "; ".join(lines)[:300] or f"exit code {done.returncode}, no output"


def holds(program: Program, lines: Sequence[str], installation: Installation, context: Context) -> bool:
    """Return whether a user's table has exactly these lines of ours. Raise ResilError if it cannot be read."""
    table = program.read(context) or ""
    return _with(lines, installation, context)(table) == table


def put(program: Program, lines: Sequence[str], installation: Installation, context: Context) -> bool:
    """Replace our lines in a user's table; return whether anything had to be written.

    Lines of an installation of this project that is no longer recorded are ours too. Raise ResilError if it fails; then
    new lines are removed again, if possible.
    """
    try:
        return change(program, _with(lines, installation, context), context)
    except ResilError:
        if lines:
            with suppress(ResilError):
                change(program, lambda table: without_ours(table, {installation.token}), context)
        raise


def _with(lines: Sequence[str], installation: Installation, context: Context) -> Callable[[str], str]:
    return lambda table: with_ours(table, lines, {installation.token} | tokens_of(table, context.state_dir))


def change(program: Program, edit: Callable[[str], str], context: Context) -> bool:
    """Replace a user's table by the result of `edit`; return whether anything had to be written.

    `edit` must be idempotent. Raise ResilError if writing fails.
    """
    with _locked(program.name, context):
        for attempt in range(ATTEMPTS):
            old = program.read(context) or ""
            new = edit(old)
            if new == old:
                return attempt > 0
            if new:
                program.write(new, context)
            else:
                program.remove(context)
            found = program.read(context) or ""
            if found == new or edit(found) == found:
                return True
            # A random pause: two that retry in step would go on for ever.
            context.system.clock.sleep(0.05 + 0.2 * os.urandom(1)[0] / 256)
    raise ResilError(
        f"the {program.name} of {context.system.host.user} keeps changing while it is being written",
        hint="check for an editor or a configuration tool, then try again",
        transient=True,
    )


@contextmanager
def _locked(name: str, context: Context) -> Iterator[None]:
    """Lock a table against other resil commands, for at most LOCK_S. Without a lock file, continue without a lock."""
    clock = context.system.clock
    roots = (own_directory(Path(root, f"resil-{context.system.host.uid}")) for root in ("/tmp", "/dev/shm"))
    directory = next((root for root in roots if root is not None), Path(os.devnull))
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(directory / f"{name}.lock", flags, 0o600)
    except OSError:
        yield
        return
    try:
        deadline = clock.monotonic() + LOCK_S
        while clock.monotonic() < deadline:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                clock.sleep(0.05)
            except OSError:
                break  # no locks on this file system
            else:
                break
        yield
    finally:
        os.close(descriptor)  # which also releases the lock
