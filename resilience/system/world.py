"""The world as one frozen value: whoever needs a clock, a runner or the environment is handed this."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resilience.errors import UsageError
from resilience.system.clock import SystemClock
from resilience.system.ports import Clock, Runner

if TYPE_CHECKING:
    from resilience.system.process import Completed, ProcessRunner


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
    """Whether this machine knows a login name: a journal may name people who have left."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current folder does not exist any more", hint="cd to one that does") from None


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
class World:
    """The ports to the machine."""

    clock: Clock = field(default_factory=SystemClock)
    runner: Runner = field(default_factory=RunnerOnDemand)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    host: Host = field(default_factory=Host.current)
    cwd: Path = field(default_factory=_current_folder)

    @property
    def config_home(self) -> Path:
        """Where the person's own settings lie (https://specifications.freedesktop.org/basedir-spec)."""
        return Path(self.environ.get("XDG_CONFIG_HOME") or self.host.home / ".config")

    @property
    def cache_home(self) -> Path:
        """Where what can be made again lies."""
        return Path(self.environ.get("XDG_CACHE_HOME") or self.host.home / ".cache")
