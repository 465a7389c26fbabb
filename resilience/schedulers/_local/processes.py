"""Processes of this host: identity, descendants, signals, and the processes of a lost job.

Source: proc(5), prctl(2). Pids are reused; pid, start time and boot id together identify a process.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from resilience.base import processes

CPUS_VARIABLE = "RESIL_LOCAL_CPUS"
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (PR_SET_CHILD_SUBREAPER)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """Set the name that `ps -o comm` and `top` show, 15 bytes of it."""
    import ctypes

    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:15]))


def _prctl(option: int, value: object) -> None:
    import ctypes  # only daemons need it

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


@cache
def machine_id() -> str:
    """Return the id of this host: /etc/machine-id (machine-id(5)), or its name."""
    with contextlib.suppress(OSError):
        if found := Path("/etc/machine-id").read_text().strip():
            return found
    return os.uname().nodename


boot_id, descendants = processes.boot_id, processes.descendants


def start_ticks(pid: int) -> int:
    """Return the start of a process, in clock ticks since the boot; 0 if dead or a zombie."""
    return (processes.start_ticks(pid) or 0) if processes.is_alive(pid) else 0


def is_alive(pid: int, ticks: int, boot: str) -> bool:
    """Return whether this process is alive."""
    return boot == boot_id() and processes.is_same(pid, ticks)


def carrying(**variables: str) -> list[int]:
    """Return the other processes of this user with all these variables in their environment.

    Finds the processes of a lost job, whose watcher is gone.
    """
    import psutil  # for the daemon only: the replacement commands run without site-packages

    return [
        process.pid
        for process in psutil.process_iter(["environ"])
        if process.pid != os.getpid() and variables.items() <= (process.info["environ"] or {}).items()
    ]


def available_cpus(environ: Mapping[str, str]) -> int:
    """Return the number of CPUs for jobs: $RESIL_LOCAL_CPUS, else the CPUs of this process."""
    chosen = environ.get(CPUS_VARIABLE, "")
    return int(chosen) if chosen.isdigit() and int(chosen) else len(os.sched_getaffinity(0))


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process. Ended processes are ignored."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap() -> None:
    """Reap all ended children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def slurm_variables(rows: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Return SLURM_* variables for rows of (names separated by blanks, without `SLURM_`; value). None: unset."""
    return {f"SLURM_{name}": str(value) for names, value in rows if value is not None for name in names.split()}


def default_signals() -> None:
    """Reset all signal handlers and the signal mask, which a child would inherit."""
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def current_umask() -> int:
    """Return the umask of this process, without changing it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def user_name(environ: Mapping[str, str]) -> str:
    """Return the name of the current user; a number if the account has no name."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return environ.get("USER") or str(os.getuid())
