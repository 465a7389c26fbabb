"""Reads the breaker of a run, as batch shells and watchdogs leave it. Format: docs/reference/run-directory.md.

An open breaker means that further attempts are not worth their allocation: the queued jobs are held, and a job that
starts ends at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience import layout
from resilience.errors import StateDirectoryError
from resilience.quantities import format_duration
from resilience.runs.run_directory import RunDirectory
from resilience.switch import describe_age, printable
from resilience.system.files import read_regular

BY_USER = "user "
"""Begins `by` of a breaker that a person opened. No program closes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBreaker:
    """A breaker that is open.

    Attributes:
        opened: since when, in seconds since the epoch, as all times here; 0: unknown.
        attempt: the newest attempt that counted.
        burnt: attempts in a row without progress.
        acting: whether it holds jobs and ends jobs at their start; if not, it is only told.
        by: `job 12_3`, `watchdog on login1`, `user ada`.
        retry_at: when one more attempt may try; 0: not before a person closes it.
        why: a sentence.
    """

    opened: float = 0.0
    attempt: int = 0
    burnt: int = 0
    acting: bool = False
    by: str = ""
    retry_at: float = 0.0
    why: str = ""

    @property
    def is_of_a_person(self) -> bool:
        """Return whether a person opened it."""
        return self.by.startswith(BY_USER)


def breaker_path(directory: RunDirectory, name: str = layout.BREAKER) -> Path:
    """Return the path of one of its files."""
    return directory.path / layout.ATTEMPTS / name


def read_breaker(directory: RunDirectory) -> OpenBreaker | None:
    """Return the breaker of a run if it is open, else None. A damaged file is an open breaker that does not act.

    Raise StateDirectoryError for a transient read error.
    """
    try:
        found = read_regular(breaker_path(directory))
    except StateDirectoryError as error:
        if error.transient:
            raise
        return OpenBreaker(why=error.message)
    if found is None:
        return None
    import tomllib  # imported late: 4 ms

    try:
        table = tomllib.loads(found[0].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return OpenBreaker(why="its file is damaged")
    return OpenBreaker(
        opened=_number(table.get("opened")),
        attempt=int(_number(table.get("attempt"))),
        burnt=int(_number(table.get("burnt"))),
        acting=table.get("acting") is True,
        by=printable(str(table.get("by", ""))),
        retry_at=_number(table.get("retry_at")),
        why=printable(str(table.get("why", ""))),
    )


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11
    return float(value) if is_number else 0.0


def describe_breaker(breaker: OpenBreaker, now: float) -> str:
    """Return a sentence: `open, opened 12 min ago: 3 attempts in a row failed ...`. Pure."""
    opened = f", opened{describe_age(now - breaker.opened) or ' just now'}" if breaker.opened else ""
    state = "half open" if 0 < breaker.retry_at <= now else "open"
    retry = f", one more may try in {format_duration(breaker.retry_at - now)}" if breaker.retry_at > now else ""
    leave = "" if breaker.acting else " (only told, because [act] is not enabled)"
    return f"{state}{opened}{retry}{leave}: {breaker.why}"
