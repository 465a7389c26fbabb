"""How a command is asked to stop or to save: by a signal, or by a file, whichever it understands."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass

from resilience.base.files import replace_file
from resilience.errors import UsageError

Identity = tuple[int, int, int]
"""Device, inode and mtime of a file."""


@dataclass(frozen=True, slots=True)
class Request:
    """One way to ask a command.

    Attributes:
        signal: number of the signal to send; 0 if the command is asked by a file.
        path: absolute path of the file to create; empty if the command is asked by a signal.
    """

    signal: int = 0
    path: str = ""

    def describe(self) -> str:
        """Return how the command is asked: `SIGUSR1`, or `the file /a/STOP`."""
        return f"the file {self.path}" if self.path else signal.Signals(self.signal).name


def create_file(path: str, why: str) -> Identity | None:
    """Create the file, and return its identity; None if it exists, or cannot be created."""
    with suppress(OSError):
        if not os.path.lexists(path):
            replace_file(path, f"{why}\n", mode=0o644)
            return _identity(path)
    return None


def remove_file(path: str, created: Identity) -> None:
    """Remove the file that was created, if the command has left it: it would stop the next attempt at once."""
    with suppress(OSError):
        if _identity(path) == created:
            os.unlink(path)


def _identity(path: str) -> Identity:
    info = os.lstat(path)
    return info.st_dev, info.st_ino, info.st_mtime_ns


def parse_request(option: str, text: str | None) -> Request | None:
    """Given `USR1`, `SIGUSR1`, `10` or a path with a slash, return the request; None for None.

    Raise UsageError for another word, as it may be a misspelt signal.
    """
    if text is None:
        return None
    if not text:
        raise UsageError(f"{option} has an empty value", hint="is a shell variable unset?")
    if "/" in text:
        return Request(path=os.path.abspath(text))
    try:
        found = (
            signal.Signals(int(text)) if text.isdecimal() else signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"]
        )
    except (KeyError, ValueError):
        raise UsageError(
            f"{option} {text}: there is no signal of this name", hint=f"{option} USR1, or a file: {option} ./{text}"
        ) from None
    if found in (signal.SIGKILL, signal.SIGSTOP):
        raise UsageError(f"{option} {text}: no command can handle {found.name}", hint=f"{option} TERM")
    return Request(signal=found)
