"""The files of a run's breaker, which batch shells and watchdogs share. Format: docs/reference/run-directory.md.

An open breaker means that further attempts are not worth their allocation: the queued jobs are held, and a job that
starts ends at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience import layout
from resilience.base.files import create_file
from resilience.errors import StateDirectoryError, UsageError
from resilience.job import JobId
from resilience.quantities import format_duration, quote_toml
from resilience.runs.run_directory import RunDirectory
from resilience.switch import describe_age, printable
from resilience.system.files import explain_os_error, read_regular, write_atomic

BY_USER, BY_ALERT = "user ", "alert "
"""Begin `by` of a breaker that a person opened, or an alert that nobody acknowledged. No program closes it."""
_PLAIN = str.maketrans('"\\', "''")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBreaker:
    """A breaker that is open.

    Attributes:
        opened: since when, in seconds since the epoch, as all times here; 0: unknown.
        attempt: the newest attempt that counted.
        burnt: attempts in a row without progress.
        acting: whether it holds jobs and ends jobs at their start; if not, it is only told.
        by: `job 12_3`, `watchdog on login1`, `user ada`, `alert 3f9a1c04`.
        retry_at: when one more attempt may try; 0: not before a person closes it.
        why: a sentence, as of `plain`.
    """

    opened: float = 0.0
    attempt: int = 0
    burnt: int = 0
    acting: bool = False
    by: str = ""
    retry_at: float = 0.0
    why: str = ""

    @property
    def is_by_hand(self) -> bool:
        """Return whether only a person closes it."""
        return self.by.startswith((BY_USER, BY_ALERT))


def breaker_path(directory: RunDirectory, name: str = layout.BREAKER) -> Path:
    """Return the path of one of its files."""
    return directory.path / layout.ATTEMPTS / name


def plain(text: str) -> str:
    """Return a reason as the batch shell can read it: it knows no escapes of TOML."""
    return printable(text).translate(_PLAIN)


# ---- the breaker itself --------------------------------------------------------------------------------------------


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


def create_breaker(directory: RunDirectory, breaker: OpenBreaker) -> bool:
    """Create the file of the breaker. Return False if another process was first. Raise StateDirectoryError."""
    path = breaker_path(directory)
    try:
        return create_file(path, _text(breaker), mode=directory.file_mode)
    except OSError as error:
        raise explain_os_error(error, "write", path) from error


def write_breaker(directory: RunDirectory, breaker: OpenBreaker) -> None:
    """Write the file of the breaker, whether or not it exists. Raise StateDirectoryError."""
    write_atomic(breaker_path(directory), _text(breaker), mode=directory.file_mode)


def remove_breaker(directory: RunDirectory, name: str = layout.BREAKER) -> None:
    """Remove one of its files. Raise StateDirectoryError."""
    path = breaker_path(directory, name)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise explain_os_error(error, "remove", path) from error


def _text(breaker: OpenBreaker) -> str:
    return (
        f"opened = {breaker.opened:.0f}\nattempt = {breaker.attempt}\nburnt = {breaker.burnt}\n"
        f"acting = {str(breaker.acting).lower()}\nby = {quote_toml(breaker.by)}\n"
        f"retry_at = {breaker.retry_at:.0f}\nwhy = {quote_toml(breaker.why)}\n"
    )


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11
    return float(value) if is_number else 0.0


def describe_breaker(breaker: OpenBreaker, now: float) -> str:
    """Return a sentence: `open, opened 12 min ago: 3 attempts in a row failed ...`. Pure."""
    opened = f", opened{describe_age(now - breaker.opened) or ' just now'}" if breaker.opened else ""
    state = "half open" if 0 < breaker.retry_at <= now else "open"
    retry = f", one more may try in {format_duration(breaker.retry_at - now)}" if breaker.retry_at > now else ""
    leave = "" if breaker.acting or not breaker.opened else " (only told, because [act] is not enabled)"
    return f"{state}{opened}{retry}{leave}: {breaker.why}"


# ---- the jobs that it holds, and the attempts that count no more ----------------------------------------------------


def read_held(directory: RunDirectory) -> tuple[JobId, ...]:
    """Return the jobs and arrays that are held because of the breaker. Raise StateDirectoryError."""
    found = read_regular(breaker_path(directory, layout.BREAKER_HELD))
    ids = []
    for line in found[0].decode("ascii", "replace").split() if found is not None else ():
        with suppress(UsageError):
            ids.append(JobId.parse(line))
    return tuple(sorted(set(ids)))


def write_held(directory: RunDirectory, jobs: Iterable[JobId]) -> None:
    """Write the jobs that are about to be held. Raise StateDirectoryError."""
    text = "".join(f"{job_id}\n" for job_id in sorted(jobs))
    write_atomic(breaker_path(directory, layout.BREAKER_HELD), text, mode=directory.file_mode)


def write_counts(directory: RunDirectory, attempt: int, burnt: int, outside: int) -> None:
    """Correct the counts in the end of an attempt, where later batch shells go on from. Raise StateDirectoryError.

    A watchdog that closes the breaker of a batch shell knows more than the shell: without this, the next one opens it
    again.
    """
    path = directory.path / layout.ATTEMPTS / layout.attempt_end_file(attempt)
    found = read_regular(path)
    if found is not None:
        lines = found[0].decode("utf-8", "replace").splitlines()
        kept = [line for line in lines if not line.startswith(("burnt =", "outside ="))]
        text = "\n".join([*kept, f"burnt = {burnt}", f"outside = {outside}\n"])
        write_atomic(path, text, mode=directory.file_mode)


def closings(directory: RunDirectory) -> tuple[int, ...]:
    """Return the attempts after which a person closed the breaker, ascending; up to the last of them none counts."""
    import tomllib

    with suppress(StateDirectoryError, ValueError, RecursionError):
        found = read_regular(breaker_path(directory, layout.BREAKER_CLOSED))
        table = tomllib.loads(found[0].decode()) if found is not None else {}
        earlier = table.get("earlier")
        numbers = [table.get("attempt"), *(earlier if isinstance(earlier, list) else ())]
        return tuple(sorted({number for number in numbers if isinstance(number, int)}))
    return ()


def last_closed(directory: RunDirectory) -> int:
    """Return the newest attempt that no longer counts, because a person closed the breaker after it; 0: none."""
    return max(closings(directory), default=0)


def write_closed(directory: RunDirectory, attempt: int, now: float, user: str) -> None:
    """Write that attempts up to this one count no more. Raise StateDirectoryError."""
    earlier = [number for number in closings(directory) if number < attempt]
    text = f"attempt = {attempt}\nearlier = {earlier}\ntime = {now:.0f}\nby = {quote_toml(user)}\n"
    write_atomic(breaker_path(directory, layout.BREAKER_CLOSED), text, mode=directory.file_mode)
