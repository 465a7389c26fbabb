"""/dev/shm, through which data-loader workers pass their batches: when it is full, workers die by SIGBUS.

Its files are memory charged to the cgroup of the writing process, and not reclaimable. Where the cgroup's limit is
smaller than /dev/shm, `host_memory` detects that and names the shared part.
"""

from __future__ import annotations

import os

from resilience.base.mounts import parse_mountinfo
from resilience.guard.decision import BuiltInTrigger, Request
from resilience.quantities import format_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.settings import GuardSettings

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


def judge(used_bytes: int, size_bytes: int, used_files: int, most_files: int, *, percent: float) -> str | None:
    """Given the statvfs(3) figures of a file system in memory, return how full it is, or None if below `percent`.

    A size of 0 means no limit of its own.
    """
    if size_bytes > 0 and 100.0 * used_bytes / size_bytes >= percent:
        return f"{100.0 * used_bytes / size_bytes:.1f} % full, {format_bytes(used_bytes)} of {format_bytes(size_bytes)}"
    if most_files > 0 and 100.0 * used_files / most_files >= percent:
        return f"{100.0 * used_files / most_files:.1f} % full, {used_files} of {most_files} files"
    return None


class SharedMemory(BuiltInTrigger):
    """Requests a save and a stop when /dev/shm is nearly full. Runs on one rank of each node."""

    name = "shared_memory"
    ranks = "node"

    def __init__(self, place: RankInfo, settings: GuardSettings, *, path: str = "/dev/shm", root: str = "/") -> None:
        self._place = place
        self._settings = settings
        self._path = path
        self._root = root
        self._device = -1
        self._is_memory = False

    def poll(self) -> Request | None:
        """Check /dev/shm if it is in memory: a disk that is 96 % full is no reason to stop."""
        try:
            device = os.stat(self._path).st_dev
            if device != self._device:
                self._device, self._is_memory = device, self._is_in_memory(device)
            if not self._is_memory:
                return None
            found = os.statvfs(self._path)
        except OSError:
            return None
        how_full = judge(
            (found.f_blocks - found.f_bavail) * found.f_frsize,
            found.f_blocks * found.f_frsize,
            found.f_files - found.f_ffree,
            found.f_files,
            percent=self._settings.shm_percent,
        )
        if how_full is None:
            return None
        why = (
            f"{self._path} of {self._place.host} is {how_full}: data-loader workers die by SIGBUS when it is full; "
            "use fewer workers, a smaller prefetch_factor or a larger --shm-size, and check for leftover files there"
        )
        return Request(self.name, why)

    def _is_in_memory(self, device: int) -> bool:
        with open(os.path.join(self._root, "proc/self/mountinfo"), encoding="utf-8", errors="surrogateescape") as file:
            mounts = parse_mountinfo(file.read())
        number = f"{os.major(device)}:{os.minor(device)}"
        return any(mount.device == number and mount.type in IN_MEMORY for mount in mounts)
