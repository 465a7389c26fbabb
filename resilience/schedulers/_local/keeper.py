"""Sees to it that a spool with work in it has its daemon."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.errors import ProbeError
from resilience.schedulers._local.spool import Spool

if TYPE_CHECKING:
    from resilience.system.world import Runner

_DAEMON = "resilience.schedulers._local.daemon"
_START_TIMEOUT_S = 15.0


def daemon_command(root: Path) -> list[str]:
    """The argv that starts the daemon of a spool. Pure."""
    return [sys.executable, "-P", "-m", _DAEMON, str(root)]


def daemon_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment to start it in: it finds this package, and nothing of a job that may be calling clings to it."""
    package = str(Path(__file__).parents[3])
    own = {name: value for name, value in environ.items() if not name.startswith(("SLURM", "RESIL_LOCAL_SPOOL"))}
    return {**own, "PYTHONPATH": f"{package}:{environ.get('PYTHONPATH', '')}".rstrip(":")}


def keep_daemon(spool: Spool, runner: Runner, environ: Mapping[str, str], *, timeout_s: float) -> Sequence[str]:
    """Wake the daemon, or start it where there is work and none lives. Return what went wrong, for people."""
    if daemon_lives(spool.root):
        spool.wake()
        return ()
    if not spool.active():
        return ()
    try:
        done = runner.run(
            daemon_command(spool.root),
            timeout_s=min(_START_TIMEOUT_S, timeout_s),
            env=daemon_environment(environ),
        )
    except ProbeError as error:
        return (f"the process that runs the queue did not start: {error.message}",)
    if done.returncode:
        return (f"the process that runs the queue failed: {done.stderr.strip()[-500:]}",)
    return ()


def daemon_lives(root: Path) -> bool:
    """Whether somebody holds the daemon's lock."""
    try:
        descriptor = os.open(root / "daemon.lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
