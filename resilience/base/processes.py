"""Processes of this machine as /proc tells of them: alive or not, waiting in the kernel, start, descendants.

A number alone names no process, because it is used again: number, start, boot and namespace together do. psutil knows
neither the wait nor the namespace, and nothing but the standard library is imported below the guard. Formats:
proc_pid_stat(5), proc_pid_status(5), proc_tid_children(5), pid_namespaces(7).
"""
# pathlib costs milliseconds at the import of every rank.
# ruff: noqa: PTH115, PTH208

from __future__ import annotations

import os
import re
from functools import cache

_SWITCHES = rb"ctxt_switches:\s*(\d+)"
_PARENT, _START = 1, 19
"""Fields of /proc/PID/stat from the state on: 4 and 22 in the manual's count."""


def is_alive(pid: int) -> bool:
    """Return whether a process is there; one that only waits to be reaped is not alive."""
    return (_stat(pid) or (b"X",))[0] not in (b"Z", b"X", b"x")


def is_there(pid: int) -> bool:
    """Return whether a process of this number exists, also one that /proc hides from us (hidepid, proc(5)); kill(2)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def is_waiting_in_kernel(pid: int) -> bool:
    """Return whether a process is in uninterruptible sleep: it waits for a disk or a file server."""
    return (_stat(pid) or (b"",))[0] == b"D"


def start_ticks(pid: int) -> int | None:
    """The start of a process in clock ticks since the boot: number and start are one process and no other.

    None when there is no such process; a zombie still has one.
    """
    found = _stat(pid)
    return int(found[_START]) if found is not None and len(found) > _START else None


def is_same(pid: int, ticks: int) -> bool:
    """Return whether the process of this number and start is alive, in this boot."""
    return pid > 0 and ticks > 0 and start_ticks(pid) == ticks and is_alive(pid)


def switches(pid: int) -> int | None:
    """How often a process was switched out: unchanged for as long as it is in one and the same wait. None: not told."""
    raw = _read(f"/proc/{pid}/status")
    return sum(map(int, re.findall(_SWITCHES, raw))) if raw else None


def descendants(pid: int, *, spare: int = 0) -> tuple[int, ...]:
    """Every process below `pid`, parents before children; a process that has outlived its parent is not among them.

    Zombies, and `spare` with all below it, are left out.
    """
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in _children(parent) if child not in found and child != spare]
        found += level
    return tuple(one for one in found if is_alive(one))


@cache
def boot_id() -> str:
    """This boot of this machine; empty where the kernel does not tell."""
    return _read("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()


@cache
def pid_space() -> tuple[str, str]:
    """The boot and the namespace (`pid:[4026531836]`) that process numbers belong to.

    Both are empty where the kernel does not tell one of them: then no number from elsewhere means anything.
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
        except FileNotFoundError:
            return _children_by_parent(pid)  # a kernel without CONFIG_PROC_CHILDREN, or the thread has ended
        except OSError:
            continue
    return result


def _children_by_parent(pid: int) -> list[int]:
    everybody = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [one for one in everybody if (found := _stat(one)) is not None and int(found[_PARENT]) == pid]


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the state on; the name before them may hold blanks and brackets."""
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
