"""Quotas of IBM Storage Scale (GPFS): `mmlsquota -Y` and `mmlsattr -L`, asked and read.

Format: mmlsquota(1), "-Y: the output in a parseable format with a colon (:) as a field delimiter", each line led by the
command's name; values are percent-encoded. Block figures are in KiB.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

from resilience.errors import ProbeError
from resilience.watch.checks._filesystem.amount import BYTES, INODES, Amount, amount

SOURCE = "mmlsquota"
_FILESET = re.compile(r"^fileset name:\s*(\S+)\s*$", re.MULTILINE)
_KINDS = {"USR": "user", "GRP": "group", "FILESET": "fileset"}
_COLUMNS = ("filesystemName", "quotaType", "blockUsage", "blockQuota", "blockLimit", "blockGrace",
            "filesUsage", "filesQuota", "filesLimit", "filesGrace")  # fmt: skip


def quota_command() -> list[str]:
    """`mmlsquota -Y`: my own quotas, on every file system."""
    return ["mmlsquota", "-Y"]


def fileset_command(fileset: str, device: str) -> list[str]:
    """`mmlsquota -Y -j work gpfs0`: the quota of a fileset."""
    return ["mmlsquota", "-Y", "-j", fileset, device]


def attributes_command(path: str) -> list[str]:
    """`mmlsattr -L /gpfs/labs/six`: the fileset that a folder belongs to, among others."""
    return ["mmlsattr", "-L", path]


def parse_fileset(text: str) -> str:
    """Given the output of `mmlsattr -L`, return the name of the fileset. Raise ProbeError if it has none."""
    match = _FILESET.search(text)
    if match is None:
        raise ProbeError("mmlsattr named no fileset")
    return match[1]


def device_name(mount_source: str) -> str:
    """Given a mount's device (`/dev/gpfs0` or `gpfs0`), return the file system's name."""
    return mount_source.removeprefix("/dev/")


def parse_quota(text: str, device: str, filesets: Sequence[str] = ()) -> tuple[Amount, ...]:
    """Given the output of `mmlsquota -Y`, return the amounts of one file system, its name exactly.

    A user's or a group's row may be for one fileset alone; those of others than `filesets` are passed over.
    Raise ProbeError if it is no such output. A file system that has no quota gives nothing.
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
        if any(name not in row for name in _COLUMNS):
            raise ProbeError("mmlsquota wrote a row without a header that names its columns")
        own = row.get("filesetname") or row.get("filesetName") or ""
        kind = _KINDS.get(row["quotaType"].upper())
        if row["filesystemName"] != device or kind is None:
            continue
        if kind != "fileset" and own not in ("", "root", *filesets):
            continue
        name = row.get("name") or own or row.get("id", "")
        scope = f"{kind} {name}".strip() + (f" in {own}" if kind != "fileset" and own not in ("", "root") else "")
        size = (row["blockUsage"], row["blockQuota"], row["blockLimit"], row["blockGrace"])
        files = (row["filesUsage"], row["filesQuota"], row["filesLimit"], row["filesGrace"])
        amounts.append(amount(BYTES, SOURCE, scope, *size))
        amounts.append(amount(INODES, SOURCE, scope, *files))
    if not header:
        raise ProbeError(f"mmlsquota wrote no table: {text.strip()[:120]!r}")
    return tuple(amounts)
