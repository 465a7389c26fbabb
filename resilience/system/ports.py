"""The interface to the operating system as one frozen value: clock, program runner, environment, host."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from resilience.errors import UsageError

if TYPE_CHECKING:
    from resilience.system.process import Completed, ProcessRunner


class SystemClock:
    """The clocks of the host: wall time for users and files, monotonic time for deadlines."""

    def now(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return monotonic seconds, independent of the wall clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep. Return at once for a negative duration.

        A second at a time: Python runs the handler of a signal that arrives just before time.sleep's system call only
        after it, which for a live view of an hour is never.
        """
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 1.0))


def iso_time(seconds: float) -> str:
    """Return local ISO time with offset: `2026-11-20T10:15:00+01:00`."""
    from datetime import UTC, datetime  # takes 5 ms, and most commands do not need it

    return datetime.fromtimestamp(seconds, tz=UTC).astimezone().isoformat(timespec="seconds")


class Clock(Protocol):
    """Interface of a clock."""

    def now(self) -> float:
        """Return seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        ...

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        ...


class Runner(Protocol):
    """Interface of a program runner with deadlines."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str = "",
    ) -> Completed:
        """Run a program to its end. Raise ProbeError if the program cannot be run or exceeds its deadline."""
        ...

    def stream(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Iterator[str]:
        """Yield the lines of a program's standard output. Raise CommandFailed at the end if the program failed."""
        ...


class Host(NamedTuple):
    """The host and its current user."""

    name: str
    user: str
    uid: int
    home: Path

    @classmethod
    def current(cls) -> Host:
        """Return this host and user. The user name is from the account database, not from $USER; an account without a
        name (in a container) is named by its uid, and without a home directory, the home is `/`."""
        uid = os.getuid()
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            user = str(uid)
        try:
            home = Path.home()
        except RuntimeError:
            home = Path("/")
        return cls(name=os.uname().nodename, user=user, uid=uid, home=home)


def is_account(name: str) -> bool:
    """Return whether this host has an account of this name: a journal may contain users who have left."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _current_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current directory does not exist any more", hint="cd to an existing directory") from None


class RunnerOnDemand:
    """Runs programs; imports ProcessRunner at the first call, because `resil status` usually runs no program."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str = "",
    ) -> Completed:
        """As ProcessRunner.run."""
        return _process_runner().run(argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin)

    def stream(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Iterator[str]:
        """As ProcessRunner.stream."""
        return _process_runner().stream(argv, timeout_s=timeout_s, env=env)


def _process_runner() -> ProcessRunner:
    from resilience.system.process import ProcessRunner

    return ProcessRunner()


@dataclass(frozen=True, slots=True)
class System:
    """The interface to the operating system."""

    clock: Clock = field(default_factory=SystemClock)
    runner: Runner = field(default_factory=RunnerOnDemand)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    host: Host = field(default_factory=Host.current)
    cwd: Path = field(default_factory=_current_directory)

    @property
    def config_home(self) -> Path:
        """Return the directory of the user's settings (https://specifications.freedesktop.org/basedir-spec)."""
        return Path(self.environ.get("XDG_CONFIG_HOME") or self.host.home / ".config")

    @property
    def cache_home(self) -> Path:
        """Return the directory of the user's caches."""
        return Path(self.environ.get("XDG_CACHE_HOME") or self.host.home / ".cache")
