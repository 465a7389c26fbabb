"""Queries the sources of usage figures: the site's command, the file system's quota tools, statvfs, and optionally du.

Each tool has its own time limit; if one fails, hangs or prints malformed output, the next is tried, and `--explain`
reports it. Quotas differ by user, group, project and fileset, so the quotas of each probed directory are queried.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from resilience.base.mounts import Mount
from resilience.errors import ProbeError, QuantityError
from resilience.messages import plural
from resilience.quantities import format_duration, parse_bytes
from resilience.system.ports import System
from resilience.watch.checks._filesystem import quota
from resilience.watch.checks._filesystem.quota import DU
from resilience.watch.checks._filesystem.reading import BYTES, FILE_SYSTEM, INODES, PERCENT, Amount
from resilience.watch.checks._filesystem.task import FileSystemSettings, Task, command_unit
from resilience.watch.processor import BACKTRACKS, cpu_limit

TOOL_S = 3.0
"""The time limit of one quota tool; lfs, quota and mmlsquota usually take tens of milliseconds."""
TOOL_DIRECTORIES = ("/usr/lpp/mmfs/bin", "/opt/beegfs/sbin")
"""IBM Storage Scale ("the commands are in /usr/lpp/mmfs/bin") and BeeGFS 8."""
REGEX_CPU_S = 1.0
NO_LIMIT = 2**62
"""More inodes than any file system has."""

_PLAIN = {"LC_ALL": "C", "LANG": "C"}
"""The parsers expect English output."""
_NO_QUOTA = frozenset(
    {"tmpfs", "ramfs", "devtmpfs", "overlay", "aufs", "squashfs", "fuse", "iso9660", "9p", "virtiofs"}
)


@dataclass(slots=True, eq=False, repr=False)
class Sources:
    """The results of all sources so far.

    Attributes:
        amounts: the usage, each scope once.
        explanation: the sources and their results, for `--explain`.
        deadline: the monotonic time after which no source is queried.
        failed: the sources that failed, and why.
    """

    system: System
    deadline: float
    amounts: list[Amount] = field(default_factory=list)
    explanation: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def fail(self, name: str, why: str) -> None:
        """Record that a source failed."""
        self.explanation.append(f"{name}: {why}")
        self.failed[name] = why

    def run(self, argv: Sequence[str], *, most_s: float = TOOL_S, codes: tuple[int, ...] = (0,)) -> tuple[str, str]:
        """Return the stdout and stderr of a tool. Raise ProbeError if it is missing, fails, or exceeds its time."""
        left_s = self.deadline - self.system.clock.monotonic()
        if left_s < 0.05:
            raise ProbeError("not run: no time left")
        env = {**self.system.environ, **_PLAIN, "PATH": _path(self.system.environ)}
        done = self.system.runner.run(argv, timeout_s=min(most_s, left_s), env=env)
        if done.returncode not in codes:
            output = (done.stderr.strip() or done.stdout.strip()).split("\n")[0][:200]
            raise ProbeError(f"exit code {done.returncode}{': ' + output if output else ''}")
        return done.stdout, done.stderr

    def try_source(self, name: str, query: Callable[[], Sequence[Amount]]) -> bool:
        """Query one source and record the result. Return whether it reported an amount with a limit."""
        try:
            found = query()
        except ProbeError as error:
            self.fail(name, error.message)
            return False
        known = {amount.key: amount for amount in (*reversed(found), *reversed(self.amounts))}  # the first wins
        self.amounts = list(reversed(known.values()))
        limits = sum(1 for amount in found if amount.limit is not None or amount.soft is not None)
        self.explanation.append(f"{name}: {plural(limits, 'limit')}" if found else f"{name}: no quota here")
        return bool(limits)


def statvfs_amounts(status: os.statvfs_result) -> tuple[Amount, ...]:
    """Return the usage of a file system as `df` computes it: blocks reserved for root do not count as free.

    A file system that reports 0 inodes has no inode limit (btrfs, many network file systems).
    """
    unit = status.f_frsize or status.f_bsize
    used = float(max(0, status.f_blocks - status.f_bfree) * unit)
    room = float(max(0, status.f_bavail) * unit)
    files = float(max(0, status.f_files - status.f_ffree))
    left = float(max(0, status.f_favail))
    # CephFS reports -1, unlimited, in an unsigned field.
    has_limit = status.f_files > 0 and status.f_favail < NO_LIMIT
    files = files if status.f_ffree < NO_LIMIT else float(status.f_files)
    return (
        Amount(kind=BYTES, source="statvfs", scope=FILE_SYSTEM, used=used,
               limit=used + room if status.f_blocks else None),
        Amount(kind=INODES, source="statvfs", scope=FILE_SYSTEM, used=files,
               limit=files + left if has_limit else None),
    )  # fmt: skip


def query_quota(
    sources: Sources, task: Task, paths: Sequence[str], mount: Mount | None, shared: dict[Any, Any] | None = None
) -> None:
    """Query the user's limits at the paths: the site's command first, then the quota tools, until one reports any.

    `shared` keeps the result of the tools for the other amount: they print both.
    """
    settings = task.settings
    if settings.command:
        site_argv = site_command(settings.command, paths[0], sources.system.host.user)

        def query_site() -> Sequence[Amount]:
            text = sources.run(site_argv)[0]
            with cpu_limit(REGEX_CPU_S, _too_slow):
                return [parse_site(text, settings, task.kind)]

        if sources.try_source(f"`{' '.join(site_argv)}`", query_site):
            return
    if not settings.quota or mount is None or mount.type in _NO_QUOTA:
        return
    key = ("quota", *paths)
    if shared is not None and key in shared:
        sources.amounts, sources.explanation, sources.failed = (copy(part) for part in shared[key])
        return
    _query_tools(sources, paths, mount)
    if shared is not None and not settings.command:  # otherwise the site's results are among them
        shared[key] = (copy(sources.amounts), copy(sources.explanation), copy(sources.failed))


def _query_tools(sources: Sources, paths: Sequence[str], mount: Mount) -> None:
    for program, name, query in tools_for(mount):
        if not _is_on_path(program, _path(sources.system.environ)):
            sources.fail(name, f"{program} is not on PATH")
        elif sources.try_source(name, partial(query, sources, topmost_directories(paths), mount)):
            return


def query_du(sources: Sources, task: Task, path: str, before: Mapping[str, float] | None) -> tuple[float, float] | None:
    """Run du, or use the earlier total if it is recent enough; return (time, total).

    `before` has `time` and `total`. If du times out, the earlier total is used, with its age.
    """
    if task.du_limit is None:
        return None
    now = sources.system.clock.now()
    old = (before["time"], before["total"]) if before and now >= before["time"] else None
    if old is not None and now - old[0] < task.settings.du_every_s:
        sources.explanation.append(f"du: run {format_duration(now - old[0])} ago")
    else:
        try:
            argv = quota.du_command(path, task.kind)
            text, errors = sources.run(argv, most_s=task.settings.du_deadline_s, codes=(0, 1))
            amount = quota.parse_du(text, errors, task.kind, task.du_limit)
            sources.amounts.append(amount)
            sources.explanation.append(f"du: run just now{'; ' + amount.note if amount.note else ''}")
            return now, amount.used
        except ProbeError as error:
            sources.fail(DU, error.message)
    if old is not None:
        sources.amounts.append(Amount(kind=task.kind, source=DU, scope="directory", used=old[1],
                                    limit=task.du_limit, age_s=now - old[0]))  # fmt: skip
    return old


def _too_slow() -> ProbeError:
    return ProbeError(f"its regular expression took more than {REGEX_CPU_S:g} s on the output: {BACKTRACKS}")


def _path(environ: Mapping[str, str]) -> str:
    """Return PATH with the directories in which file systems install their tools: on few sites these are in PATH."""
    return os.pathsep.join((environ.get("PATH", os.defpath), *TOOL_DIRECTORIES))


def _is_on_path(program: str, path: str) -> bool:
    """Return whether a program is on PATH; without shutil.which, which takes 3 ms to import."""
    return any(os.access(os.path.join(directory or ".", program), os.X_OK) for directory in path.split(os.pathsep))  # noqa: PTH118


MOST_DIRECTORIES = 4
"""The most directories whose groups, projects and filesets are queried."""

MOST_POOLS = 4
"""The most OST pools that are queried."""

_UNIX_TYPES = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "nfs", "nfs4", "gfs2", "ocfs2", "jfs", "reiserfs"}
)

Query = Callable[["Sources", Sequence[str], Mount], Sequence[Amount]]


def tools_for(mount: Mount) -> Iterator[tuple[str, str, Query]]:
    """Yield the tools for a type of file system, best first: program, name, query."""
    if mount.type == "lustre":
        yield "lfs", "lfs quota", _query_lustre
    elif mount.type == "gpfs":
        yield "mmlsquota", "mmlsquota", _query_gpfs
    elif mount.type in ("beegfs", "fhgfs"):
        yield "beegfs", "beegfs quota", _query_beegfs_8
        yield "beegfs-ctl", "beegfs-ctl", _query_beegfs
    if mount.type == "xfs":
        yield "xfs_quota", "xfs_quota", _query_xfs
    if mount.type in _UNIX_TYPES:
        yield "quota", "quota", _query_unix


def topmost_directories(paths: Iterable[str]) -> list[str]:
    """Return the directories that are not below another one, in their order."""
    apart: list[str] = []
    for path in paths:
        if not any((path + "/").startswith(other.rstrip("/") + "/") for other in apart):
            apart.append(path)
    return apart[:MOST_DIRECTORIES]


def _query_lustre(sources: Sources, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    projects = []
    for path in paths:
        try:
            projects.append(quota.parse_lustre_project(sources.run(["lfs", "project", "-d", path])[0]))
        except ProbeError as error:
            sources.fail("lfs project", error.message)

    def one(kind: str, name: str) -> Sequence[Amount]:
        return quota.parse_lustre(sources.run(quota.lustre_command(kind, name, paths[0]))[0])

    requested = [*_user_and_groups(sources, paths), *(("project", name) for name in projects)]
    return [*_each(sources, requested, one), *_query_lustre_pools(sources, requested, mount)]


def _query_lustre_pools(sources: Sources, requested: Sequence[tuple[str, str]], mount: Mount) -> list[Amount]:
    """Return the limits in OST pools. Most users have none, and Lustre before 2.14 has no such limits."""
    found: list[Amount] = []
    try:
        for pool in quota.parse_lustre_pools(sources.run(["lfs", "pool_list", mount.point])[0])[:MOST_POOLS]:
            for kind, name in dict.fromkeys(requested):
                text = sources.run(quota.lustre_command(kind, name, mount.point, pool))[0]
                own = (item for item in quota.parse_lustre(text) if item.kind == BYTES and (item.limit or item.soft))
                found += [item._replace(scope=f"{item.scope} in pool {pool}") for item in own]
    except ProbeError as error:
        sources.fail("lfs quota --pool", error.message)
    return found


def _query_gpfs(sources: Sources, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    device, filesets = quota.gpfs_device(mount.source), []
    for path in paths:
        try:
            filesets.append(quota.parse_gpfs_fileset(sources.run(["mmlsattr", "-L", path])[0]))
        except ProbeError as error:
            sources.fail("mmlsattr", error.message)

    def one(kind: str, name: str) -> Sequence[Amount]:
        if kind == "fileset":
            return quota.parse_gpfs(sources.run(["mmlsquota", "-Y", "-j", name, device])[0], device, filesets)
        return quota.parse_gpfs(sources.run(["mmlsquota", "-Y"])[0], device, filesets)

    requested = [("fileset", name) for name in filesets if name != "root"]
    return _each(sources, [("user", sources.system.host.user), *requested], one)


def _query_beegfs(sources: Sources, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    def one(kind: str, name: str) -> Sequence[Amount]:
        return quota.parse_beegfs(sources.run(quota.beegfs_command(kind, name, mount.point))[0], kind, name)

    return _each(sources, _user_and_groups(sources, paths), one)


def _query_beegfs_8(sources: Sources, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    argv = ["beegfs", "quota", "list-usage", "--mount", mount.point, "--raw", "--output", "ndjson"]
    return quota.parse_beegfs_8(sources.run(argv)[0], _user_and_groups(sources, paths))


def _query_xfs(sources: Sources, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    def one(kind: str, name: str) -> Sequence[Amount]:
        return quota.parse_xfs(sources.run(quota.xfs_command(kind, name, mount.point))[0])

    return _each(sources, _user_and_groups(sources, paths), one)


def _query_unix(sources: Sources, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    text, errors = sources.run(["quota", "-u", "-g", "-v", "-w", "-p", "-f", mount.point], codes=(0, 1))
    if not text.strip() and errors.strip() and quota.NO_QUOTA not in errors:
        raise ProbeError(errors.strip().split("\n")[0][:200])
    return quota.parse_unix(text, mount.source, sources.system.clock.now()) if text.strip() else ()


def _each(
    sources: Sources, requested: Iterable[tuple[str, str]], one: Callable[[str, str], Sequence[Amount]]
) -> Sequence[Amount]:
    """Query several limits, recording those that fail; raise ProbeError if all fail."""
    found: list[Amount] = []
    first: ProbeError | None = None
    answered = False
    for kind, name in dict.fromkeys((kind, name) for kind, name in requested if name):
        try:
            found += one(kind, name)
            answered = True
        except ProbeError as error:
            first = first or error
            sources.fail(f"the quota of {kind} {name}", error.message)
    if first is not None and not answered:
        raise first
    return found


def _user_and_groups(sources: Sources, paths: Sequence[str]) -> list[tuple[str, str]]:
    """Return the user, and the groups whose quotas are charged: those of the directories."""
    return [("user", sources.system.host.user), *(("group", _group_of(path)) for path in paths)]


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


_COUNT = r"([0-9]{1,18}(?:\.[0-9]{1,18})?)(?:[eE]\+?([0-9]{1,2}))?\s*([kKmMgG]?)"
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_BARE = r"[0-9.]+"
# French sites print "4.5 Tio"; parse_bytes handles "TiB", "TB" and "T".
_OCTETS = r"(?<=[KMGTPEkmgtpe])io\b|(?<=[KMGTPEkmgtpe])o\b"


def site_command(argv: Sequence[str], path: str, user: str) -> list[str]:
    """Return the argv with `{path}` and `{user}` filled in."""
    return [text.replace("{path}", path).replace("{user}", user) for text in argv]


def parse_site(text: str, settings: FileSystemSettings, kind: str) -> Amount:
    """Return the amount in the output of the site's command. Raise ProbeError if there is none."""
    if not text.strip():
        raise ProbeError("no output")
    source, age_s = f"`{' '.join(settings.command)}`", settings.command_max_age_s or None
    if settings.percent_regex:
        percent = _number(_find(text, settings.percent_regex, "percentage"))
        return Amount(kind=PERCENT, source=source, scope="quota", used=percent, limit=100.0, age_s=age_s)
    used, limit = _find(text, settings.used_regex, "usage"), _find(text, settings.limit_regex, "limit")
    read = _count if kind == INODES else lambda figure: _size(figure, command_unit(settings))
    return Amount(kind=kind, source=source, scope="quota", used=read(used), limit=read(limit) or None, age_s=age_s)


