"""Watches the memory that a command may use: of its cgroup, version 1 or 2, else of its process tree."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from resilience.guard.memory.cgroup import find_directories, read_text
from resilience.guard.memory.limits import FAMILY, NODE, MemoryLimits, Reading, family_bytes, physical_bytes

HIGH_PERCENT, NORMAL_PERCENT = 90.0, 80.0
_OOM_KILLS = re.compile(r"^oom_kill ([0-9]{1,18})$", re.MULTILINE)


class MemoryWatch:
    """The use of memory by the command.

    Attributes:
        peak: the highest use seen; None before the first look.
    """

    def __init__(self, root: str = "/") -> None:
        self.peak: Reading | None = None
        self._root = root
        self._limits = MemoryLimits(root)
        self._is_high = False
        self._kills = self._oom_kills()

    def look(self, now: float) -> Reading | None:
        """Return the use if it has just become high, else None. `now` is in monotonic seconds."""
        found = [one for one in self._limits.read(now) if one.owner not in (NODE, FAMILY)] or self._read_tree()
        worst = max(found, key=lambda one: one.percent, default=None)
        if worst is None:
            return None
        if self.peak is None or worst.percent >= self.peak.percent:
            self.peak = worst
        was_high, self._is_high = self._is_high, worst.percent >= (NORMAL_PERCENT if self._is_high else HIGH_PERCENT)
        return worst if self._is_high and not was_high else None

    def explain_kill(self) -> str:
        """Return why the kernel may have killed the command; empty if its memory was not short."""
        if self._oom_kills() > self._kills:
            return "the kernel's OOM killer has killed a process of its cgroup"
        if self.peak is not None and self.peak.percent >= HIGH_PERCENT:
            return describe(self.peak)
        return ""

    def _read_tree(self) -> list[Reading]:
        """Return the resident memory of this process and all below it, of the machine's."""
        limit = physical_bytes()
        try:
            return [Reading(FAMILY, limit, family_bytes(os.getpid(), self._root))] if limit else []
        except OSError:
            return []

    def _oom_kills(self) -> int:
        """Return how many processes of this cgroup the OOM killer has killed: memory.events, or memory.oom_control."""
        with suppress(OSError):
            for cgroup in find_directories(self._root)[:1]:
                name = "memory.events" if cgroup.version == 2 else "memory.oom_control"
                match = _OOM_KILLS.search(read_text(os.path.join(cgroup.directory, name)))
                return int(match[1]) if match is not None else 0
        return 0


def describe(reading: Reading) -> str:
    """Return `memory was at 97 % of the job's cgroup /slurm/job_12 (62.1 GiB)`."""
    owner = "this machine (resident memory of the command's processes)" if reading.owner == FAMILY else reading.owner
    return f"memory was at {reading.percent:.0f} % of {owner} ({reading.limit_bytes / 2**30:.1f} GiB)"
