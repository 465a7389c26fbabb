"""Reads and writes a person's table through its program (`crontab`, `scrontab`), so that nobody's line is lost.

These programs have no lock: who reads, changes and writes back may overwrite what somebody else wrote meanwhile. We
keep other resil commands of the same person on the same machine away with a lock, read as late as possible, and read
again afterwards: when our change is not there, somebody was quicker, and we begin anew.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from resilience.errors import ProbeError, ResilError
from resilience.runs.context import Context
from resilience.system.files import own_directory
from resilience.system.process import Completed

READ_S = 15.0
"""How long listing or writing a table may take. (crontab asks PAM, which may ask a directory server.)"""

ATTEMPTS = 8
LOCK_S = 20.0
"""How long we wait for another resil of the same person; then we go on without."""


class NoAnswer(ProbeError):
    """The table could not be read: nothing is known about it."""


class NotForUs(NoAnswer):
    """The program is not there, or will not serve this person or on this machine: another time it will not either."""


class Program(Protocol):
    """The program of one kind of table."""

    @property
    def name(self) -> str:
        """What it is called, and its table."""
        ...

    def read(self, context: Context) -> str | None:
        """The person's table, as people know it; None: there is none. Raise NoAnswer if that cannot be told."""
        ...

    def write(self, table: str, context: Context) -> None:
        """Replace it. Raise ResilError if it was not replaced."""
        ...

    def remove(self, context: Context) -> None:
        """Have none any more. Raise ResilError if it was not removed."""
        ...


def ask(
    context: Context,
    argv: Sequence[str],
    *,
    timeout_s: float = 0.0,
    stdin: str = "",
    env: Mapping[str, str] = MappingProxyType({}),
) -> Completed:
    """Run the program of a table, in plain English, within READ_S unless said otherwise.

    Raise NoAnswer if it gave no answer.
    """
    whole = {**context.system.environ, "LC_ALL": "C", **env}
    try:
        return context.system.runner.run(argv, timeout_s=timeout_s or READ_S, env=whole, stdin=stdin)
    except ProbeError as error:
        kind = NoAnswer if error.transient else NotForUs
        raise kind(error.message, hint=error.hint, transient=error.transient) from error


def said(done: Completed) -> str:
    """What a program said when it failed, in one line."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return "; ".join(lines)[:300] or f"it ended with {done.returncode} and said nothing"


def change(program: Program, edit: Callable[[str], str], context: Context) -> bool:
    """Replace a person's table by what `edit` makes of it; return whether anything had to be written.

    `edit` must be such that editing twice is editing once. Raise ResilError if it could not be done.
    """
    with _alone(program.name, context):
        for attempt in range(ATTEMPTS):
            before = program.read(context)
            old = before or ""
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
            context.system.clock.sleep(
                0.05 + 0.2 * os.urandom(1)[0] / 256
            )  # two that retry in step would go on for ever
    raise ResilError(
        f"the {program.name} of {context.system.host.user} changes faster than it can be written",
        hint="is an editor or a configuration tool at it? Try again",
        transient=True,
    )


@contextmanager
def _alone(name: str, context: Context) -> Iterator[None]:
    """Keep other commands of ours away from a table. Where there is no place for a lock, go on without one."""
    descriptor = -1
    for root in ("/tmp", "/dev/shm"):
        directory = own_directory(Path(root, f"resil-{context.system.host.uid}"))
        if directory is not None:
            with suppress(OSError):
                descriptor = os.open(
                    directory / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
                )
                break
    try:
        if descriptor >= 0:
            _lock(descriptor, context)
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)  # which also gives the lock back


def _lock(descriptor: int, context: Context) -> None:
    clock = context.system.clock
    deadline = clock.monotonic() + LOCK_S
    while clock.monotonic() < deadline:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            clock.sleep(0.05)
        except OSError:
            return
        else:
            return


def give_up(program: Program, edit: Callable[[str], str], context: Context) -> None:
    """As `change`, after a failure of it: leave nothing half done, where that can be done at all."""
    with suppress(ResilError):
        change(program, edit, context)
