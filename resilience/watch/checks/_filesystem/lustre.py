"""Lustre's quotas: `lfs quota` and `lfs project`, asked and read.

Format: lfs-quota(1) of Lustre 2.15; the rows of recorded outputs in tests/recorded/quota.
"""

from __future__ import annotations

import re

from resilience.errors import ProbeError
from resilience.watch.checks._filesystem.amount import BYTES, INODES, Amount, amount, figures_of

SOURCE = "lfs quota"
_HEAD = re.compile(r"Disk quotas for (?P<kind>usr|user|grp|group|prj|project) (?P<name>\S+) \((?:uid|gid|pid) .*\):")
_KINDS = {"usr": "user", "grp": "group", "prj": "project"}
_TABLE = re.compile(r"\s*Filesystem\s+(?:kbytes|used|bytes)\b")


def quota_command(kind: str, name: str, path: str) -> list[str]:
    """`lfs quota -u alice /scratch`. `kind`: user, group or project."""
    return ["lfs", "quota", {"user": "-u", "group": "-g", "project": "-p"}[kind], name, path]


def project_command(path: str) -> list[str]:
    """`lfs project -d /scratch/lab`: the project that a folder belongs to."""
    return ["lfs", "project", "-d", path]


def parse_project(text: str) -> str:
    """Given `1000 P /scratch/lab`, return `1000`; empty for 0, which is nobody's. Raise ProbeError if it is none."""
    words = text.split(None, 2)
    if len(words) < 3 or not words[0].isdecimal():
        raise ProbeError(f"lfs project wrote {text.strip()[:80]!r}")
    return "" if int(words[0]) == 0 else words[0]


def parse_quota(text: str) -> tuple[Amount, ...]:
    """Given the output of `lfs quota`, return the amounts of each table in it.

    A long file system name stands on a line of its own, with the figures on the next. Raise ProbeError if there is no
    table, or a row that is none.
    """
    amounts: list[Amount] = []
    scope, in_table, name = "", False, ""
    for line in text.split("\n"):
        head = _HEAD.match(line.strip())
        if head is not None:
            kind = _KINDS.get(head["kind"], head["kind"])
            scope, in_table, name = f"{kind} {head['name']}", False, ""
            continue
        if _TABLE.match(line):
            in_table = True
            continue
        words = line.split()
        if not in_table or not words:
            continue
        if not name and len(words) == 1:
            name = words[0]
            continue
        row = words if name else words[1:]
        size, files = figures_of(row, SOURCE)
        amounts.append(amount(BYTES, SOURCE, scope, *size))
        amounts.append(amount(INODES, SOURCE, scope, *files))
        in_table, name = False, ""  # what follows is per server, or a remark: "uid 1001 is using default ..."
    if not amounts:
        raise ProbeError(f"lfs quota wrote no table: {text.strip()[:120]!r}")
    return tuple(amounts)
