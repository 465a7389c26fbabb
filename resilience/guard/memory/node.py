"""How much memory the node has and how much of it is used; where nothing tells, what this process's family holds."""

from __future__ import annotations

import os

MEMINFO_BYTES = 4096


def parse_meminfo(text: str) -> tuple[int, int]:
    """Given /proc/meminfo, return the bytes that programs can have at all, and those that are used.

    Used is what is missing in MemAvailable, "an estimate of how much memory is available for starting new
    applications, without swapping" (proc_meminfo(5)): file cache, mapped files too, does not count. Huge pages that
    an administrator has set aside can be had by nobody else, so they are taken out of both (`Hugetlb`, or
    `HugePages_Total` x `Hugepagesize` before Linux 4.19). Kernels before 3.14 have no MemAvailable: free memory and
    file cache stand for it. Raise ValueError if it is no meminfo.
    """
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and words and words[0].isdigit():
            values[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    huge = values.get("Hugetlb", values.get("HugePages_Total", 0) * values.get("Hugepagesize", 0))
    total = values.get("MemTotal", 0) - huge
    if total <= 0:
        raise ValueError("no MemTotal in meminfo")
    cache = values.get("Active(file)", 0) + values.get("Inactive(file)", 0) + values.get("SReclaimable", 0)
    available = values.get("MemAvailable", values.get("MemFree", total) + cache)
    return total, max(0, total - available)


def parse_available(text: str) -> int | None:
    """Given the beginning of /proc/meminfo, return MemAvailable in bytes; None if it is not there."""
    start = text.find("MemAvailable:")
    words = text[start + 13 : start + 60].split(maxsplit=2) if start >= 0 else []
    return int(words[0]) * 1024 if len(words) > 1 and words[0].isdigit() else None


def parse_process(text: str) -> tuple[int, int]:
    """Given /proc/PID/stat, return the parent's number and the resident pages (fields 4 and 24, proc_pid_stat(5)).

    The name in parentheses may hold anything. Raise ValueError if the text is cut short.
    """
    fields = text.rpartition(")")[2].split()
    if len(fields) < 22:
        raise ValueError("not a process")
    return int(fields[1]), int(fields[21])


def family_bytes(pid: int, root: str = "/") -> int:
    """Resident memory of a process and all its descendants. Pages that they share are counted in each: too much.

    Only for where neither a cgroup nor meminfo tells. Raise OSError without /proc.
    """
    folder = os.path.join(root, "proc")
    parents: dict[int, int] = {}
    pages: dict[int, int] = {}
    for name in os.listdir(folder):
        if name.isdigit():
            try:
                with open(os.path.join(folder, name, "stat"), encoding="utf-8", errors="replace") as file:
                    parents[int(name)], pages[int(name)] = parse_process(file.read())
            except (OSError, ValueError):
                continue  # it has ended meanwhile
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    family, todo = set(), [pid]
    while todo:
        member = todo.pop()
        if member not in family:
            family.add(member)
            todo += children.get(member, [])
    return sum(pages.get(member, 0) for member in family) * os.sysconf("SC_PAGE_SIZE")


def physical_bytes() -> int | None:
    """The machine's memory, as the C library knows it; None if it does not."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
