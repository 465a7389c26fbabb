"""Detects a cron daemon on this machine, as far as an ordinary user can."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from resilience.base.processes import is_there

DAEMONS = ("cron", "crond", "cronie", "fcron", "dcron", "bcron-sched")
"""Process names (proc_pid_comm(5)): Debian, Red Hat and busybox, Gentoo, Arch and Alpine."""

PID_FILES = ("/run/crond.pid", "/run/cron.pid", "/var/run/crond.pid", "/var/run/cron.pid", "/run/crond.reboot")
"""Pid files of daemons: readable even if /proc hides processes of other users (hidepid=2, proc(5))."""


def find_daemon(proc: Path = Path("/proc"), pid_files: Sequence[str] = PID_FILES) -> str:
    """Return a description of the daemon (`cron, process 312`); empty if none was found."""
    for path in pid_files:
        pid = _pid_in(path)
        if pid and is_there(pid) and _comm(proc, pid) in ("", *DAEMONS):
            return f"{_comm(proc, pid) or 'cron'}, process {pid}"
    with suppress(OSError):
        for name in os.listdir(proc):  # noqa: PTH208 - names only
            if name.isdigit() and (comm := _comm(proc, int(name))) in DAEMONS:
                return f"{comm}, process {name}"
    return ""


def hides_processes(proc: Path = Path("/proc")) -> bool:
    """Whether /proc hides processes of other users, so that finding none proves nothing."""
    return not (proc / "1" / "comm").exists()


def _comm(proc: Path, pid: int) -> str:
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _pid_in(path: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read(32).strip() or 0)
    except (OSError, ValueError):
        return 0
