"""Processes of this machine: identity, descendants, signals, and those of a lost job.

Source: proc(5), prctl(2). A pid is used again; pid, start time and boot id together identify a process.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

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
def boot_id() -> str:
    """This boot of this machine; empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@cache
def machine_id() -> str:
    """This machine: /etc/machine-id (machine-id(5)), or its name where there is none."""
    with contextlib.suppress(OSError):
        if found := Path("/etc/machine-id").read_text().strip():
            return found
    return os.uname().nodename


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since the boot; 0 when it is dead or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def is_alive(pid: int, ticks: int, boot: str) -> bool:
    """True if this very process lives."""
    return pid > 0 and ticks > 0 and boot == boot_id() and start_ticks(pid) == ticks


def descendants(pid: int, *, spare: int = 0) -> list[int]:
    """Every process below `pid`, parents before children. Zombies, and `spare` with what is below it, are left out."""
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in _children(parent) if child not in found and child != spare]
        found.extend(level)
    return [one for one in found if start_ticks(one)]


def _children(pid: int) -> list[int]:
    result: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - names only
    except OSError:
        return result
    for thread in threads:
        try:
            result.extend(int(word) for word in Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
        except FileNotFoundError:
            return _children_by_parent(pid)  # a kernel without CONFIG_PROC_CHILDREN, or the thread is gone
        except OSError:
            continue
    return result


def _children_by_parent(pid: int) -> list[int]:
    result = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                if int(fields[1]) == pid:
                    result.append(int(name))
    return result


def carrying(**variables: str) -> list[int]:
    """Every other process of this user whose environment holds all of these variables.

    Finds the processes of a lost job, whose watcher is gone.
    """
    import psutil  # for the daemon only: the stand-ins run without site-packages

    return [
        process.pid
        for process in psutil.process_iter(["environ"])
        if process.pid != os.getpid() and variables.items() <= (process.info["environ"] or {}).items()
    ]


def available_cpus(environ: Mapping[str, str]) -> int:
    """How many CPUs the jobs may share: $RESIL_LOCAL_CPUS, else those this process may use."""
    chosen = environ.get(CPUS_VARIABLE, "")
    return int(chosen) if chosen.isdigit() and int(chosen) else len(os.sched_getaffinity(0))


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to each. Processes that are gone meanwhile are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap() -> None:
    """Collect every child that has ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def slurm_variables(rows: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Given names without `SLURM_`, with blanks between, and the value of each, return the variables. None: unset."""
    return {f"SLURM_{name}": str(value) for names, value in rows if value is not None for name in names.split()}


def default_signals() -> None:
    """Undo every handler and mask that a child would inherit, so that it starts as from a fresh shell."""
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def current_umask() -> int:
    """This process's umask, read without changing it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def user_name(environ: Mapping[str, str]) -> str:
    """Whose processes these are; a number where the account has no name."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return environ.get("USER") or str(os.getuid())