def _find(text: str, expression: str, what: str) -> str:
    match = re.search(expression, text, re.MULTILINE)
    if match is None or match[1] is None:
        raise ProbeError(f"{expression!r} finds no {what} in the output: {text.strip()[:120]!r}")
    unit = match[2] or "" if (match.re.groups or 0) > 1 else ""
    return _without_separators(match[1]) + unit


def _without_separators(text: str) -> str:
    """Return `4,500 GiB` and `450'000` as `4500 GiB` and `450000`; `0,5` is unchanged, for the parser to reject."""
    return re.sub(r"(?<=[0-9])[,'\u2019\u00a0\u202f ](?=[0-9]{3}(?![0-9]))", "", text.strip())


def _size(text: str, unit: str) -> float:
    plain = re.sub(_OCTETS, "iB", text.strip())
    try:
        return float(parse_bytes(plain + unit if re.fullmatch(_BARE, plain, re.ASCII) else plain))
    except QuantityError as error:
        raise ProbeError(error.message) from error


def _count(text: str) -> float:
    match = re.fullmatch(_COUNT, text.strip(), re.ASCII)
    if match is None:
        raise ProbeError(f"{text[:40]!r} is not a number of files")
    return float(match[1]) * 10.0 ** int(match[2] or 0) * _COUNT_UNITS[match[3].lower()]


def _number(text: str) -> float:
    try:
        number = float(text.strip().rstrip("%"))
    except ValueError:
        raise ProbeError(f"{text[:40]!r} is not a percentage") from None
    if not 0 <= number < 10**6:
        raise ProbeError(f"{text[:40]!r} is not a percentage")
    return number
