"""The machine as one frozen value: whoever needs a clock, a runner of programs or the environment is handed this."""

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
    """The machine's clocks: wall time for people and files, monotonic time for deadlines."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that only go forward, whatever happens to the wall clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait. A negative duration returns at once."""
        time.sleep(max(0.0, seconds))


def iso_time(seconds: float) -> str:
    """Given seconds since the epoch, return local ISO time with its offset: `2026-11-20T10:15:00+01:00`."""
    from datetime import UTC, datetime  # 5 ms that most commands need not pay

    return datetime.fromtimestamp(seconds, tz=UTC).astimezone().isoformat(timespec="seconds")


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class Runner(Protocol):
    """Runs programs with a deadline."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str = "",
    ) -> Completed:
        """Run to the end. Raise a ProbeError if the program could not be run or did not end in time."""
        ...

    def stream(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Iterator[str]:
        """Yield the lines of its standard output. Raise CommandFailed at the end if it failed."""
        ...


class Host(NamedTuple):
    """This machine and the person on it."""

    name: str
    user: str
    uid: int
    home: Path

    @classmethod
    def current(cls) -> Host:
        """Look at this machine. The name is the account's, whatever $USER claims; an account without one (a
        container's bare uid) is named by its number, and without a home, its home is `/`."""
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
    """Return whether this machine knows a login name: a journal may name people who have left."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _current_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current directory does not exist any more", hint="cd to one that does") from None


class RunnerOnDemand:
    """Runs programs, and loads what that takes only when one is run: `resil status` mostly runs none."""

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
    """The ports to the machine."""

    clock: Clock = field(default_factory=SystemClock)
    runner: Runner = field(default_factory=RunnerOnDemand)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    host: Host = field(default_factory=Host.current)
    cwd: Path = field(default_factory=_current_directory)

    @property
    def config_home(self) -> Path:
        """Where the person's own settings lie (https://specifications.freedesktop.org/basedir-spec)."""
        return Path(self.environ.get("XDG_CONFIG_HOME") or self.host.home / ".config")

    @property
    def cache_home(self) -> Path:
        """Where what can be made again lies."""
        return Path(self.environ.get("XDG_CACHE_HOME") or self.host.home / ".cache")
