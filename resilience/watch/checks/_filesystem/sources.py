"""The sources of figures: the site's command, the file system's own quota tools, statvfs, and du where requested.

Each tool has its own part of the time; one that fails, hangs or writes nonsense gives way to the next, and that is
explained. Quotas of one file system differ by user, group, project and fileset, so a file system that is probed for
several directories is queried for those of each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from resilience.base.mounts import Mount
from resilience.errors import ProbeError, QuantityError
from resilience.quantities import format_duration, parse_bytes
from resilience.system.ports import System
from resilience.watch.checks._filesystem.quota import (
    DU,
    NO_QUOTA,
    beegfs_command,
    du_command,
    gpfs_attributes_command,
    gpfs_command,
    gpfs_device,
    gpfs_fileset_command,
    lustre_command,
    lustre_project_command,
    parse_beegfs,
    parse_du,
    parse_gpfs,
    parse_gpfs_fileset,
    parse_lustre,
    parse_lustre_project,
    parse_unix,
    parse_xfs,
    unix_command,
    xfs_command,
)
from resilience.watch.checks._filesystem.reading import BYTES, FILE_SYSTEM, INODES, PERCENT, Amount
from resilience.watch.checks._filesystem.task import SiteCommand, Task
from resilience.watch.processor import BACKTRACKS, cpu_limit

TOOL_S = 3.0
"""No quota tool gets more; lfs, quota and mmlsquota answer in tens of milliseconds where they answer."""
REGEX_CPU_S = 1.0
NO_LIMIT = 2**62
"""No file system has so many inodes."""

_PLAIN = {"LC_ALL": "C", "LANG": "C"}
"""The parsers read English."""
_NO_QUOTA = frozenset(
    {"tmpfs", "ramfs", "devtmpfs", "overlay", "aufs", "squashfs", "fuse", "iso9660", "9p", "virtiofs"}
)


@dataclass(slots=True, eq=False, repr=False)
class Sources:
    """The answers of all sources so far.

    Attributes:
        amounts: what is known, each scope once.
        looked: what was sources, and what it said, for `--explain`.
        deadline: on the monotonic clock: nothing is asked beyond it.
        failed: the sources that gave no answer, and why.
    """

    system: System
    deadline: float
    amounts: list[Amount] = field(default_factory=list)
    explanation: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def fail(self, name: str, why: str) -> None:
        """Note that a source gave no answer."""
        self.explanation.append(f"{name}: {why}")
        self.failed[name] = why

    def run(self, argv: Sequence[str], *, most_s: float = TOOL_S, codes: tuple[int, ...] = (0,)) -> tuple[str, str]:
        """What a tool wrote. Raise ProbeError if it is missing, failed, or did not end in its part of the time."""
        left_s = self.deadline - self.system.clock.monotonic()
        if left_s < 0.05:
            raise ProbeError("no time was left to ask it")
        env = {**self.system.environ, **_PLAIN}
        done = self.system.runner.run(argv, timeout_s=min(most_s, left_s), env=env)
        if done.returncode not in codes:
            said = (done.stderr.strip() or done.stdout.strip()).split("\n")[0][:200]
            raise ProbeError(f"it ended with {done.returncode}{': ' + said if said else ''}")
        return done.stdout, done.stderr

    def try_one(self, name: str, ask: Callable[[], Sequence[Amount]]) -> bool:
        """Ask one source; say what came of it. Whether it knew an amount with a limit, or one at all."""
        try:
            found = ask()
        except ProbeError as error:
            self.fail(name, error.message)
            return False
        known = {amount.key: amount for amount in (*reversed(found), *reversed(self.amounts))}  # the first one counts
        self.amounts = list(reversed(known.values()))
        limits = sum(1 for amount in found if amount.limit is not None or amount.soft is not None)
        self.explanation.append(
            f"{name}: {limits} limit{'' if limits == 1 else 's'}" if found else f"{name}: no quota here"
        )
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
    # CephFS says -1 for "as many as you like", and the field has no sign.
    has_limit = status.f_files > 0 and status.f_favail < NO_LIMIT
    files = files if status.f_ffree < NO_LIMIT else float(status.f_files)
    return (
        Amount(kind=BYTES, source="statvfs", scope=FILE_SYSTEM, used=used,
               limit=used + room if status.f_blocks else None),
        Amount(kind=INODES, source="statvfs", scope=FILE_SYSTEM, used=files,
               limit=files + left if has_limit else None),
    )  # fmt: skip


def ask_quota(sources: Sources, task: Task, paths: Sequence[str], mount: Mount | None) -> None:
    """Ask for the limits of mine at a path: the best source that answers, the others after it."""
    if task.site.argv:
        site_argv = site_command(task.site, paths[0], sources.system.host.user)

        def ask_site() -> Sequence[Amount]:
            text = sources.run(site_argv)[0]
            with cpu_limit(REGEX_CPU_S, _too_slow):
                return [parse_site(text, task.site, task.kind)]

        if sources.try_one(f"`{' '.join(site_argv)}`", ask_site):
            return
    if not task.asks_quota or mount is None or mount.type in _NO_QUOTA:
        return
    for program, name, ask in tools_for(mount):
        if not _is_on_path(program, sources.system.environ.get("PATH", os.defpath)):
            sources.fail(name, f"{program} is not on PATH")
        elif sources.try_one(name, partial(ask, sources, directories_apart(paths), mount)):
            return


def ask_du(sources: Sources, task: Task, path: str, before: Mapping[str, float] | None) -> tuple[float, float] | None:
    """Count with du, or take the total of before while it is young enough; return (when, total).

    `before` has `time` and `total`. A du that does not end in time leaves the old total, with its age.
    """
    if task.du_limit is None:
        return None
    now = sources.system.clock.now()
    old = (before["time"], before["total"]) if before and now >= before["time"] else None
    if old is not None and now - old[0] < task.du_every_s:
        sources.explanation.append(f"du: counted {format_duration(now - old[0])} ago")
    else:
        try:
            text, errors = sources.run(du_command(path, task.kind), most_s=task.du_deadline_s, codes=(0, 1))
            amount = parse_du(text, errors, task.kind, task.du_limit)
            sources.amounts.append(amount)
            sources.explanation.append(f"du: counted just now{'; ' + amount.note if amount.note else ''}")
            return now, amount.used
        except ProbeError as error:
            sources.fail(DU, error.message)
    if old is not None:
        sources.amounts.append(Amount(kind=task.kind, source=DU, scope="directory", used=old[1],
                                    limit=task.du_limit, age_s=now - old[0]))  # fmt: skip
    return old


def _too_slow() -> ProbeError:
    return ProbeError(f"its regular expression was not through what it printed after {REGEX_CPU_S:g} s: {BACKTRACKS}")


def _is_on_path(program: str, path: str) -> bool:
    """Whether a program can be found; as shutil.which, which takes 3 ms to import."""
    return any(os.access(os.path.join(directory or ".", program), os.X_OK) for directory in path.split(os.pathsep))  # noqa: PTH118


MOST_FOLDERS = 4
"""The groups, projects and filesets of so many directories are asked for."""

_UNIX_TYPES = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "nfs", "nfs4", "gfs2", "ocfs2", "jfs", "reiserfs"}
)

Ask = Callable[["Sources", Sequence[str], Mount], Sequence[Amount]]


def tools_for(mount: Mount) -> Iterator[tuple[str, str, Ask]]:
    """The tools that fit a type of file system, best first: program, name, and how it is sources."""
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


def directories_apart(paths: Iterable[str]) -> list[str]:
    """Given directories, return those that are in none of the others; the first one stays first."""
    apart: list[str] = []
    for path in paths:
        if not any((path + "/").startswith(other.rstrip("/") + "/") for other in apart):
            apart.append(path)
    return apart[:MOST_FOLDERS]


def _ask_lustre(sources: Sources, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    projects = []
    for path in paths:
        try:
            projects.append(parse_lustre_project(sources.run(lustre_project_command(path))[0]))
        except ProbeError as error:
            sources.fail("lfs project", error.message)

    def one(kind: str, name: str) -> Sequence[Amount]:
        return parse_lustre(sources.run(lustre_command(kind, name, paths[0]))[0])

    return _each(sources, [*_mine(sources, paths), *(("project", name) for name in projects)], one)


def _ask_gpfs(sources: Sources, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    device, filesets = gpfs_device(mount.source), []
    for path in paths:
        try:
            filesets.append(parse_gpfs_fileset(sources.run(gpfs_attributes_command(path))[0]))
        except ProbeError as error:
            sources.fail("mmlsattr", error.message)

    def one(kind: str, name: str) -> Sequence[Amount]:
        if kind == "fileset":
            return parse_gpfs(sources.run(gpfs_fileset_command(name, device))[0], device, filesets)
        return parse_gpfs(sources.run(gpfs_command())[0], device, filesets)

    wanted = [("fileset", name) for name in filesets if name != "root"]
    return _each(sources, [("user", sources.system.host.user), *wanted], one)


def _ask_beegfs(sources: Sources, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    def one(kind: str, name: str) -> Sequence[Amount]:
        return parse_beegfs(sources.run(beegfs_command(kind, name, mount.point))[0], kind, name)

    return _each(sources, _mine(sources, paths), one)


def _ask_xfs(sources: Sources, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    def one(kind: str, name: str) -> Sequence[Amount]:
        return parse_xfs(sources.run(xfs_command(kind, name, mount.point))[0])

    return _each(sources, _mine(sources, paths), one)


def _ask_unix(sources: Sources, paths: Sequence[str], mount: Mount) -> Sequence[Amount]:
    text, errors = sources.run(unix_command(mount.point), codes=(0, 1))
    if not text.strip() and errors.strip() and NO_QUOTA not in errors:
        raise ProbeError(errors.strip().split("\n")[0][:200])
    return parse_unix(text, mount.source, sources.system.clock.now()) if text.strip() else ()


def _each(
    sources: Sources, wanted: Iterable[tuple[str, str]], one: Callable[[str, str], Sequence[Amount]]
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
            sources.fail(f"the quota of {kind} {name}", error.message)
    if first is not None and not answered:
        raise first
    return found


def _mine(sources: Sources, paths: Sequence[str]) -> list[tuple[str, str]]:
    """The user, and the groups whose quotas pay for what is written: the directories' own."""
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
# "4.5 Tio" is what French sites print; "TiB", "TB" and "T" are parse_bytes's.
_OCTETS = r"(?<=[KMGTPEkmgtpe])io\b|(?<=[KMGTPEkmgtpe])o\b"


