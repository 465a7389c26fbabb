"""The world as one frozen value: whoever needs a clock, a runner or the environment is handed this."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from resilience.errors import UsageError
from resilience.system.clock import SystemClock
from resilience.system.ports import Clock, Runner
from resilience.system.process import ProcessRunner


@dataclass(frozen=True, slots=True)
class Host:
    """This machine and the person on it."""

    name: str
    user: str
    uid: int
    home: Path

    @classmethod
    def current(cls) -> Host:
        """Look at this machine. An account without a name (a container's bare uid) is named by its number; without a
        home, its home is `/`."""
        uid = os.getuid()
        try:
            user = getpass.getuser()
        except (KeyError, OSError):
            user = str(uid)
        try:
            home = Path.home()
        except RuntimeError:
            home = Path("/")
        return cls(name=socket.gethostname(), user=user, uid=uid, home=home)


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current folder does not exist any more", hint="cd to one that does") from None


@dataclass(frozen=True, slots=True)
class World:
    """The ports to the machine."""

    clock: Clock = field(default_factory=SystemClock)
    runner: Runner = field(default_factory=ProcessRunner)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    host: Host = field(default_factory=Host.current)
    cwd: Path = field(default_factory=_current_folder)
