"""The memory limits of this process and the use of each: the node, its cgroup and every cgroup above."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from resilience.guard.memory.cgroup import CgroupMemory, find_directories, read_text


def parse_meminfo(text: str) -> tuple[int, int]:
    """Given /proc/meminfo, return the bytes available to programs in total, and those in use.

    The use is the total less MemAvailable, "an estimate of how much memory is available for starting new applications,
    without swapping" (proc_meminfo(5)): file cache, mapped files included, does not count. Reserved huge pages are
    unavailable to ordinary allocations and excluded from both (`Hugetlb`, or `HugePages_Total` x `Hugepagesize` before
    Linux 4.19). Kernels before 3.14 have no MemAvailable: free memory plus file cache replaces it. Raise ValueError if
    the text has no MemTotal.
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
    """Return the resident memory of a process and its descendants, an overestimate: shared pages count in each.

    A fallback where neither a cgroup nor meminfo can be read. Raise OSError without /proc.
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
    """Return the machine's memory according to sysconf(3); None if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


REFRESH_S = 30.0
"""How often limits and the process's cgroups are read again: both may change."""

NODE = "node"
FAMILY = "family"


@dataclass(frozen=True, slots=True)
class Reading:
    """One limit and its use.

    Attributes:
        owner: `node`, `family` (the processes of this training, as a fallback), or a cgroup as returned by
            `resilience.guard.memory.cgroup.describe_owner`.
        used_bytes: without reclaimable file cache.
        shared_bytes: how much of the use is shared memory; 0 if unknown.
    """

    owner: str
    limit_bytes: int
    used_bytes: int
    shared_bytes: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """Return the identity of this limit."""
        return self.owner, self.limit_bytes

    @property
    def percent(self) -> float:
        """Return how much of the limit is used; 100 for a limit of 0."""
        return 100.0 * self.used_bytes / self.limit_bytes if self.limit_bytes > 0 else 100.0

    @property
    def free_bytes(self) -> int:
        """Return the bytes left; never below 0."""
        return max(0, self.limit_bytes - self.used_bytes)


class MemoryLimits:
    """Reads all limits and their use: about 50 us for each cgroup, 100 us for the node."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._cgroups: list[CgroupMemory] = []
        self._membership = ""
        self._refresh_at = float("-inf")

    def read(self, now: float) -> list[Reading]:
        """Return all limits with their use, the nearest cgroup first, the node last; empty if none can be read."""
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
                found.append(Reading(cgroup.owner, cgroup.limit_bytes, used, stat.shared_bytes))
            except (OSError, ValueError):
                self._refresh_at = now  # the cgroup was removed, or this process moved: search again
        with contextlib.suppress(OSError, ValueError):
            found.append(Reading(NODE, *parse_meminfo(read_text(os.path.join(self._root, "proc/meminfo")))))
        return found or self._read_family()

    def _read_family(self) -> list[Reading]:
        limit = physical_bytes()
        try:
            return [Reading(FAMILY, limit, family_bytes(os.getpid(), self._root))] if limit else []
        except OSError:
            return []

    def _refresh(self) -> None:
        """Read the limits again, and find the cgroups again if this process moved or a cgroup is gone."""
        try:
            membership = read_text(os.path.join(self._root, "proc/self/cgroup"))
        except OSError:
            membership = ""
        try:
            if membership != self._membership or not membership:
                raise OSError("moved")
            for cgroup in self._cgroups:
                cgroup.read_limit()
        except OSError:
            self._find()
            self._membership = membership
        self._add_hidden_limits()

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
                    continue  # the root has no such files, nor has swap without swap accounting

    def _add_hidden_limits(self) -> None:
        """Add the smallest limit above, which version 1 reports even for cgroups hidden from a container.

        The use there is unknown: at least that of the outermost visible cgroup.
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
                chain[-1].owner = f"a cgroup above {chain[-1].cgroup.path}"
