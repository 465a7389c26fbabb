"""What limits this process's memory, and how much of each limit is used: the node itself and every cgroup above."""

from __future__ import annotations

import os
from dataclasses import dataclass

from resilience.guard.memory.cgroup import CgroupMemory, find_folders
from resilience.guard.memory.kept_file import KeptFile
from resilience.guard.memory.node import (
    MEMINFO_BYTES,
    family_bytes,
    parse_available,
    parse_meminfo,
    physical_bytes,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

REFRESH_S = 30.0
"""How often limits and the process's place among the cgroups are looked up anew: both may be changed meanwhile."""
BEGINNING_BYTES = 256
"""MemTotal, MemFree and MemAvailable are the first three lines."""

NODE = "node"
FAMILY = "family"


@dataclass(frozen=True, slots=True)
class Reading:
    """One limit, and what is used of it.

    Attributes:
        whose: `node`, `family` (the processes of this training, where nothing else tells), or a cgroup as in
            `resilience.guard.memory.cgroup.whose`.
        used_bytes: without file cache that the kernel would give up.
        shared_bytes: how much of it is shared memory; 0 where that was not looked up.
        is_exact: whether the file cache was looked up now; else it is taken to be as large as when it last was.
    """

    whose: str
    limit_bytes: int
    used_bytes: int
    shared_bytes: int = 0
    is_exact: bool = True

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
    """Looks at all limits with a handful of preads: about 1 us for each cgroup, 5 us for the node."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._cgroups: list[CgroupMemory] = []
        self._meminfo = KeptFile(os.path.join(root, "proc/meminfo"), MEMINFO_BYTES)
        self._beginning = KeptFile(os.path.join(root, "proc/meminfo"), BEGINNING_BYTES)
        self._membership = KeptFile(os.path.join(root, "proc/self/cgroup"), MEMINFO_BYTES)
        self._place = ""
        self._node_bytes: int | None = None
        self._refresh_at = float("-inf")

    def look(
        self, now: float, *, matters: Callable[[int, int], bool] = lambda limit, used: True, thorough: bool = False
    ) -> list[Reading]:
        """All limits with their use, the nearest cgroup first, the node last.

        File cache is only looked up (20 us for each cgroup) where the answer could change something: where
        `matters(limit_bytes, used_bytes)` says so of the use with cache, or everywhere if `thorough`. An empty list
        means that there is nothing to be seen.
        """
        if now >= self._refresh_at:
            self._refresh()
            self._refresh_at = now + REFRESH_S
        found = []
        for cgroup in self._cgroups:
            if cgroup.limit_bytes is None:
                continue
            try:
                found.append(self._look_at(cgroup, cgroup.limit_bytes, matters, thorough))
            except (OSError, ValueError):
                self._refresh_at = now  # it was removed, or we were moved: look for our place again
        node = self._look_at_node()
        if node is not None:
            found.append(node)
        if not found:
            found = self._look_at_family()
        return found

    def close(self) -> None:
        """Give all descriptors back."""
        for cgroup in self._cgroups:
            cgroup.close()
        for kept in (self._meminfo, self._beginning, self._membership):
            kept.close()

    def _look_at(
        self, cgroup: CgroupMemory, limit: int, matters: Callable[[int, int], bool], thorough: bool
    ) -> Reading:
        used = cgroup.raw_bytes()
        if not (thorough or matters(limit, used)):
            return Reading(cgroup.whose, limit, max(0, used - cgroup.cache_bytes), is_exact=False)
        stat = cgroup.stat()
        cgroup.cache_bytes = stat.reclaimable_bytes
        return Reading(cgroup.whose, limit, max(0, used - stat.reclaimable_bytes), stat.shared_bytes)

    def _look_at_node(self) -> Reading | None:
        if self._node_bytes is None:
            return None
        try:
            available = parse_available(self._beginning.read())
            if available is not None:
                return Reading(NODE, self._node_bytes, max(0, self._node_bytes - available))
            return Reading(NODE, *parse_meminfo(self._meminfo.read()))
        except (OSError, ValueError):
            return None

    def _look_at_family(self) -> list[Reading]:
        limit = physical_bytes()
        try:
            return [Reading(FAMILY, limit, family_bytes(os.getpid(), self._root))] if limit else []
        except OSError:
            return []

    def _refresh(self) -> None:
        """Read the limits again, and find the cgroups again if this process was moved or one is gone."""
        try:
            self._node_bytes = parse_meminfo(self._meminfo.read())[0]
        except (OSError, ValueError):
            self._node_bytes = None
        try:
            place = self._membership.read()
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
        for cgroup in self._cgroups:
            cgroup.close()
        self._cgroups = []
        try:
            folders = find_folders(self._root)
        except OSError:
            return
        for folder in folders:
            for with_swap in (False, True) if folder.version == 1 else (False,):
                try:
                    self._cgroups.append(CgroupMemory(folder, with_swap=with_swap))
                except (OSError, ValueError):
                    continue  # the root has no such files, and without swap accounting there are none for swap

    def _add_unseen(self) -> None:
        """Version 1 tells the smallest limit of all cgroups above, even of those that a container does not see.

        How much is used there is not told: at least what the outermost cgroup uses that is seen.
        """
        for with_swap in (False, True):
            chain = [cgroup for cgroup in self._cgroups if cgroup.folder.version == 1 and cgroup.with_swap == with_swap]
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
                chain[-1].whose = f"a cgroup above {chain[-1].folder.path}"
