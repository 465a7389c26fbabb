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
import threading
from contextlib import suppress
from functools import cache

_SWITCHES = rb"ctxt_switches:\s*(\d+)"
_PARENT, _CPU_TIMES, _OWN_CPU_TIMES, _START = 1, slice(11, 15), slice(11, 13), 19
"""Fields of /proc/PID/stat from the state on: 4, 14 to 17, 14 and 15, and 22 in the manual's count."""
THREAD_NAME = "resil-guard"


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


def state_of(pid: int) -> tuple[str, str]:
    """Return the state letter of a process, and the function of the kernel that it waits in; empty if unknown.

    Source: proc_pid_stat(5), field state, and proc_pid_wchan(5), which needs the permission to trace.
    """
    function = _read(f"/proc/{pid}/wchan").decode("ascii", "replace").strip()
    return (_stat(pid) or (b"",))[0].decode("ascii", "replace"), "" if function == "0" else function


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; together with the pid, it identifies the process.

    None if there is no such process; a zombie still has a start time.
    """
    found = _stat(pid)
    return int(found[_START]) if found is not None and len(found) > _START else None


def parent_of(pid: int) -> int:
    """Return the pid of a process's parent; 0 if there is none, or no such process."""
    found = _stat(pid)
    return int(found[_PARENT]) if found is not None else 0


def environment_of(pid: int) -> dict[bytes, bytes]:
    """Return the environment that a process was started with; empty for one of another user. Source:
    proc_pid_environ(5)."""
    pairs = (one.partition(b"=") for one in _read(f"/proc/{pid}/environ").split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and of its children that it has waited for; 0 if there is no such process.

    Source: proc_pid_stat(5), fields utime, stime, cutime and cstime.
    """
    found = _stat(pid) or []
    return sum(map(int, found[_CPU_TIMES])) / os.sysconf("SC_CLK_TCK")


def name_thread() -> None:
    """Mark this thread as the guard's, for `work_of`, `ps -L` and `top -H`. Source: proc_pid_comm(5)."""
    with suppress(OSError), open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
        file.write(THREAD_NAME)


def work_of(pid: int) -> tuple[float, int]:
    """Return CPU seconds, and bytes read and written, of a process and its children, without the guard's own threads.

    Bytes from caches and pipes count. (0.0, 0) if nothing is known. Sources: proc_pid_stat(5), fields utime and stime;
    proc_pid_io(5), fields rchar and wchar, which need the permission to trace.
    """
    try:
        tasks = [f"{pid}/task/{name}" for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return 0.0, 0
    ticks = count = 0
    for one in (*tasks, *map(str, _children(pid))):
        if _read(f"/proc/{one}/comm").startswith(b"resil-"):
            continue
        ticks += sum(map(int, (_read(f"/proc/{one}/stat").rpartition(b")")[2].split() or [b"0"] * 15)[_OWN_CPU_TIMES]))
        fields = _read(f"/proc/{one}/io").split()
        count += int(fields[1]) + int(fields[3]) if len(fields) > 3 else 0
    return ticks / os.sysconf("SC_CLK_TCK"), count


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
