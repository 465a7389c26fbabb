"""The quota tools of file systems: which fits which, and what each is asked for.

Quotas of one file system differ by user, group, project and fileset, so a file system that is looked at for several
folders is asked for those of each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from resilience.base.mounts import Mount
from resilience.errors import ProbeError
from resilience.watch.checks._filesystem.amount import Amount

if TYPE_CHECKING:
    from resilience.watch.checks._filesystem.sources import Asked

MOST_FOLDERS = 4
"""The groups, projects and filesets of so many folders are asked for."""

_UNIX_TYPES = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "nfs", "nfs4", "gfs2", "ocfs2", "jfs", "reiserfs"}
)

Ask = Callable[["Asked", Sequence[str], Mount], Sequence[Amount]]


def tools_for(mount: Mount) -> Iterator[tuple[str, str, Ask]]:
    """The tools that fit a type of file system, best first: program, name, and how it is asked."""
    if mount.type == "lustre":
        yield "lfs", "lfs quota", _ask_lustre
    elif mount.type == "gpfs":
        yield "mmlsquota", "mmlsquota", _ask_gpfs
    elif mount.type in ("beegfs", "fhgfs"):
        yield "beegfs-ctl", "beegfs-ctl", _ask_beegfs
    if mount.type == "xfs":
        yield "xfs_quota", "xfs_quota", _ask_xfs
    if mount.type in _UNIX_TYPES:
        yield "quota", "quota", _ask_unix


def folders_apart(paths: Iterable[str]) -> list[str]:
    """Given folders, return those that lie in no other, as far as they are asked about; the first one stays first."""
    apart: list[str] = []
    for path in paths:
        if not any((path + "/").startswith(other.rstrip("/") + "/") for other in apart):
            apart.append(path)
    return apart[:MOST_FOLDERS]


def _ask_lustre(asked: Asked, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    from resilience.watch.checks._filesystem import lustre

    projects = []
    for path in paths:
        try:
            projects.append(lustre.parse_project(asked.run(lustre.project_command(path))[0]))
        except ProbeError as error:
            asked.fail("lfs project", error.message)

    def one(kind: str, name: str) -> Sequence[Amount]:
        return lustre.parse_quota(asked.run(lustre.quota_command(kind, name, paths[0]))[0])

    return _each(asked, [*_mine(asked, paths), *(("project", name) for name in projects)], one)


def _ask_gpfs(asked: Asked, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    from resilience.watch.checks._filesystem import gpfs

    device, filesets = gpfs.device_name(mount.source), []
    for path in paths:
        try:
            filesets.append(gpfs.parse_fileset(asked.run(gpfs.attributes_command(path))[0]))
        except ProbeError as error:
            asked.fail("mmlsattr", error.message)

    def one(kind: str, name: str) -> Sequence[Amount]:
        if kind == "fileset":
            return gpfs.parse_quota(asked.run(gpfs.fileset_command(name, device))[0], device, filesets)
        return gpfs.parse_quota(asked.run(gpfs.quota_command())[0], device, filesets)

    wanted = [("fileset", name) for name in filesets if name != "root"]
    return _each(asked, [("user", asked.world.host.user), *wanted], one)


def _ask_beegfs(asked: Asked, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    from resilience.watch.checks._filesystem import beegfs

    def one(kind: str, name: str) -> Sequence[Amount]:
        return beegfs.parse_quota(asked.run(beegfs.quota_command(kind, name, mount.point))[0], kind, name)

    return _each(asked, _mine(asked, paths), one)


def _ask_xfs(asked: Asked, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    from resilience.watch.checks._filesystem import xfs

    def one(kind: str, name: str) -> Sequence[Amount]:
        return xfs.parse_quota(asked.run(xfs.quota_command(kind, name, mount.point))[0])

    return _each(asked, _mine(asked, paths), one)


def _ask_unix(asked: Asked, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    from resilience.watch.checks._filesystem import unix_quota

    text, errors = asked.run(unix_quota.quota_command(mount.point), codes=(0, 1))
    if not text.strip() and errors.strip() and unix_quota.NO_QUOTA not in errors:
        raise ProbeError(errors.strip().split("\n")[0][:200])
    return unix_quota.parse_quota(text, mount.source, asked.world.clock.now()) if text.strip() else ()


def _each(
    asked: Asked, wanted: Iterable[tuple[str, str]], one: Callable[[str, str], Sequence[Amount]]
) -> Sequence[Amount]:
    """Ask for each of several limits. That one cannot be told hides no other; raise ProbeError if none can."""
    found: list[Amount] = []
    first: ProbeError | None = None
    answered = False
    for kind, name in dict.fromkeys((kind, name) for kind, name in wanted if name):
        try:
            found += one(kind, name)
            answered = True
        except ProbeError as error:
            first = first or error
            asked.fail(f"the quota of {kind} {name}", error.message)
    if first is not None and not answered:
        raise first
    return found


def _mine(asked: Asked, paths: Sequence[str]) -> list[tuple[str, str]]:
    """The user, and the groups whose quotas pay for what is written: the folders' own."""
    return [("user", asked.world.host.user), *(("group", _group_of(path)) for path in paths)]


def _group_of(path: str) -> str:
    import grp

    try:
        gid = os.stat(path).st_gid  # noqa: PTH116
    except OSError:
        gid = os.getegid()
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
