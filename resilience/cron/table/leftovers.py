"""Ends what a dead supervisor has left on this machine: the processes of its session."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from resilience.base.processes import is_alive


def kill_session(leader: int) -> int:
    """Kill the processes of a session whose leader has died; return how many.

    The kernel does not reuse the number of a session while a process of it exists (setsid(2), alloc_pid): its processes
    belong to that session, unless the number is that of a live process.
    """
    if leader <= 1 or is_alive(leader):
        return 0
    ended = 0
    for pid in session_members(leader):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            ended += 1
    return ended


def session_members(leader: int) -> tuple[int, ...]:
    """Return the live processes of a session (proc_pid_stat(5), field 6)."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - names only
        if not name.isdigit():
            continue
        with suppress(OSError):
            fields = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
            if len(fields) > 3 and int(fields[3]) == leader and fields[0] not in (b"Z", b"X") and int(name) != leader:
                found.append(int(name))
    return tuple(found)
