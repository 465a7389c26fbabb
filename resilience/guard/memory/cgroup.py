"""The memory limits of this process: those of its cgroup and of every cgroup above, version 1 and 2.

A task's own cgroup often says `max` while the limit is set on the step or the job above, so all are read. They are
located through /proc/self/cgroup (cgroups(7)) and /proc/self/mountinfo (proc_pid_mountinfo(5)). In a container either
may be relative to a cgroup namespace, where `/` is the container's own cgroup and `/..` is above it
(cgroup_namespaces(7)); SLURM may bind-mount a part of the tree over the tree.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from resilience.base.mounts import Mount, parse_mountinfo

NO_LIMIT = 2**62
"""Version 1 has no word for "no limit": it reports the largest multiple of the page size in 63 bits,
9223372036854771712 with 4 KiB pages."""
MOST_SEARCHED = 2000
"""At most this many cgroups are searched for this process if their names do not match."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A memory cgroup: its directory, its path as /proc/self/cgroup shows it, its version."""

    directory: str
    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of memory.stat that are needed, in bytes.

    Attributes:
        reclaimable_bytes: file cache that the kernel reclaims before it calls the OOM killer.
        shared_bytes: /dev/shm and other tmpfs, System V and anonymous shared memory: not reclaimable.
        above_bytes: version 1: the smallest limit of this cgroup and all above; None if not reported.
        above_with_swap_bytes: the same for memory and swap together.
    """

    reclaimable_bytes: int
    shared_bytes: int
    above_bytes: int | None = None
    above_with_swap_bytes: int | None = None


def parse_memberships(text: str) -> dict[str, str]:
    """Given /proc/self/cgroup, return the path by controller; version 2 has the name "".

    For instance, `4:memory:/job_1` gives `{"memory": "/job_1"}` and `0::/user.slice` gives `{"": "/user.slice"}`.
    """
    found = {}
    for line in text.splitlines():
        fields = line.split(":", 2)  # the path itself may hold colons: system.slice:docker:4f2a
        if len(fields) == 3 and fields[2].startswith("/"):
            for controller in fields[1].split(","):
                found[controller] = fields[2].removesuffix(" (deleted)")
    return found


def parse_limit(text: str) -> int | None:
    """Given a limit file, return bytes; None for `max`, for version 1's huge number, and for anything else."""
    text = text.strip()
    if not (text.isascii() and text.isdigit()):
        return None
    limit = int(text)
    return limit if limit < NO_LIMIT else None


def parse_stat(text: str, version: int) -> Stat:
    """Given memory.stat, return how much of the use is reclaimable and shared, and version 1's limits above.

    Reclaimable is the file cache on both LRU lists, `inactive_file` and `active_file`, as for the kernel's own
    MemAvailable (`si_mem_available` in mm/show_mem.c; "the size of the file LRU lists", proc_meminfo(5)): at the limit
    the kernel reclaims both before it calls the OOM killer. A data set that is mapped or read twice is on the active
    list; counting it as used would look like a leak (kubernetes/kubernetes#43916). Shared memory and tmpfs are on the
    anonymous lists and so count as used, as do locked pages. Half of the dentries and inodes (`slab_reclaimable`)
    counts: "might be reclaimed" (admin-guide/cgroup-v2.rst). Version 1 reports descendants in `total_*`
    (cgroup-v1/memory.rst).
    """
    values = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            values[name] = int(value)
    if version == 2:
        cache = values.get("inactive_file", 0) + values.get("active_file", 0) + values.get("slab_reclaimable", 0) // 2
        return Stat(cache, values.get("shmem", 0))
    prefix = "total_" if "total_inactive_file" in values else ""
    cache = values.get(f"{prefix}inactive_file", 0) + values.get(f"{prefix}active_file", 0)
    above, with_swap = values.get("hierarchical_memory_limit"), values.get("hierarchical_memsw_limit")
    return Stat(
        cache,
        values.get(f"{prefix}shmem", 0),
        above if above is not None and above < NO_LIMIT else None,
        with_swap if with_swap is not None and with_swap < NO_LIMIT else None,
    )


def below(path: str, root: str) -> str | None:
    """Given a cgroup's path and a mount's root, return its path in the mount; None if the names do not match.

    For instance, `/docker/4f/job` below `/docker/4f` is `/job`. Below `/..` the name of the cgroup `/` is not visible
    from this namespace, and below `/other` the cgroup does not exist.
    """
    parts, above = _parts(path), _parts(root)
    if parts[: len(above)] != above or ".." in parts[len(above) :]:
        return None
    return "/" + "/".join(parts[len(above) :])


def find_directories(root: str = "/", pid: int | None = None) -> list[Cgroup]:
    """Return the memory cgroups of this process, its own first, then all visible ones above.

    Version 1 takes precedence where both are mounted (hybrid), because its hierarchy then holds the memory controller.
    An empty list means that no visible cgroup limits the memory. Raise OSError without /proc.
    """
    pid = os.getpid() if pid is None else pid
    memberships = parse_memberships(read_text(os.path.join(root, "proc/self/cgroup")))
    mounts = visible(parse_mountinfo(read_text(os.path.join(root, "proc/self/mountinfo"))))
    for version, controller in ((1, "memory"), (2, "")):
        path = memberships.get(controller)
        if path is None:
            continue
        chains = [_chain(mount, path, version, root, pid) for mount in mounts if _is_memory(mount, version)]
        best = max(chains, key=len, default=[])
        if best:
            return best
    return []


