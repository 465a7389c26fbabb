"""Processes of this machine, from /proc: state, start time, descendants.

A pid alone does not identify a process, because pids are reused; pid, start time, boot and namespace together do.
psutil reports neither the wait nor the namespace, and the guard imports only the standard library. Formats:
proc_pid_stat(5), proc_pid_status(5), proc_tid_children(5), pid_namespaces(7).
"""
# pathlib costs milliseconds at the import of every rank.
# ruff: noqa: PTH115, PTH208

from __future__ import annotations

import os
import re
from functools import cache

_SWITCHES = rb"ctxt_switches:\s*(\d+)"
_PARENT, _CPU_TIMES, _START = 1, slice(11, 15), 19
"""Fields of /proc/PID/stat from the state on: 4, 14 to 17, and 22 in the manual's count."""


def is_alive(pid: int) -> bool:
    """Return whether a process is alive; a zombie is not."""
    return (_stat(pid) or (b"X",))[0] not in (b"Z", b"X", b"x")


def is_there(pid: int) -> bool:
    """Return whether a process with this pid exists, by kill(2): also one hidden in /proc (hidepid, proc(5))."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def is_waiting_in_kernel(pid: int) -> bool:
    """Return whether a process is in uninterruptible sleep, waiting for a disk or a file server."""
    return (_stat(pid) or (b"",))[0] == b"D"


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal such as SIGSTOP, or by a debugger."""
    return (_stat(pid) or (b"",))[0] in (b"T", b"t")


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; together with the pid, it identifies the process.

    None if there is no such process; a zombie still has a start time.
    """
    found = _stat(pid)
    return int(found[_START]) if found is not None and len(found) > _START else None


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and of its children that it has waited for; 0 if there is no such process.

    Source: proc_pid_stat(5), fields utime, stime, cutime and cstime.
    """
    found = _stat(pid) or []
    return sum(map(int, found[_CPU_TIMES])) / os.sysconf("SC_CLK_TCK")


def is_same(pid: int, ticks: int) -> bool:
    """Return whether the process with this pid and start time is alive, in this boot."""
    return pid > 0 and ticks > 0 and start_ticks(pid) == ticks and is_alive(pid)


def switches(pid: int) -> int | None:
    """Return the number of context switches of a process, unchanged during one wait; None if unknown."""
    raw = _read(f"/proc/{pid}/status")
    return sum(map(int, re.findall(_SWITCHES, raw))) if raw else None


def blocked_at(pid: int) -> str:
    """Return the path at which a child of this process waits in the kernel: of the file that its system call names.

    Empty if the child does not wait, if the kernel does not tell (/proc/PID/syscall, proc(5), needs the permission to
    trace), or if the system call names no file. Accesses no file system but /proc: the link of a descriptor is not
    followed.
    """
    if not is_waiting_in_kernel(pid):
        return ""
    words = _read(f"/proc/{pid}/syscall").split()
    for word in words[1:3]:  # path or descriptor is the first or, after the directory of openat(2), the second argument
        argument = int(word, 16)
        try:
            if 2 < argument < 2**16:
                path = os.readlink(f"/proc/{pid}/fd/{argument}")
            else:
                with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                    memory.seek(argument)
                    path = os.fsdecode(memory.read(4096).partition(b"\0")[0])
        except (OSError, OverflowError):  # not a pointer
            continue
        if path.startswith("/") and path.isprintable():
            return path
    return ""


def descendants(pid: int, *, spare: int = 0) -> tuple[int, ...]:
    """Return all descendants of `pid`, parents before children, without orphans.

    Excludes zombies, and `spare` with its descendants.
    """
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in _children(parent) if child not in found and child != spare]
        found += level
    return tuple(one for one in found if is_alive(one))


@cache
def boot_id() -> str:
    """Return the id of the current boot; empty if the kernel does not provide one."""
    return _read("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()


@cache
def pid_space() -> tuple[str, str]:
    """Return the boot id and the namespace (`pid:[4026531836]`) in which pids of this process are valid.

    Both are empty if the kernel does not provide one of them; then no pid from another process can be trusted.
    """
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return (boot_id(), namespace) if boot_id() and namespace else ("", "")


def _children(pid: int) -> list[int]:
    result: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return result
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                result += map(int, file.read().split())
        except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN, or the thread has ended
            return _children_by_parent(pid)
        except OSError:
            continue
    return result


def _children_by_parent(pid: int) -> list[int]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [one for one in pids if (found := _stat(one)) is not None and int(found[_PARENT]) == pid]


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/PID/stat after the name, which may contain blanks and parentheses."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return fields or None


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 2**16)
    except OSError:  # the process has just ended
        return b""
    finally:
        os.close(descriptor)
