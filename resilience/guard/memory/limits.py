"""What limits this process's memory, and how much of each limit is used: the node itself and every cgroup above."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from resilience.guard.memory.cgroup import CgroupMemory, find_directories, read_text


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
    directory = os.path.join(root, "proc")
    parents: dict[int, int] = {}
    pages: dict[int, int] = {}
    for name in os.listdir(directory):
        if name.isdigit():
            try:
                with open(os.path.join(directory, name, "stat"), encoding="utf-8", errors="replace") as file:
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


REFRESH_S = 30.0
"""How often limits and the process's place among the cgroups are looked up anew: both may be changed meanwhile."""

NODE = "node"
FAMILY = "family"


@dataclass(frozen=True, slots=True)
class Reading:
    """One limit, and what is used of it.

    Attributes:
        whose: `node`, `family` (the processes of this training, where nothing else tells), or a cgroup as in
            `resilience.guard.memory.cgroup.whose`.
        used_bytes: without file cache that the kernel would give up.
        shared_bytes: how much of it is shared memory; 0 where nothing tells.
    """

    whose: str
    limit_bytes: int
    used_bytes: int
    shared_bytes: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """What tells one limit from the others."""
        return self.whose, self.limit_bytes

    @property
    def percent(self) -> float:
        """How much of the limit is used; 100 where nothing is allowed."""
        return 100.0 * self.used_bytes / self.limit_bytes if self.limit_bytes > 0 else 100.0

    @property
    def free_bytes(self) -> int:
        """What is left; never below 0."""
        return max(0, self.limit_bytes - self.used_bytes)


class MemoryLimits:
    """Reads all limits and their use: some 50 us for each cgroup, 100 us for the node."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._cgroups: list[CgroupMemory] = []
        self._place = ""
        self._refresh_at = float("-inf")

    def look(self, now: float) -> list[Reading]:
        """All limits with their use, the nearest cgroup first, the node last; an empty list where nothing tells."""
        if now >= self._refresh_at:
            self._refresh()
            self._refresh_at = now + REFRESH_S
        found = []
        for cgroup in self._cgroups:
            if cgroup.limit_bytes is None:
                continue
            try:
                used, stat = cgroup.raw_bytes(), cgroup.stat()
                used = max(0, used - stat.reclaimable_bytes)
                found.append(Reading(cgroup.whose, cgroup.limit_bytes, used, stat.shared_bytes))
            except (OSError, ValueError):
                self._refresh_at = now  # it was removed, or we were moved: look for our place again
        with contextlib.suppress(OSError, ValueError):
            found.append(Reading(NODE, *parse_meminfo(read_text(os.path.join(self._root, "proc/meminfo")))))
        return found or self._look_at_family()

    def _look_at_family(self) -> list[Reading]:
        limit = physical_bytes()
        try:
            return [Reading(FAMILY, limit, family_bytes(os.getpid(), self._root))] if limit else []
        except OSError:
            return []

    def _refresh(self) -> None:
        """Read the limits again, and find the cgroups again if this process was moved or one is gone."""
        try:
            place = read_text(os.path.join(self._root, "proc/self/cgroup"))
        except OSError:
            place = ""
        try:
            if place != self._place or not place:
                raise OSError("moved")
            for cgroup in self._cgroups:
                cgroup.read_limit()
        except OSError:
            self._find()
            self._place = place
        self._add_unseen()

    def _find(self) -> None:
        self._cgroups = []
        try:
            directories = find_directories(self._root)
        except OSError:
            return
        for directory in directories:
            for with_swap in (False, True) if directory.version == 1 else (False,):
                try:
                    self._cgroups.append(CgroupMemory(directory, with_swap=with_swap))
                except (OSError, ValueError):
                    continue  # the root has no such files, and without swap accounting there are none for swap

    def _add_unseen(self) -> None:
        """Version 1 tells the smallest limit of all cgroups above, even of those that a container does not see.

        How much is used there is not told: at least what the outermost cgroup uses that is seen.
        """
        for with_swap in (False, True):
            chain = [cgroup for cgroup in self._cgroups if cgroup.cgroup.version == 1 and cgroup.with_swap == with_swap]
            if not chain:
                continue
            try:
                stat = chain[0].stat()
            except (OSError, ValueError):
                continue
            above = stat.above_with_swap_bytes if with_swap else stat.above_bytes
            seen = min((cgroup.limit_bytes for cgroup in chain if cgroup.limit_bytes is not None), default=None)
            if above is not None and (seen is None or above < seen):
                chain[-1].limit_bytes = above
                chain[-1].whose = f"a cgroup above {chain[-1].cgroup.path}"