def visible(mounts: tuple[Mount, ...]) -> list[Mount]:
    """Return the mounts without those that another mount at the same point hides."""
    hidden = {(mount.parent, mount.point) for mount in mounts}
    return [mount for mount in mounts if (mount.ident, mount.point) not in hidden]


def describe_owner(path: str) -> str:
    """Given a cgroup's path, return its owner, as SLURM and systemd name them, followed by the path."""
    last = path.rstrip("/").rpartition("/")[2]
    if not last or last == "..":
        return "the container's cgroup"
    for start, owner in (("job_", "job"), ("step_", "step"), ("task_", "task"), ("uid_", "user"), ("user-", "user")):
        if last.startswith(start):
            return f"the {owner}'s cgroup {path}"
    return f"the cgroup {path}"


class CgroupMemory:
    """The limit and the use of one cgroup.

    Attributes:
        owner: as returned by `describe_owner`.
        limit_bytes: the current limit; None for no limit. Updated by `read_limit`.
    """

    def __init__(self, cgroup: Cgroup, *, with_swap: bool = False) -> None:
        """Raise OSError if the cgroup has no memory files, as the root and a leaf without the controller."""
        self.cgroup = cgroup
        self.with_swap = with_swap
        self.owner = describe_owner(cgroup.path) + (" (memory and swap together)" if with_swap else "")
        self.limit_bytes: int | None = None
        if cgroup.version == 2:
            names, usage = ["memory.max", "memory.high"], "memory.current"
        else:
            names, usage = ["memory.limit_in_bytes"], "memory.usage_in_bytes"
            if with_swap:
                names, usage = ["memory.memsw.limit_in_bytes"], "memory.memsw.usage_in_bytes"
        self._limits = [os.path.join(cgroup.directory, name) for name in names]
        self._usage = os.path.join(cgroup.directory, usage)
        self._stat = os.path.join(cgroup.directory, "memory.stat")
        self.read_limit()
        self.raw_bytes()

    def read_limit(self) -> int | None:
        """Return the smaller of memory.max and memory.high, or None.

        Beyond memory.high the kernel kills no process, but the processes "are throttled and put under heavy reclaim
        pressure" (admin-guide/cgroup-v2.rst): a leaking training stalls there and can no longer save.
        """
        found = [limit for limit in (parse_limit(read_text(path)) for path in self._limits) if limit is not None]
        self.limit_bytes = min(found, default=None)
        return self.limit_bytes

    def raw_bytes(self) -> int:
        """Return the bytes charged now, file cache and child processes (in this cgroup or below) included."""
        return int(read_text(self._usage))

    def stat(self) -> Stat:
        """Return the current memory.stat."""
        return parse_stat(read_text(self._stat), self.cgroup.version)


def _chain(mount: Mount, path: str, version: int, root: str, pid: int) -> list[Cgroup]:
    point = os.path.join(root, mount.point.lstrip("/")).rstrip("/")
    inside = below(path, mount.root)
    if inside is None or not os.path.exists(os.path.join(point, inside.lstrip("/"), "cgroup.procs")):
        inside = _search(point, pid)
        if inside is None:
            return [Cgroup(point, mount.root, version)] if _is_above(mount.root, path) else []
    # Named as in the mount: /proc/self/cgroup may be relative to the middle of the tree, and `..` is not a name.
    parts, outside = _parts(inside), [part for part in _parts(mount.root) if part != ".."]
    return [
        Cgroup(os.path.join(point, *parts[:length]), "/" + "/".join(outside + parts[:length]), version)
        for length in range(len(parts), -1, -1)
    ]


def _search(point: str, pid: int) -> str | None:
    """Return the path of this process's cgroup in a mounted tree, found by its pid; None if not found."""
    for count, (directory, directories, files) in enumerate(os.walk(point)):
        if count >= MOST_SEARCHED:
            return None
        directories.sort()
        if "cgroup.procs" in files:
            try:
                if str(pid) in read_text(os.path.join(directory, "cgroup.procs")).split():
                    return directory[len(point) :] or "/"
            except OSError:
                continue
    return None


def _is_above(root: str, path: str) -> bool:
    """Return whether a mount shows all cgroups below an ancestor of this process's, whatever its own name there."""
    parts = _parts(root)
    return all(part == ".." for part in parts) and ".." not in _parts(path)[len(parts) :]


def _is_memory(mount: Mount, version: int) -> bool:
    return mount.type == "cgroup2" if version == 2 else mount.type == "cgroup" and "memory" in mount.super_options


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def read_text(path: str) -> str:
    """Return the text of a file in /proc or /sys. Raise OSError."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