def site_command(site: SiteCommand, path: str, user: str) -> list[str]:
    """The argv with `{path}` and `{user}` filled in."""
    return [text.replace("{path}", path).replace("{user}", user) for text in site.argv]


def parse_site(text: str, site: SiteCommand, kind: str) -> Amount:
    """Given what the command printed, return the amount. Raise ProbeError if nothing there is one."""
    if not text.strip():
        raise ProbeError("it printed nothing")
    source, age_s = f"`{' '.join(site.argv)}`", site.max_age_s or None
    if site.percent:
        percent = _number(_find(text, site.percent, "percentage"))
        return Amount(kind=PERCENT, source=source, scope="quota", used=percent, limit=100.0, age_s=age_s)
    used, limit = _find(text, site.used, "use"), _find(text, site.limit, "limit")
    read = _count if kind == INODES else lambda figure: _size(figure, site.unit)
    return Amount(kind=kind, source=source, scope="quota", used=read(used), limit=read(limit) or None, age_s=age_s)


def _find(text: str, expression: str, what: str) -> str:
    match = re.search(expression, text, re.MULTILINE)
    if match is None or match[1] is None:
        raise ProbeError(f"it printed no {what} that {expression!r} finds: {text.strip()[:120]!r}")
    unit = match[2] or "" if (match.re.groups or 0) > 1 else ""
    return _without_separators(match[1]) + unit


def _without_separators(text: str) -> str:
    """`4,500 GiB` and `450'000` as `4500 GiB` and `450000`; `0,5` is left for the parser to refuse."""
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
        raise ProbeError(f"{text[:40]!r} is no number of files")
    return float(match[1]) * 10.0 ** int(match[2] or 0) * _COUNT_UNITS[match[3].lower()]


def _number(text: str) -> float:
    try:
        number = float(text.strip().rstrip("%"))
    except ValueError:
        raise ProbeError(f"{text[:40]!r} is no percentage") from None
    if not 0 <= number < 10**6:
        raise ProbeError(f"{text[:40]!r} is no percentage")
    return number
