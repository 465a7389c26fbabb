"""Builds the commands of quota tools and parses their output: lfs, mmlsquota, beegfs, xfs_quota, quota, du. Pure.

Recorded outputs are in tests/recorded/quota.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from urllib.parse import unquote

from resilience.errors import ProbeError, QuantityError
from resilience.messages import plural
from resilience.quantities import parse_bytes
from resilience.watch.checks._filesystem.reading import BYTES, INODES, Amount

_FIGURE = r"\[?(?P<number>[0-9]{1,18}(?:\.[0-9]{1,18})?)(?P<unit>[kKmMgGtTpPeE]?)(?:i?B)?\]?\*?"
KINDS = (BYTES, INODES)
"""In the order of the columns of a table."""
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15, "e": 10**18}
_NO_LIMIT = frozenset({"", "-", "none", "unlimited", "no", "off", "∞", "infinite"})
_GRACE_PART = r"([0-9]{1,9})\s*(weeks?|days?|hours?|minutes?|mins?|seconds?|secs?|w|d|h|m|s)"
_GRACE_UNITS_S = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
_GRACE_CLOCK = r"(?:([0-9]{1,9})\s*days?\s*)?([0-9]{1,4}):([0-9]{2})(?::([0-9]{2}))?"


def parse_size(text: str, default_unit: str = "B") -> float:
    """Parse a size printed by a quota tool, in bytes. A bare number is in `default_unit`; the marks `*` and `[]` are
    ignored.

    For instance, `2000*` with the unit `K` gives 2048000.0, `8T` gives 8 TiB. All of lfs, mmlsquota, quota and
    xfs_quota count in powers of 1024. Raise ProbeError if the text is not a size.
    """
    match = re.fullmatch(_FIGURE, text.strip(), re.ASCII)
    if match is None:
        raise ProbeError(f"{text.strip()[:40]!r} is not a size")
    unit = match["unit"] or default_unit
    return float(match["number"]) * parse_bytes("1" + unit)


def parse_count(text: str) -> float:
    """Parse a number of files printed by a quota tool. `160k` is 160,000: counts use powers of 1000.

    Raise ProbeError if the text is not a count.
    """
    match = re.fullmatch(_FIGURE, text.strip(), re.ASCII)
    if match is None:
        raise ProbeError(f"{text.strip()[:40]!r} is not a number of files")
    return float(match["number"]) * _COUNT_UNITS[match["unit"].lower()]


def parse_limit(text: str, kind: str, default_unit: str = "B") -> float | None:
    """Parse a limit printed by a quota tool; None for no limit: 0, `-`, `none`, `unlimited`."""
    stripped = text.strip()
    if stripped.lower() in _NO_LIMIT:
        return None
    return (parse_size(stripped, default_unit) if kind == BYTES else parse_count(stripped)) or None


def is_figure(text: str) -> bool:
    """Return whether a word of a table is a size or a count."""
    return re.fullmatch(_FIGURE, text, re.ASCII) is not None


def parse_grace_s(text: str, *, is_over: bool) -> float | None:
    """Parse the grace column of a quota tool, as seconds left; 0.0: expired; None: not running.

    `is_over`: whether the soft limit is exceeded. If so, `none`, `expired` and `0` mean that the period has expired
    (lfs and quota print `none`, xfs_quota `--none--`, mmlsquota `expired`); otherwise they mean nothing.
    """
    word = text.strip().strip("[]").strip().lower()
    if not is_over:
        return None
    clock = re.fullmatch(_GRACE_CLOCK, word, re.ASCII)
    if clock is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)
    parts = re.findall(_GRACE_PART, word, re.ASCII)
    if parts:
        return float(sum(int(number) * _GRACE_UNITS_S[unit[0]] for number, unit in parts))
    if word.strip("-") in {"none", "expired", "0", "0seconds"}:
        return 0.0
    return None


def amount(
    kind: str, source: str, scope: str, used: str, soft: str, limit: str, grace: str, *, unit: str = "K", note: str = ""
) -> Amount:
    """Return one amount from the words of a table row. Raise ProbeError if they are not figures."""
    try:
        in_use = parse_size(used, unit) if kind == BYTES else parse_count(used)
        soft_limit, hard_limit = parse_limit(soft, kind, unit), parse_limit(limit, kind, unit)
    except QuantityError as error:  # an unknown unit
        raise ProbeError(error.message) from error
    is_over = soft_limit is not None and in_use > soft_limit
    notes = [note] if note else []
    if used.strip().startswith("["):
        notes.append("some servers did not respond: the usage is a lower bound")
    return Amount(
        kind=kind, source=source, scope=scope, used=in_use, limit=hard_limit, soft=soft_limit,
        grace_s=parse_grace_s(grace, is_over=is_over), age_s=None, note="; ".join(notes),
    )  # fmt: skip


def figures_of(words: list[str], what: str) -> tuple[list[str], list[str]]:
    """Split a row `used quota limit [grace] files quota limit [grace]` into its words for bytes and for inodes.

    quota leaves the grace column empty if no grace period runs, so a row has six, seven or eight words.
    Raise ProbeError for any other number.
    """
    if len(words) == 8:
        return words[:4], words[4:]
    if len(words) == 7 and not is_figure(words[3]):
        return words[:4], [*words[4:], ""]
    if len(words) == 7:
        return [*words[:3], ""], words[3:]
    if len(words) == 6:
        return [*words[:3], ""], [*words[3:], ""]
    raise ProbeError(f"{what} printed a row of {len(words)} columns instead of 6 to 8")


# Lustre: lfs-quota(1) of Lustre 2.15. The table of a pool (`--pool`, since 2.14) has the same form and does not name
# the pool; its limits are of blocks only (Lustre manual, 25.9), and apply to all files on the OSTs of the pool.

LUSTRE = "lfs quota"
_LUSTRE_HEAD = re.compile(
    r"Disk quotas for (?P<kind>usr|user|grp|group|prj|project) (?P<name>\S+) \((?:uid|gid|pid) .*\):"
)
_LUSTRE_KINDS = {"usr": "user", "grp": "group", "prj": "project"}
_LUSTRE_TABLE = re.compile(r"\s*Filesystem\s+(?:kbytes|used|bytes)\b")


def lustre_command(kind: str, name: str, path: str, pool: str = "") -> list[str]:
    """Return `lfs quota -u alice /scratch`, or `lfs quota -u alice --pool flash /scratch`.

    `kind`: user, group or project.
    """
    option = {"user": "-u", "group": "-g", "project": "-p"}[kind]
    return ["lfs", "quota", option, name, *(["--pool", pool] if pool else []), path]


def parse_lustre_pools(text: str) -> tuple[str, ...]:
    """Return the pools in the output of `lfs pool_list`: `flash` for the row `lustre.flash`."""
    rows = (line.strip() for line in text.split("\n") if not line.startswith("Pools from"))
    return tuple(row.partition(".")[2] for row in rows if "." in row)


def parse_lustre_project(text: str) -> str:
    """Return the project id: `1000` for `1000 P /scratch/lab`, empty for 0. Raise ProbeError for other output."""
    words = text.split(None, 2)
    if len(words) < 3 or not words[0].isdecimal():
        raise ProbeError(f"lfs project printed {text.strip()[:80]!r}")
    return "" if int(words[0]) == 0 else words[0]


def parse_lustre(text: str) -> tuple[Amount, ...]:
    """Return the amounts of each table in the output of `lfs quota`.

    A long file system name is on a line of its own, with the figures on the next. Raise ProbeError if there is no
    table or a row is malformed.
    """
    amounts: list[Amount] = []
    scope, in_table, name = "", False, ""
    for line in text.split("\n"):
        head = _LUSTRE_HEAD.match(line.strip())
        if head is not None:
            kind = _LUSTRE_KINDS.get(head["kind"], head["kind"])
            scope, in_table, name = f"{kind} {head['name']}", False, ""
            continue
        if _LUSTRE_TABLE.match(line):
            in_table = True
            continue
        words = line.split()
        if not in_table or not words:
            continue
        if not name and len(words) == 1:
            name = words[0]
            continue
        row = words if name else words[1:]
        for kind, figures in zip(KINDS, figures_of(row, LUSTRE), strict=True):
            amounts.append(amount(kind, LUSTRE, scope, *figures))
        in_table, name = False, ""  # per-server rows or a remark follow: "uid 1001 is using default ..."
    if not amounts:
        raise ProbeError(f"lfs quota printed no table: {text.strip()[:120]!r}")
    return tuple(amounts)


# IBM Storage Scale (GPFS): mmlsquota(1), "-Y: the output in a parseable format with a colon (:) as a field delimiter",
# each line starts with the command's name; values are percent-encoded. Block figures are in KiB.

GPFS = "mmlsquota"
_FILESET = re.compile(r"^fileset name:\s*(\S+)\s*$", re.MULTILINE)
_GPFS_KINDS = {"USR": "user", "GRP": "group", "FILESET": "fileset"}
_GPFS_COLUMNS = ("filesystemName", "quotaType", "blockUsage", "blockQuota", "blockLimit", "blockGrace",
            "filesUsage", "filesQuota", "filesLimit", "filesGrace")  # fmt: skip


def parse_gpfs_fileset(text: str) -> str:
    """Return the fileset in the output of `mmlsattr -L`. Raise ProbeError if there is none."""
    match = _FILESET.search(text)
    if match is None:
        raise ProbeError("mmlsattr printed no fileset name")
    return match[1]


def gpfs_device(mount_source: str) -> str:
    """Return the file system's name for a mount's device (`/dev/gpfs0` or `gpfs0`)."""
    return mount_source.removeprefix("/dev/")


def parse_gpfs(text: str, device: str, filesets: Sequence[str] = ()) -> tuple[Amount, ...]:
    """Return the amounts of one file system, matched by its exact name, in the output of `mmlsquota -Y`.

    A user's or group's row may apply to a single fileset; rows of filesets not in `filesets` are skipped. Raise
    ProbeError for other output. Return nothing for a file system without quotas.
    """
    header: list[str] = []
    amounts: list[Amount] = []
    for line in text.split("\n"):
        words = line.rstrip("\r").split(":")
        if len(words) < 3 or not words[0].startswith("mm"):
            continue
        if words[2] == "HEADER":
            header = words
            continue
        row = {name: unquote(word) for name, word in zip(header, words, strict=False) if name}
        if any(name not in row for name in _GPFS_COLUMNS):
            raise ProbeError("mmlsquota printed a row without a header for its columns")
        own = row.get("filesetname") or row.get("filesetName") or ""
        kind = _GPFS_KINDS.get(row["quotaType"].upper())
        if row["filesystemName"] != device or kind is None:
            continue
        if kind != "fileset" and own not in ("", "root", *filesets):
            continue
        name = row.get("name") or own or row.get("id", "")
        scope = f"{kind} {name}".strip() + (f" in {own}" if kind != "fileset" and own not in ("", "root") else "")
        for what, column in zip(KINDS, ("block", "files"), strict=True):
            figures = (row[column + part] for part in ("Usage", "Quota", "Limit", "Grace"))
            amounts.append(amount(what, GPFS, scope, *figures))
    if not header:
        raise ProbeError(f"mmlsquota printed no table: {text.strip()[:120]!r}")
    return tuple(amounts)


# BeeGFS: https://doc.beegfs.io/latest/advanced_topics/quota.html, as a table and as CSV; one table per storage pool.

BEEGFS = "beegfs-ctl --getquota"
_BYTE = re.compile(r"(?<=[0-9 ])Bytes?")
_BEEGFS_POOL = re.compile(r"Quota information for storage pool (?P<name>.+?) \(ID: [0-9]+\)")


def beegfs_command(kind: str, name: str, mount_point: str) -> list[str]:
    """Return `beegfs-ctl --mount=/beegfs --getquota --uid alice`. `kind`: user or group."""
    return ["beegfs-ctl", f"--mount={mount_point}", "--getquota", "--uid" if kind == "user" else "--gid", name]


def parse_beegfs(text: str, kind: str, name: str) -> tuple[Amount, ...]:
    """Return the amounts of each storage pool in the output for a user or group, matched by exact name.

    Raise ProbeError for other output.
    """
    amounts: list[Amount] = []
    pool, seen_head = "", False
    for line in text.split("\n"):
        match = _BEEGFS_POOL.search(line)
        if match is not None:
            pool = match["name"]
            continue
        seen_head = seen_head or "user/group" in line or line.startswith("name,id,size")
        words = [word.strip() for word in re.split(r"\|\|?|,", line)]
        if len(words) != 6 or name not in words[:2]:
            continue
        scope = f"{kind} {name}" + (f" in pool {pool}" if pool and pool != "Default" else "")
        try:
            for what, used, limit in ((BYTES, words[2], words[3]), (INODES, words[4], words[5])):
                in_use, hard = (parse_limit(_BYTE.sub("", word).replace(" ", ""), what) for word in (used, limit))
                amounts.append(
                    Amount(kind=what, source=BEEGFS, scope=scope, used=in_use or 0.0, limit=hard, age_s=None)
                )
        except (ProbeError, QuantityError) as error:
            raise ProbeError(f"beegfs-ctl printed a malformed row: {error.message}") from error
    if not seen_head:
        raise ProbeError(f"beegfs-ctl printed no table: {text.strip()[:120]!r}")
    return tuple(amounts)


# BeeGFS 8 replaces beegfs-ctl by beegfs: https://github.com/ThinkParQ/beegfs-go, ctl/internal/cmd/quota/quota.go. One
# JSON object per user or group and storage pool; `space` and `inode` are `used/limit`, with `?` for unknown figures.
# The mark of no limit is `∞`, and with --raw the largest int64. Only root may name other users and groups.

BEEGFS_8 = "beegfs quota"
_BEEGFS_8_DEFAULT = "storage_pool_default"
_UNLIMITED = str(2**63 - 1)


def parse_beegfs_8(text: str, owners: Sequence[tuple[str, str]]) -> tuple[Amount, ...]:
    """Return the amounts of these users and groups, each (kind, name), in all storage pools.

    Raise ProbeError for other output.
    """
    amounts: list[Amount] = []
    for line in text.split("\n"):
        if not line.startswith("{"):  # `INFO: Quota usage information is fetched every 30s ...`
            continue
        try:
            row = json.loads(line)
            owner, pool = (row["type"], row["name"]), row["pool"]
            figures = [(kind, *row[key].split("/")) for kind, key in ((BYTES, "space"), (INODES, "inode"))]
            scope = " ".join(owner) + (f" in pool {pool}" if pool != _BEEGFS_8_DEFAULT else "")
            for kind, used, limit in figures if owner in owners and "?" not in row["space"] + row["inode"] else ():
                hard = None if limit == _UNLIMITED else parse_limit(limit, kind)
                in_use = parse_limit(used, kind) or 0.0
                amounts.append(Amount(kind=kind, source=BEEGFS_8, scope=scope, used=in_use, limit=hard, age_s=None))
        except (ValueError, LookupError, TypeError, AttributeError, ProbeError, QuantityError) as error:
            raise ProbeError(f"beegfs printed a malformed row: {line.strip()[:120]!r}") from error
    if not text.strip():
        raise ProbeError("beegfs printed nothing")
    return tuple(amounts)


# XFS: xfs_quota(8) and quota/quota.c of xfsprogs 6.1: for each form three figures, the number of warnings and the time
# in brackets. Blocks are of 1 KiB. Project quotas need no query: statvfs of a directory with one shows its limit.

XFS = "xfs_quota"
_XFS_HEAD = re.compile(r"Disk quotas for (?P<kind>User|Group|Project) (?P<name>\S+) \(")
_XFS_FORM = re.compile(r"([0-9]{1,18})\s+([0-9]{1,18})\s+([0-9]{1,18})\s+[0-9]{1,4}\s+\[([^\]\n]*)\]", re.ASCII)


def xfs_command(kind: str, name: str, mount_point: str) -> list[str]:
    """Return `xfs_quota -c "quota -v -b -i -u alice" /data`. `kind`: user or group.

    xfs_quota splits its command at blanks; account names contain none.
    """
    return ["xfs_quota", "-c", f"quota -v -b -i {'-u' if kind == 'user' else '-g'} {name}", mount_point]


def parse_xfs(text: str) -> tuple[Amount, ...]:
    """Return the amounts in the output of `xfs_quota -c "quota -b -i ..."`. Raise ProbeError for other output.

    The output is empty if quotas are off; so is the result.
    """
    if not text.strip():
        return ()
    amounts: list[Amount] = []
    head = _XFS_HEAD.search(text)
    if head is None:
        raise ProbeError(f"xfs_quota printed no table: {text.strip()[:120]!r}")
    body = text[head.end() :]
    only_files = "Blocks" not in body.partition("Mounted on")[0]
    scope = f"{head['kind'].lower()} {head['name']}"
    for kind, form in zip((INODES,) if only_files else (BYTES, INODES), _XFS_FORM.findall(body), strict=False):
        used, soft, limit, grace = form
        amounts.append(amount(kind, XFS, scope, used, soft, limit, grace))
    if not amounts:
        raise ProbeError(f"xfs_quota printed no figures: {body.strip()[:120]!r}")
    return tuple(amounts)


# Linux and NFS servers: quota(1) of linuxquota 4.06. `-w` keeps a long device name on its row, `-p` prints the end of a
# grace period in seconds since the epoch, and `-f` queries one mount point; without it, quota queries every NFS server,
# dead ones too. Blocks are of 1 KiB. The exit code is 1 when a quota is exceeded, which is not an error here.

UNIX = "quota"
_UNIX_HEAD = re.compile(
    r"Disk quotas for (?P<kind>user|group|project) (?P<name>\S+) \((?:uid|gid) .*\):\s*(?P<none>none)?"
)
NO_QUOTA = "not found or has no quota enabled"
"""The stderr of quota 4.06, with exit code 1, for a mount point without quotas."""

_EPOCH_S = 10**8
"""A larger raw grace value is a time since the epoch, not a duration."""


def parse_unix(text: str, device: str, now: float) -> tuple[Amount, ...]:
    """Return the amounts of one device, matched by its exact name, in the output of `quota`.

    Raise ProbeError for other output. Return nothing for `none` and for quotas of other devices.
    """
    amounts: list[Amount] = []
    scope, name = "", ""
    for line in text.split("\n"):
        head = _UNIX_HEAD.match(line.strip())
        if head is not None:
            scope, name = f"{head['kind']} {head['name']}", ""
            continue
        words = line.split()
        if not scope or not words or words[0] == "Filesystem":
            continue
        if not name and len(words) == 1:  # without -w, a long name is on a line of its own
            name = words[0]
            continue
        owner, row = (name, words) if name else (words[0], words[1:])
        name = ""
        if owner != device:
            continue
        for kind, figures in zip(KINDS, figures_of(row, UNIX), strict=True):
            figures[-1] = _grace_left(figures[-1], now)
            amounts.append(amount(kind, UNIX, scope, *figures))
    if not scope:
        raise ProbeError(f"quota printed no table: {text.strip()[:120]!r}")
    return tuple(amounts)


def _grace_left(grace: str, now: float) -> str:
    """Return the grace column with a time since the epoch converted to the seconds left."""
    if grace.isdecimal() and len(grace) < 19 and int(grace) > _EPOCH_S:
        return f"{max(0, int(int(grace) - now))}s"
    return grace


# du, for sites without quota tools: only on request, because it walks the whole tree. It counts allocated blocks, as
# quotas do (not `-b`, the apparent size), each hard link once, on one file system.

DU = "du"


def du_command(path: str, kind: str) -> list[str]:
    """Return `du -s -x --block-size=1 -- /scratch/lab`, or the same with `--inodes`."""
    return ["du", "-s", "-x", "--inodes" if kind == INODES else "--block-size=1", "--", path]


def parse_du(text: str, errors: str, kind: str, limit: float) -> Amount:
    """Return the amount in the output of du, with its limit. Raise ProbeError if there is no total.

    du skips directories that it cannot read and reports them on stderr; the total is then a lower bound.
    """
    total = text.split(None, 1)[0] if text.strip() else ""
    if not total.isdecimal() or len(total) > 18:
        first = errors.strip().split("\n")[0][:160]
        raise ProbeError(f"du printed no total{': ' + first if first else ''}")
    unread = sum(1 for line in errors.split("\n") if line.startswith("du: "))
    note = f"a lower bound: {plural(unread, 'directory')} could not be read" if unread else ""
    return Amount(kind=kind if kind == INODES else BYTES, source=DU, scope="directory", used=float(total), limit=limit,
                  note=note)  # fmt: skip
