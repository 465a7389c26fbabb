"""Asks who knows: the site's command, the file system's own quota tool, statvfs, and du where it is wanted.

Each tool has its own part of the time; one that fails, hangs or writes nonsense gives way to the next, which is told.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from resilience.checks._filesystem.amount import BYTES, FILE_SYSTEM, INODES, Amount
from resilience.checks._filesystem.look import Look
from resilience.errors import ProbeError
from resilience.quantities import format_duration
from resilience.system.mounts import Mount
from resilience.system.world import World

TOOL_S = 3.0
"""No quota tool gets more; lfs, quota and mmlsquota answer in tens of milliseconds where they answer."""

_PLAIN = {"LC_ALL": "C", "LANG": "C"}
"""The parsers read English."""
_NO_QUOTA = frozenset(
    {"tmpfs", "ramfs", "devtmpfs", "overlay", "aufs", "squashfs", "fuse", "iso9660", "9p", "virtiofs"}
)
_UNIX_TYPES = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "nfs", "nfs4", "gfs2", "ocfs2", "jfs", "reiserfs"}
)


@dataclass(slots=True, eq=False, repr=False)
class Asked:
    """What came of asking.

    Attributes:
        amounts: what is known, each scope once.
        looked: what was asked, and what it said, for `--explain`.
        deadline: on the monotonic clock: nothing is asked beyond it.
    """

    world: World
    deadline: float
    amounts: list[Amount] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, most_s: float = TOOL_S, codes: tuple[int, ...] = (0,)) -> tuple[str, str]:
        """What a tool wrote. Raise ProbeError if it is missing, failed, or did not end in its part of the time."""
        left_s = self.deadline - self.world.clock.monotonic()
        if left_s < 0.05:
            raise ProbeError("no time was left to ask it")
        env = {**self.world.environ, **_PLAIN}
        done = self.world.runner.run(argv, timeout_s=min(most_s, left_s), env=env)
        if done.returncode not in codes:
            said = (done.stderr.strip() or done.stdout.strip()).split("\n")[0][:200]
            raise ProbeError(f"it ended with {done.returncode}{': ' + said if said else ''}")
        return done.stdout, done.stderr

    def try_one(self, name: str, ask: Callable[[], Sequence[Amount]]) -> bool:
        """Ask one source; say what came of it. Whether it knew an amount with a limit, or one at all."""
        try:
            found = ask()
        except ProbeError as error:
            self.looked.append(f"{name}: {error.message}")
            return False
        known = {amount.key: amount for amount in (*reversed(found), *reversed(self.amounts))}  # the first one counts
        self.amounts = list(reversed(known.values()))
        limits = sum(1 for amount in found if amount.limit is not None or amount.soft is not None)
        self.looked.append(f"{name}: {limits} limit{'' if limits == 1 else 's'}" if found else f"{name}: no quota here")
        return bool(limits)


def of_statvfs(status: os.statvfs_result) -> tuple[Amount, ...]:
    """What a file system says of itself, as `df` counts: used is what is not free, and what root keeps is no room.

    A file system that reports no inodes has no limit of them (btrfs, many network file systems).
    """
    unit = status.f_frsize or status.f_bsize
    used = float(max(0, status.f_blocks - status.f_bfree) * unit)
    room = float(max(0, status.f_bavail) * unit)
    files = float(max(0, status.f_files - status.f_ffree))
    left = float(max(0, status.f_favail))
    return (
        Amount(kind=BYTES, source="statvfs", scope=FILE_SYSTEM, used=used,
               limit=used + room if status.f_blocks else None),
        Amount(kind=INODES, source="statvfs", scope=FILE_SYSTEM, used=files,
               limit=files + left if status.f_files else None),
    )  # fmt: skip


def ask_quota(asked: Asked, look: Look, path: str, mount: Mount | None) -> None:
    """Ask for the limits of mine at a path: the best source that answers, the others after it."""
    user = asked.world.host.user
    if look.site.argv:
        from resilience.checks._filesystem import site

        site_argv = site.site_command(look.site, path, user)

        def ask_site() -> Sequence[Amount]:
            return [site.parse_site(asked.run(site_argv)[0], look.site, look.kind)]

        if asked.try_one(f"`{' '.join(site_argv)}`", ask_site):
            return
    if not look.asks_quota or mount is None or mount.type in _NO_QUOTA:
        return
    for program, name, ask in _tools(asked, path, mount, user):
        if not _is_on_path(program, asked.world.environ.get("PATH", os.defpath)):
            asked.looked.append(f"{name}: {program} is not on PATH")
        elif asked.try_one(name, ask):
            return


def _tools(
    asked: Asked, path: str, mount: Mount, user: str
) -> Sequence[tuple[str, str, Callable[[], Sequence[Amount]]]]:
    """The tools that fit a type of file system: program, name, and how it is asked."""
    now = asked.world.clock.now()
    group = _group_of(path)

    def ask_lustre() -> Sequence[Amount]:
        from resilience.checks._filesystem import lustre

        found = list(lustre.parse_quota(asked.run(lustre.quota_command("user", user, path))[0]))
        found += _more(asked, "group", group, lambda: lustre.parse_quota(
            asked.run(lustre.quota_command("group", group, path))[0]))  # fmt: skip
        project = ""
        try:
            project = lustre.parse_project(asked.run(lustre.project_command(path))[0])
        except ProbeError as error:
            asked.looked.append(f"lfs project: {error.message}")
        found += _more(asked, "project", project, lambda: lustre.parse_quota(
            asked.run(lustre.quota_command("project", project, path))[0]))  # fmt: skip
        return found

    def ask_gpfs() -> Sequence[Amount]:
        from resilience.checks._filesystem import gpfs

        device, fileset = gpfs.device_name(mount.source), ""
        try:
            fileset = gpfs.parse_fileset(asked.run(gpfs.attributes_command(path))[0])
        except ProbeError as error:
            asked.looked.append(f"mmlsattr: {error.message}")
        found = list(gpfs.parse_quota(asked.run(gpfs.quota_command())[0], device, fileset))
        found += _more(asked, "fileset", fileset if fileset != "root" else "", lambda: gpfs.parse_quota(
            asked.run(gpfs.fileset_command(fileset, device))[0], device, fileset))  # fmt: skip
        return found

    def ask_beegfs() -> Sequence[Amount]:
        from resilience.checks._filesystem import beegfs

        found = list(beegfs.parse_quota(asked.run(beegfs.quota_command("user", user, mount.point))[0], "user", user))
        found += _more(asked, "group", group, lambda: beegfs.parse_quota(
            asked.run(beegfs.quota_command("group", group, mount.point))[0], "group", group))  # fmt: skip
        return found

    def ask_xfs() -> Sequence[Amount]:
        from resilience.checks._filesystem import xfs

        found = list(xfs.parse_quota(asked.run(xfs.quota_command("user", user, mount.point))[0]))
        found += _more(asked, "group", group, lambda: xfs.parse_quota(
            asked.run(xfs.quota_command("group", group, mount.point))[0]))  # fmt: skip
        return found

    def ask_unix() -> Sequence[Amount]:
        from resilience.checks._filesystem import unix_quota

        text, errors = asked.run(unix_quota.quota_command(mount.point), codes=(0, 1))
        if not text.strip() and errors.strip() and unix_quota.NO_QUOTA not in errors:
            raise ProbeError(errors.strip().split("\n")[0][:200])
        return unix_quota.parse_quota(text, mount.source, now) if text.strip() else ()

    tools = []
    if mount.type == "lustre":
        tools.append(("lfs", "lfs quota", ask_lustre))
    elif mount.type == "gpfs":
        tools.append(("mmlsquota", "mmlsquota", ask_gpfs))
    elif mount.type in ("beegfs", "fhgfs"):
        tools.append(("beegfs-ctl", "beegfs-ctl", ask_beegfs))
    if mount.type == "xfs":
        tools.append(("xfs_quota", "xfs_quota", ask_xfs))
    if mount.type in _UNIX_TYPES:
        tools.append(("quota", "quota", ask_unix))
    return tools


def _more(asked: Asked, what: str, name: str, ask: Callable[[], Sequence[Amount]]) -> Sequence[Amount]:
    """A second limit beside one that was told already: that it cannot be asked hides nothing."""
    if not name:
        return ()
    try:
        return ask()
    except ProbeError as error:
        asked.looked.append(f"the quota of {what} {name}: {error.message}")
        return ()


def ask_du(asked: Asked, look: Look, path: str, before: Mapping[str, float] | None) -> tuple[float, float] | None:
    """Count with du, or take the total of before while it is young enough; return (when, total).

    `before` has `time` and `total`. A du that does not end in time leaves the old total, with its age.
    """
    if look.du_limit is None:
        return None
    from resilience.checks._filesystem import du

    now = asked.world.clock.now()
    old = (before["time"], before["total"]) if before and now >= before["time"] else None
    if old is not None and now - old[0] < look.du_every_s:
        asked.looked.append(f"du: counted {format_duration(now - old[0])} ago")
    else:
        try:
            text, errors = asked.run(du.du_command(path, look.kind), most_s=look.du_deadline_s, codes=(0, 1))
            amount = du.parse_du(text, errors, look.kind, look.du_limit)
            asked.amounts.append(amount)
            asked.looked.append(f"du: counted just now{'; ' + amount.note if amount.note else ''}")
            return now, amount.used
        except ProbeError as error:
            asked.looked.append(f"du: {error.message}")
    if old is not None:
        asked.amounts.append(Amount(kind=look.kind, source=du.SOURCE, scope="folder", used=old[1],
                                    limit=look.du_limit, age_s=now - old[0]))  # fmt: skip
    return old


def _group_of(path: str) -> str:
    """The group whose quota pays for what is written at a path: the folder's own group."""
    try:
        gid = os.stat(path).st_gid  # noqa: PTH116
    except OSError:
        gid = os.getegid()
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _is_on_path(program: str, path: str) -> bool:
    """Whether a program can be found; as shutil.which, which takes 3 ms to import."""
    return any(os.access(os.path.join(folder or ".", program), os.X_OK) for folder in path.split(os.pathsep))  # noqa: PTH118
