"""What /proc tells of a process: whether it lives, waits in the kernel, when it began, and what it has started.

Format: proc_pid_stat(5), proc_pid_status(5), proc_tid_children(5).
"""

from __future__ import annotations

import os
import re

_SWITCHES = rb"ctxt_switches:\s*(\d+)"


def is_alive(pid: int) -> bool:
    """Whether it is still there; one that only waits to be reaped is not."""
    return (_stat(pid) or (b"X",))[0] not in (b"Z", b"X", b"x")


def is_there(pid: int) -> bool:
    """Whether there is a process of this number, also one that /proc hides from us (hidepid, proc(5)); kill(2)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def is_waiting_in_kernel(pid: int) -> bool:
    """Whether it is in uninterruptible sleep: it waits for a disk or a file server."""
    return (_stat(pid) or (b"",))[0] == b"D"


def start_ticks(pid: int) -> int | None:
    """When it began, in clock ticks since the machine was started: with its number, that is one process and no other.

    None when there is no such process.
    """
    found = _stat(pid)
    return int(found[19]) if found is not None and len(found) > 19 else None  # field 22; the first two are cut off


def switches(pid: int) -> int | None:
    """How often it was switched out: unchanged for as long as it is in one and the same wait. None: not told."""
    raw = _read(f"/proc/{pid}/status")
    return sum(map(int, re.findall(_SWITCHES, raw))) if raw else None


def descendants(pid: int) -> tuple[int, ...]:
    """All that it has started, and what those have; what has outlived its parent is not among them."""
    found: list[int] = []
    todo = [pid]
    while todo:
        parent = todo.pop()
        try:
            threads = os.listdir(f"/proc/{parent}/task")  # noqa: PTH208 - names only
        except OSError:
            continue
        for thread in threads:
            children = [int(word) for word in _read(f"/proc/{parent}/task/{thread}/children").split()]
            found += children
            todo += children
    return tuple(found)


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
    except OSError:  # it has just ended
        return b""
    finally:
        os.close(descriptor)
